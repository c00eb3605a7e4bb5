"""Nodes in mode `mps` under the installed chart: MPS daemons outlive the agent's pod and its upgrades.

The cards are simulated and the control program is the stand-in of the unit tests, which runs in the chart's containers
from the directory that they share. What is real is what matters here: containers, and what their end ends.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from tessera.kube.resources import PODS
from tessera_lab.sandbox.api.kinds import Json
from tests.e2e.control_plane import ACCOUNTS
from tests.e2e.node.cluster import Node, environments
from tests.e2e.node.control_plane import NODE
from tests.e2e.node.release import CARDS, SPLIT, VALUES, Release
from tests.e2e.node.test_release_real import deployment, installed, running
from tests.e2e.replica import until
from tests.support.fake_mps import is_running, program_text

TENANT = "e2e-mps"
ROOT = Path("/run/tessera/mps")
PROGRAMS = ROOT / "bin"
SCRIPTED = ROOT / "script"
OTHER_SPLIT = 20

MPS_VALUES: Json = {
    **VALUES,
    "devicePlugin": {
        **VALUES["devicePlugin"],
        "nodeConfiguration": {"config": json.dumps({"nodeconfig": [{"name": NODE, "operatingmode": "mps"}]})},
        # Simulated cards need no rights of their own.
        "privileged": False,
        "extraEnvs": {"PATH": f"{PROGRAMS}:/opt/tessera/bin:/usr/local/bin:/usr/bin:/bin"},
    },
}


def put_program() -> None:
    for folder in (PROGRAMS, SCRIPTED):
        folder.mkdir(parents=True)
    program = PROGRAMS / "nvidia-cuda-mps-control"
    program.write_text(program_text("/usr/bin/python3", SCRIPTED))
    program.chmod(0o755)


def daemons() -> dict[str, int]:
    """The process of each card's daemon, as the agent recorded it."""
    records = {path.parent.name: json.loads(path.read_bytes()) for path in ROOT.glob("*/daemon.json")}
    return {uuid: record["process"][0] for uuid, record in records.items() if record["process"]}


async def replaced(release: Release, before: Mapping[str, Json]) -> dict[str, Json]:
    """The agent's pod after those of `before`, when it is ready."""
    found: dict[str, Json] = {}

    async def is_ready() -> bool:
        nonlocal found
        found = await release.pods("device-plugin")
        states = [each["status"].get("conditions", ()) for each in found.values()]
        ready = [any(c["type"] == "Ready" and c["status"] == "True" for c in state) for state in states]
        return ready == [True] and not found.keys() & before.keys()

    await until(is_ready, what="another pod of the agent to be ready")
    return found


async def test_mps_daemons_outlive_the_pod_of_the_agent_and_its_upgrade(node: Node, tools: Mapping[str, Path]) -> None:
    put_program()
    async with installed(node, tools, MPS_VALUES, tenant=TENANT) as release:
        await release.shares(CARDS * SPLIT)
        agents, holders = await release.pods("device-plugin"), await release.pods("mps-daemons")
        assert (len(agents), len(holders)) == (1, 1)
        started = daemons()
        assert (len(started), all(map(is_running, started.values()))) == (CARDS, True)
        # One that takes long to answer on a busy machine is started again, before it counts.
        starts = (SCRIPTED / "started").read_text()
        path = f"/apis/apps/v1/namespaces/{TENANT}/deployments"
        await release.api.create(path, deployment("first", 1, tenant=TENANT))
        pods = await running(release.api, 1, tenant=TENANT)
        (seen,) = (await environments(release.plane, pods)).values()
        assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" in str(seen)

        # The agent's container goes, and with it everything that is in it.
        (agent,) = agents.values()
        await release.api.delete(PODS.path(ACCOUNTS, agent["metadata"]["name"]))
        agents = await replaced(release, agents)
        assert daemons() == started
        assert all(map(is_running, started.values()))

        await release.upgrade(f"devicePlugin.deviceSplitCount={OTHER_SPLIT},devicePlugin.podLabels.of=upgrade")
        agents = await replaced(release, agents)
        await release.shares(CARDS * OTHER_SPLIT)
        assert (await release.pods("mps-daemons")).keys() == holders.keys()
        assert daemons() == started
        assert all(map(is_running, started.values()))
        # The agent that took them over serves through them.
        await release.api.create(path, deployment("second", 2, tenant=TENANT))
        await running(release.api, 3, tenant=TENANT)
        assert (SCRIPTED / "started").read_text() == starts
