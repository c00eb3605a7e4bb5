"""What docs/asking-a-cluster.md shows is what happens."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tessera.inspect.description import read_description
from tessera.inspect.installation import parse_scheduler_flags
from tessera.inspect.manifests import Manifest
from tessera.inspect.offline_cluster import OfflineCluster
from tessera.inspect.render.explanation import simulation_lines
from tessera.inspect.simulation import simulate
from tessera.inspect.state import Setup
from tests.support.builders import CORES, GPU, MEMORY, NOW, PERCENT

PAGE = (Path(__file__).parents[3] / "docs" / "asking-a-cluster.md").read_text(encoding="utf-8")
LEFT_OUT = "..."

MANIFESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "pod.yaml": ("trainer", {GPU: 2, MEMORY: 30000, CORES: 40}),
    "half.yaml": ("half", {GPU: 1, PERCENT: 50, CORES: 50}),
}
"""what is in the files of the page: names and limits"""

SHOWN = re.findall(r"^\$ tessera simulate pod (.*)\n((?:(?!```).*\n)*)```", PAGE, re.MULTILINE)


def test_the_page_shows_every_pod_that_is_described_here() -> None:
    assert [command.split()[1] for command, _ in SHOWN] == list(MANIFESTS)


@pytest.mark.parametrize(("command", "shown"), SHOWN, ids=[command.split()[1] for command, _ in SHOWN])
async def test_the_described_cluster_gives_the_shown_answer(command: str, shown: str) -> None:
    [description] = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    words = command.split()
    options = list(zip(words[::2], words[1::2], strict=True))
    flags = parse_scheduler_flags([value for name, value in options if name == "--scheduler-flag"])
    name, limits = MANIFESTS[dict(options)["-f"]]
    pod = {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"containers": [{"name": "main", "image": "x", "resources": {"limits": limits}}]},
    }
    cluster = OfflineCluster(
        read_description(description, file="nodes.yaml", now=NOW, setup=Setup(flags=flags or None))
    )
    found = simulate(cluster, Manifest("default", name, pod, int(dict(options).get("--count", 1))))
    text = "\n".join(line.text for line in simulation_lines(found))
    for part in shown.split(f"{LEFT_OUT}\n"):
        assert part.strip("\n") in text
