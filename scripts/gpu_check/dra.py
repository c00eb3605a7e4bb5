"""ResourceClaims on a real card: the agent with --dra, prepared over its gRPC socket, and torch on the CDI specs.

The apiserver is the embedded one, and kubelet and the scheduler are played; the agent and the card are real. There is
no container, so a process gets the variables of the claim's CDI spec with the host's paths in place of the mounts.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

from scripts.gpu_check.agent import PIPES, run_checks
from scripts.gpu_check.mig import client as mig_client
from scripts.gpu_check.mps import client as mps_client
from scripts.gpu_check.report import Report
from tessera.host.nvml.hardware import NvmlHardware
from tessera.node.modes.mps.control import MpsProgram
from tessera.node.modes.mps.mode import retire_mps
from tessera.wire.kubelet import dra_pb2 as messages
from tests.support.dra import ClaimNode, claim_node

SMALL = "1g-18gb-6"
"""the last place of an H200's smallest profile, as devices are named"""


@asynccontextmanager
async def started(hardware: NvmlHardware, mode: str) -> AsyncIterator[ClaimNode]:
    """The whole agent. Afterwards no MPS daemon is left, whatever happened."""
    with tempfile.TemporaryDirectory(prefix=f"dra-{mode}-") as folder:
        Path(folder).chmod(0o755)
        async with claim_node(Path(folder), node={"operatingmode": mode}, start=False) as node:
            agent = node.agent
            del agent.flags["simulate"]
            agent.flags["inventory"] = "nvml"
            agent.environ["PATH"] = os.environ["PATH"]
            agent.hardware = cast(Any, hardware)
            await agent.start()
            await node.published()
            try:
                yield node
            finally:
                if agent.is_running:
                    await agent.stop()
                await retire_mps(Path(agent.flags["mps-dir"]), hardware, program=MpsProgram(environ=agent.environ))


def on_host(node: ClaimNode, claim: messages.Claim) -> Mapping[str, str]:
    host = {mount["containerPath"]: mount["hostPath"] for mount in node.edits(claim)["mounts"]}
    return {name: host.get(value, value) if name == PIPES else value for name, value in node.env(claim).items()}


async def check_mps(report: Report, hardware: NvmlHardware) -> None:
    async with started(hardware, "mps") as node:
        (device,) = node.devices().values()
        report.check("the card is published", device["allowMultipleAllocations"] is True, device)
        small = await node.claim("small", node.part(0, memory=4096, cores=30))
        large = await node.claim("large", node.part(0, memory=16384, cores=60))
        for claim in (small, large):
            (prepared,) = await node.prepare(claim)
            report.check("kubelet gets a CDI device", bool(prepared.cdi_device_ids), list(prepared.cdi_device_ids))
        report.check("the CDI spec has the limits", True, node.env(small))
        first = await mps_client(on_host(node, small), gib=(2, 6), stay=True)
        seen = first.found
        report.check("torch gets 2 GiB of 4096 MiB and not 6", seen.get("2") is True and seen.get("6") is False, seen)
        report.check("and 30 per cent of the multiprocessors", 0 < seen.get("processors", 0) <= 44, seen)
        second = (await mps_client(on_host(node, large), gib=(8, 20))).found
        report.check(
            "another claim shares the card, with its own limits",
            second.get("8") is True and second.get("20") is False and second.get("processors", 0) > 44,
            second,
        )
        await first.end()
        again = await node.prepare(small)
        report.check("prepared again it is the same", bool(again), [each.device_name for each in again])
        await node.unprepare(small, large)
        report.check("nothing is left", node.specs() == [], node.specs())


async def check_mig(report: Report, hardware: NvmlHardware) -> None:
    async with started(hardware, "mig") as node:
        card = node.agent.card(0).uuid
        names = sorted(node.devices())
        report.check("profiles and places are published", f"{card.lower()}-{SMALL}" in names, names)
        claim = await node.claim("mig", node.whole(f"{card.lower()}-{SMALL}"))
        await node.prepare(claim)
        handed = node.env(claim)["NVIDIA_VISIBLE_DEVICES"]
        (instance,) = hardware.instances(card)
        report.check("the claim gets its instance", instance.mig_uuid == handed, instance)
        torch = await mig_client(handed)
        report.check("torch computes on it", torch.found.get("product") is True, torch.found)
        await torch.end()
        await node.unprepare(claim)
        await node.agent.until(lambda: hardware.instances(card) == [], what="the instance to be destroyed")
        report.check("unprepared, the instance goes", True, hardware.instances(card))


def run(report: Report) -> None:
    run_checks(report, mps=check_mps, mig=check_mig)
