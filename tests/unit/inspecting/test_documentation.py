"""What docs/explain.md shows is what happens."""

from __future__ import annotations

import re
from pathlib import Path

from tessera.inspecting.describing import describe
from tessera.inspecting.manifests import Manifest
from tessera.inspecting.showing.simulated import simulated
from tessera.inspecting.simulating import simulate
from tessera.inspecting.state import Setup
from tessera.inspecting.world import World
from tests.support.builders import NOW

PAGE = Path(__file__).parents[3] / "docs" / "explain.md"


async def test_the_described_cluster_gives_the_shown_answer() -> None:
    text = PAGE.read_text(encoding="utf-8")
    [description] = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    shown = re.search(r"--count 10\n(.*?)```", text, re.DOTALL)
    assert shown is not None
    limits = {"nvidia.com/gpu": 2, "nvidia.com/gpumem": 30000, "nvidia.com/gpucores": 40}
    pod = {
        "metadata": {"name": "trainer", "namespace": "default"},
        "spec": {"containers": [{"name": "main", "image": "x", "resources": {"limits": limits}}]},
    }
    world = World(describe(description, file="nodes.yaml", now=NOW, setup=Setup()))
    found = simulate(world, Manifest("default", "trainer", pod, 10))
    lines = [line.text for line in simulated(found)]
    assert [line for line in shown[1].splitlines() if line.strip() != "..." and line not in lines] == []
