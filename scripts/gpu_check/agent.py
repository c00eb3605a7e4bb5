"""The whole agent on a real card: registration, kubelet's sockets, Allocate over gRPC, and torch on the answers.

The apiserver is the embedded one and kubelet is played; the agent and the card are real. There is no container, so a
process gets the answer's variables with the host's paths in place of the mounts.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

from scripts.gpu_check.mig import client as mig_client
from scripts.gpu_check.mps import client as mps_client
from scripts.gpu_check.report import Report
from tessera.core.model.devices import MigPlacement, MigSlot
from tessera.host.nvml.hardware import NvmlHardware
from tessera.node.modes.mps.control import MpsProgram
from tessera.node.modes.mps.mode import retire_mps
from tessera.wire import keys
from tessera.wire.kubelet import device_plugin_pb2 as messages
from tessera.wire.pod_devices import MigAllocation, decode_mig_allocations, encode_mig_allocations
from tests.support.agent import AgentNode, agent_node

PIPES = "CUDA_MPS_PIPE_DIRECTORY"
REGISTER = "hami.io/node-nvidia-register"


@asynccontextmanager
async def started(
    hardware: NvmlHardware, mode: str, *, flags: Mapping[str, str] | None = None
) -> AsyncIterator[AgentNode]:
    """The whole agent; `flags` override its folders. Afterwards no MPS daemon is left, whatever happened."""
    with tempfile.TemporaryDirectory(prefix=f"agent-{mode}-") as folder:
        Path(folder).chmod(0o755)
        async with agent_node(Path(folder), node={"operatingmode": mode}, start=False) as node:
            del node.flags["simulate"]
            node.flags["inventory"] = "nvml"
            node.flags |= flags or {}
            node.environ["PATH"] = os.environ["PATH"]
            node.hardware = cast(Any, hardware)
            await node.start()
            await node.kubelet.listed()
            try:
                yield node
            finally:
                if node.is_running:
                    await node.stop()
                await retire_mps(Path(node.flags["mps-dir"]), hardware, program=MpsProgram(environ=node.environ))


def on_host(answer: messages.ContainerAllocateResponse) -> Mapping[str, str]:
    host = {mount.container_path: mount.host_path for mount in answer.mounts}
    return {name: host.get(value, value) if name == PIPES else value for name, value in answer.envs.items()}


async def restore(node: AgentNode, hardware: NvmlHardware) -> None:
    """Starts the agent in another mode, and waits until the card is as it was. No slice may be held any more."""
    node.configure(operatingmode="hami-core")
    await node.stop()
    await node.start()
    card = node.card(0).uuid
    await node.until(lambda: hardware.compute_mode(card).value == 0, what="the compute mode to be restored")


async def check_mps(report: Report, hardware: NvmlHardware) -> None:
    async with started(hardware, "mps") as node:
        await node.plane.wait_for(lambda: REGISTER in node.annotations())
        report.check("the card is registered on the node", True, node.annotations()[REGISTER])
        report.check("the agent says how it works", True, node.annotations()[keys.AGENT])
        await node.bound_pod("one", [[node.slice(0, memory=4096, cores=30)]])
        answer = await node.allocate(1, holder=("one", "c0"))
        report.check("Allocate answers with the slice", True, dict(answer.envs))
        report.check("and with mounts", True, [f"{m.container_path} <- {m.host_path}" for m in answer.mounts])
        await node.phase_is("one", keys.PHASE_SUCCESS)
        seen = (await mps_client(on_host(answer), gib=(2, 6))).found
        report.check("torch gets 2 GiB of 4096 MiB and not 6", seen.get("2") is True and seen.get("6") is False, seen)
        # No slice is held any more: the next agent, in another mode, restores the card.
        await node.plane.client.delete("/api/v1/namespaces/default/pods/one", grace_s=0)
        await restore(node, hardware)
        report.check("in another mode the card is put back", True, hardware.compute_mode(node.card(0).uuid).name)


async def check_mig(report: Report, hardware: NvmlHardware) -> None:
    async with started(hardware, "mig") as node:
        await node.plane.wait_for(lambda: '"migProfiles"' in node.annotations().get(REGISTER, ""))
        report.check("profiles are registered on the node", True, node.annotations()[REGISTER])
        card = node.card(0).uuid
        reserved = MigAllocation(0, 0, card, MigSlot("1g.18gb", MigPlacement(6, 1)))
        more = {keys.MIG_ALLOCATIONS: encode_mig_allocations([reserved])}
        await node.bound_pod("one", [[node.slice(0, memory=16384, cores=15)]], annotations=more)
        answer = await node.allocate(1, holder=("one", "c0"))
        handed = answer.envs["NVIDIA_VISIBLE_DEVICES"]
        await node.phase_is("one", keys.PHASE_SUCCESS)
        (written,) = decode_mig_allocations(node.annotations("one")[keys.MIG_ALLOCATIONS])
        report.check("the pod knows its instance", written.mig_uuid == handed, written)
        torch = await mig_client(handed)
        report.check("torch computes on it", torch.found.get("product") is True, torch.found)
        await torch.end()
        await node.plane.client.delete("/api/v1/namespaces/default/pods/one", grace_s=0)
        await node.until(lambda: hardware.instances(card) == [], what="the instance to be destroyed")
        report.check("without its pod the instance goes", True, hardware.instances(card))


Check = Callable[[Report, NvmlHardware], Coroutine[Any, Any, None]]


def run_checks(report: Report, *, mps: Check, mig: Check) -> None:
    """Runs one after the other on the first card. Afterwards its MIG mode is as before, whatever happened."""
    hardware = NvmlHardware()
    try:
        card = next(each for each in hardware.scan() if each.uuid is not None)
        assert card.uuid is not None
        asyncio.run(mps(report, hardware))
        before = hardware.mig_enabled(card.uuid)
        try:
            asyncio.run(mig(report, hardware))
        finally:
            if hardware.mig_enabled(card.uuid) and not before:
                hardware.disable_mig(card.uuid)
        report.check("MIG mode is as before", hardware.mig_enabled(card.uuid) == before, before)
    finally:
        hardware.close()


def run(report: Report) -> None:
    run_checks(report, mps=check_mps, mig=check_mig)
