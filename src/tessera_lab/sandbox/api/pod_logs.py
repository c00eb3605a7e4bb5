"""`pods/log`: the lines of one container, as `kubectl logs` asks for them.

Whatever runs the containers says what they wrote (`ReadLog`); this module only chooses the container and the lines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tessera_lab.sandbox.api.errors import bad_request
from tessera_lab.sandbox.api.kinds import Json
from tessera_lab.sandbox.api.request_url import parse_flag, parse_whole_number


@dataclass(frozen=True, slots=True)
class LogLine:
    at: str
    text: str


ReadLog = Callable[[Json, str], Sequence[LogLine] | None]
"""what a container of a pod wrote so far; None if it has not started"""


def no_logs(pod: Json, container: str) -> Sequence[LogLine]:
    """Where nothing runs containers."""
    return ()


def choose_container(pod: Json, query: Mapping[str, str]) -> str:
    """The container that the query names, or the only one."""
    spec, asked = pod["spec"], query.get("container", "")
    names = [each["name"] for each in (*spec.get("initContainers", ()), *spec["containers"])]
    if asked and asked not in names:
        raise bad_request(f"container {asked[:80]} is not valid for pod {pod['metadata']['name']}")
    if not asked and len(names) > 1:
        choices = " ".join(names)
        text = f"a container name must be specified for pod {pod['metadata']['name']}, choose one of: [{choices}]"
        raise bad_request(text)
    return asked or names[0]


def select_lines(pod: Json, container: str, query: Mapping[str, str], read: ReadLog) -> list[str]:
    """The lines that the query wants, each with its end of line."""
    if parse_flag(query, "previous"):
        name = pod["metadata"]["name"]
        raise bad_request(f'previous terminated container "{container}" in pod "{name}" not found')
    if not pod["spec"].get("nodeName"):
        return []
    lines = read(pod, container)
    if lines is None:
        name = pod["metadata"]["name"]
        raise bad_request(f'container "{container}" in pod "{name}" is waiting to start: ContainerCreating')
    tail = parse_whole_number(query, "tailLines")
    kept = lines if tail is None else lines[max(0, len(lines) - tail) :]
    stamped = parse_flag(query, "timestamps")
    return [f"{line.at} {line.text}\n" if stamped else f"{line.text}\n" for line in kept]
