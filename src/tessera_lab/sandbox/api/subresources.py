"""The subresources `scale`, `pods/log` and `services/proxy`.

A scale is never stored: reading makes it from the workload, writing changes `spec.replicas`. Whatever runs the
containers says what they wrote (`ReadLog`). There are no Service objects: `ApiState.services` says what is behind each
of them, and only GET is passed on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp import web

from tessera_lab.sandbox.api.errors import FieldProblem, bad_request, invalid, method_not_allowed, status_error
from tessera_lab.sandbox.api.kinds import Json, ResourceKind
from tessera_lab.sandbox.api.requests import convert, parse_flag, parse_whole_number, without_nulls
from tessera_lab.sandbox.api.shapes import Scale

HEADING = {"kind": "Scale", "apiVersion": "autoscaling/v1"}
_SHOWN = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")


def make_scale(workload: Json) -> Json:
    metadata, spec, status = workload["metadata"], workload["spec"], workload.get("status", {})
    counts = {"replicas": status.get("replicas", 0), "selector": _selector_text(spec["selector"])}
    return HEADING | {
        "metadata": {key: metadata[key] for key in _SHOWN},
        "spec": {"replicas": spec["replicas"]} if spec["replicas"] else {},
        "status": counts,
    }


def scaled(kind: ResourceKind, change: Callable[[Json], Any]) -> Callable[[Json], Json]:
    """The change of a workload that `change` of its scale means."""

    def apply(workload: Json) -> Json:
        content = without_nulls(change(make_scale(workload)))
        if not isinstance(content, dict) or any(content.get(key, text) != text for key, text in HEADING.items()):
            raise bad_request("the object provided is not a Scale of autoscaling/v1")
        scale, metadata = convert(content, Scale), workload["metadata"]
        replicas = scale.spec.replicas
        if replicas < 0:
            text = f"Invalid value: {replicas}: must be greater than or equal to 0"
            raise invalid(kind, metadata["name"], [FieldProblem("spec.replicas", text)])
        wanted = {"uid": scale.metadata.uid, "resourceVersion": scale.metadata.resource_version}
        workload["metadata"] = metadata | {key: text for key, text in wanted.items() if text}
        workload["spec"]["replicas"] = replicas
        return workload

    return apply


def _selector_text(selector: Json) -> str:
    plain = [f"{key}={value}" for key, value in sorted(selector.get("matchLabels", {}).items())]
    return ",".join([*plain, *(_requirement_text(each) for each in selector.get("matchExpressions", ()))])


def _requirement_text(requirement: Json) -> str:
    key, operator = requirement["key"], requirement["operator"]
    if operator in ("Exists", "DoesNotExist"):
        return f"{'!' if operator == 'DoesNotExist' else ''}{key}"
    return f"{key} {operator.lower()} ({','.join(sorted(requirement.get('values', ())))})"


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


PATH = re.compile(r"/api/v1/namespaces/([^/]+)/services/([^/]+)/proxy(/.*)?")


def is_service_proxy(path: str) -> bool:
    return PATH.fullmatch(path) is not None


async def pass_on(request: web.Request, services: Mapping[str, str]) -> web.StreamResponse:
    """The answer of the Service, piece by piece."""
    found = PATH.fullmatch(request.path)
    assert found is not None
    namespace, name, path = found.groups("/")
    url = services.get(f"{namespace}/{name}")
    if url is None:
        raise status_error(404, f'services "{name.partition(":")[0]}" not found')
    if request.method != "GET":
        raise method_not_allowed()
    timeout = aiohttp.ClientTimeout()
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(f"{url}{path}", params=request.query) as answer,
        ):
            response = web.StreamResponse(status=answer.status, headers={"Content-Type": answer.content_type})
            await response.prepare(request)
            async for piece in answer.content.iter_any():
                await response.write(piece)
            await response.write_eof()
            return response
    except aiohttp.ClientConnectorError as error:
        raise status_error(503, f"error trying to reach service: {error}") from error
