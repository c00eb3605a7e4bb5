"""The journal of a scheduler beside a real kube-scheduler: every decision comes out the same again."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from tessera_lab.sandbox.api.kinds import Json
from tessera_lab.sandbox.nodes.node import SimulatedNode, gpu_cards
from tessera_lab.sandbox.objects import node_of
from tests.e2e.cluster import Cluster, cluster
from tests.e2e.control_plane import ControlPlane
from tests.support.product import container, gpu_pod, pod

PODS = 500
WAVES = (20, 30, 30, 40)
"""pods; the scheduler is killed in the middle of each but the last"""
POLICIES = ("binpack", "spread")


async def tessera(*arguments: str) -> tuple[int, bytes, str]:
    """Exit code, standard output and standard error of the command."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tessera", *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out, err.decode()


async def replayed(*files: Path) -> Json:
    code, out, err = await tessera("replay", *map(str, files), "-o", "json")
    assert code in (0, 1), err
    found: Json = json.loads(out)
    assert found["equal"], found["difference"]
    assert code == 0
    return found


def nodes(count: int) -> list[SimulatedNode]:
    return [
        SimulatedNode(f"n{number:02}", gpu_cards(f"n{number:02}", 8, linked=4, numa_nodes=2)) for number in range(count)
    ]


def mixed_pods(count: int) -> list[Json]:
    """Sizes and policies that all matter for the choice."""
    found: list[Json] = []
    for number in range(count):
        name = f"p{number:03}"
        annotations = {
            "hami.io/node-scheduler-policy": POLICIES[number % 2],
            "hami.io/gpu-scheduler-policy": POLICIES[number // 2 % 2],
        }
        if number % 10 == 9:
            found.append(pod(name, container("a", gpu=1, mem=3000), container("b", gpu=2, mem=500 + number)))
        else:
            size = 2000 + 97 * (number % 40)
            found.append(gpu_pod(name, gpu=1 + number % 3 // 2, mem=size, cores=number % 7, annotations=annotations))
    return found


def names(manifests: list[Json]) -> list[str]:
    return [manifest["metadata"]["name"] for manifest in manifests]


async def fill_and_free(found: Cluster, waiting: list[Json]) -> None:
    """A pod that fits nowhere, then many that do, then one that fits only where another one ended."""
    whole = [gpu_pod(f"whole-{number}", gpu=8) for number in range(2)]
    await found.create(gpu_pod("greedy", gpu=1, mem=90_000))
    await found.refused("greedy")
    await found.run(whole[0])
    await found.create(*waiting)
    await found.running(*names(waiting))
    await found.create(whole[1])
    await found.refused("whole-1")
    await found.delete("whole-0")
    await found.running("whole-1")


async def test_a_journal_of_500_pods_replays_equally(plane: ControlPlane, tmp_path: Path) -> None:
    async with cluster(plane, nodes(12)) as found:
        await fill_and_free(found, mixed_pods(PODS))
        await found.at_rest()
        url = ("--url", found.replica.extender_url)
        code, out, err = await tessera("journal", *url, "-o", "json")
        assert code == 0, err
        file = tmp_path / "journal.jsonl"
        file.write_bytes(out)
        answer = await replayed(file)
        kinds = [json.loads(line)["kind"] for line in out.splitlines()]
        placed, refused = kinds.count("placed"), kinds.count("refused")
        assert answer["decisionsEqual"] == placed + refused
        assert placed >= PODS + 2
        assert refused >= 2
        assert kinds.count("released") >= 1
        code, story, err = await tessera(
            "explain",
            f"{found.namespace}/whole-1",
            "--history",
            "--journal-url",
            found.replica.extender_url,
            "-o",
            "json",
        )
        assert code == 0, err
        steps = [step["what"] for step in told(story)]
        # kube-scheduler sees the deletion too, and may ask again before or after the scheduler wakes the pod.
        assert [step for step in steps if step != "woken"] == ["asked", "refused", "placed", "bound"]


async def test_a_cluster_without_a_scheduler_says_so(plane: ControlPlane) -> None:
    code, _, err = await tessera("journal", "--kubeconfig", str(plane.kubeconfig()))
    assert code == 2
    assert "no scheduler of Tessera was found in this cluster" in err


async def test_the_file_of_a_scheduler_that_is_killed_again_and_again_replays_equally(
    plane: ControlPlane, tmp_path: Path
) -> None:
    """All its processes write to one file, and the last line of each may be cut off."""
    file = tmp_path / "journal.jsonl"
    waiting = mixed_pods(sum(WAVES))
    async with cluster(plane, nodes(4), f"--journal-file={file}") as found:
        created = 0
        for wave in WAVES:
            await found.create(*waiting[created : created + wave])
            created += wave
            if created < len(waiting):
                await bound(found, created - wave // 2)
                await found.replica.restart_tessera()
            await found.running(*names(waiting[:created]))
        await found.at_rest()
        await found.replica.stop_tessera()
        answer = await replayed(file)
        assert answer["processes"] == len(WAVES)
        # The last process ended in good order, so that all its decisions are there.
        assert answer["decisionsEqual"] >= WAVES[-1]
        code, out, err = await tessera("journal", "--file", str(file), "-o", "json")
        assert code == 0, err
        records = [json.loads(line) for line in out.splitlines()]
        # What a process wrote last is lost with it; then the next one begins with what the pod holds.
        held = {record["state"]["name"] for record in records if record["kind"] == "pod" and "state" in record}
        assert held >= set(names(waiting))


async def bound(found: Cluster, count: int) -> None:
    await found.wait_for(lambda: sum(map(bool, map(node_of, found.pods))) >= count, what=f"{count} bound pods")


def told(document: bytes) -> list[dict[str, Any]]:
    (story,) = json.loads(document)["stories"]
    steps: list[dict[str, Any]] = story["steps"]
    return steps
