"""The mode `mig` on a real card: reservations become instances, and torch computes on what was handed over.

The agent's own code does everything; only the pods' annotations are kept here instead of in an apiserver. Needs root,
torch, and a card that supports MIG and is not in use. The card is left as it was.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scripts.gpu_check.report import Report
from tessera.core.model.devices import MigPlacement, MigSlot
from tessera.host.cards import CardFacts, MigInstance
from tessera.host.nvml.hardware import NvmlHardware
from tessera.node.fleet import CardState, Fleet
from tessera.node.handover.assignments import Assignment, ObjectKey
from tessera.node.modes.base import AllocationRefused
from tessera.node.modes.device_lists import DeviceLists
from tessera.node.modes.mig.instances import holders_of
from tessera.node.modes.mig.mode import Mig
from tessera.node.modes.mig.mode_switch import retire_mig
from tessera.node.settings import AgentSettings, Paths
from tessera.vendors.nvidia.downward_api import VISIBLE
from tessera.wire.node_config import NodeSettings
from tessera.wire.pod_devices import DeviceEntry, MigAllocation

OVER_S = 120.0
"""seconds for one client, torch's slow start included"""
SMALL, LARGE = "1g.18gb", "3g.71gb"

CLIENT = """
import json, sys
found = {}
try:
    import torch
    found["devices"] = torch.cuda.device_count()
    found["gib"] = round(torch.cuda.mem_get_info()[1] / 2**30, 1)
    found["processors"] = torch.cuda.get_device_properties(0).multi_processor_count
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    found["product"] = bool(torch.isfinite(a @ a).all())
except Exception as error:
    found["error"] = f"{type(error).__name__}: {error}".splitlines()[0]
print(json.dumps(found), flush=True)
sys.stdin.read()
"""


class Client:
    """A torch process on one instance; it stays until `end`."""

    def __init__(self, process: asyncio.subprocess.Process, found: Mapping[str, Any]) -> None:
        self._process = process
        self.found = found

    async def end(self) -> None:
        await self._process.communicate()


async def client(mig_uuid: str) -> Client:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CLIENT, env={**os.environ, "CUDA_VISIBLE_DEVICES": mig_uuid},
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    async with asyncio.timeout(OVER_S):
        found = json.loads(await process.stdout.readline() or '{"error": "it said nothing"}')
    return Client(process, found)


def fleet_of(hardware: NvmlHardware) -> Fleet:
    """The first card that can do MIG, as it is now."""
    cards = (each for each in hardware.scan() if isinstance(each, CardFacts) and each.mig_capable)
    return Fleet((CardState(next(cards)),))


def claim(card: str, pod: str, profile: str, *, start: int, size: int) -> Assignment:
    reserved = MigAllocation(0, 0, card, MigSlot(profile, MigPlacement(start, size)))
    slices = (DeviceEntry(card, "NVIDIA", 1, 1),)
    return Assignment(ObjectKey("check", pod, f"uid-{pod}"), 0, "main", slices, mig=(reserved,))


def shown(instances: Sequence[MigInstance]) -> list[tuple[int, int, int]]:
    """Profile, start and size of each."""
    return sorted((each.profile_id, each.placement.start, each.placement.size) for each in instances)


async def check(report: Report, hardware: NvmlHardware, root: Path) -> None:
    fleet = fleet_of(hardware)
    card = fleet.cards[0].facts.uuid
    before = hardware.mig_enabled(card)
    written: dict[str, MigAllocation] = {}

    async def write(pod: ObjectKey, allocations: Sequence[MigAllocation]) -> None:
        written[pod.name] = allocations[0]

    def agent() -> Mig:
        settings = AgentSettings(node_name="here", node=NodeSettings(mode="mig"), paths=Paths(state=root))
        return Mig(settings, hardware, device_lists=DeviceLists(settings), write=write)

    mode = agent()
    await mode.start(fleet)
    report.check("MIG is on", hardware.mig_enabled(card), f"before: {before}")
    # Offers may only be readable now.
    fleet = fleet_of(hardware)
    await mode.reconcile([], fleet)
    report.check("the card offers profiles", bool(fleet.cards[0].facts.mig_profiles), _offers(fleet))

    small, large = claim(card, "small", SMALL, start=6, size=1), claim(card, "large", LARGE, start=0, size=4)
    uuids = {each.pod.name: (await mode.hand_over(each, ["x"])).env.get(VISIBLE, "") for each in (small, large)}
    placed = [(19, 6, 1), (9, 0, 4)]
    report.check("both are where they were reserved", shown(hardware.instances(card)) == sorted(placed), uuids)
    report.check("pods know their instances", {k: v.mig_uuid for k, v in written.items()} == uuids, written)
    again = (await mode.hand_over(small, ["x"])).env.get(VISIBLE)
    report.check("asked again it is the same", again == uuids["small"], again)
    try:
        await mode.hand_over(claim(card, "other", LARGE, start=0, size=4), ["x"])
    except AllocationRefused as refused:
        report.check("a taken place is refused", True, refused)
    else:
        report.check("a taken place is refused", False, hardware.instances(card))

    one, two = await asyncio.gather(client(uuids["small"]), client(uuids["large"]))
    report.check("torch computes on 1g.18gb", one.found.get("product") is True, one.found)
    report.check("torch computes on 3g.71gb", two.found.get("product") is True, two.found)
    report.check("each sees its own memory", one.found.get("gib", 99) < 19 < two.found.get("gib", 0) < 73, "GiB")

    await mode.stop()
    mode = agent()
    await mode.start(fleet)
    report.check("the next agent knows both", len(mode.current_instances()) == 2, mode.current_instances())
    await mode.reconcile([], fleet)
    report.check("nothing goes while processes use it", len(hardware.instances(card)) == 2, hardware.instances(card))
    await two.end()
    await asyncio.sleep(1.1)  # the first try failed: the next is a second later
    await mode.reconcile([small], fleet)
    report.check("one goes alone", shown(hardware.instances(card)) == [(19, 6, 1)], hardware.instances(card))
    await one.end()
    await mode.reconcile([], fleet)
    await asyncio.sleep(2.1)
    await mode.reconcile([], fleet)
    report.check("all are gone", hardware.instances(card) == [], hardware.instances(card))
    await mode.stop()
    await retire_mig(root, hardware, holders_of([]))
    report.check("MIG mode is as before", hardware.mig_enabled(card) == before, before)


def _offers(fleet: Fleet) -> list[str]:
    return [f"{each.name} (id {each.profile_id}, {each.instances})" for each in fleet.cards[0].facts.mig_profiles]


def run(report: Report) -> None:
    hardware = NvmlHardware()
    try:
        with tempfile.TemporaryDirectory(prefix="mig-") as folder:
            asyncio.run(check(report, hardware, Path(folder)))
    finally:
        hardware.close()
