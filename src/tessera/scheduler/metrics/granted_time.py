"""GPU-seconds that were granted, by workload and model, and those that were not: who had the cards, for how long.

A pod's share of a card is the larger of its shares of memory and of cores, because either can keep others out. It
counts from the moment at which the API shows the pod on its node until the pod has ended or is gone. What a
ResourceClaim holds counts while it is allocated, once, however many pods use it. Only the replica that decides counts,
so that a sum over all replicas is right.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from itertools import islice

from tessera.core.fit.device_rules import Rules
from tessera.core.ledger.holdings import Holding
from tessera.core.ledger.ledger import Ledger
from tessera.core.model.devices import Device
from tessera.core.model.grants import Use
from tessera.services.exposition import Series, escaped
from tessera.services.gpu_time import CardKey, GpuTime, Sample
from tessera.wire.objects import Workload

LINES = 250
"""written between two turns of the loop: below a millisecond"""


class TenureTime:
    """Seconds for which this replica has decided, in all its tenures together.

    What passes between two looks counts if the tenure is held at the second. A process that was frozen finds at its
    next look that another one decides, which has counted that time itself.
    """

    def __init__(self, monotonic: Callable[[], float], is_held: Callable[[], bool]) -> None:
        self._monotonic = monotonic
        self._is_held = is_held
        self._seconds = 0.0
        self._looked = monotonic()

    def __call__(self) -> float:
        now = self._monotonic()
        if self._is_held():
            self._seconds += now - self._looked
        self._looked = now
        return self._seconds

    def begin(self) -> None:
        """A tenure begins: what passed before is another replica's."""
        self._looked = self._monotonic()


class GrantedTime:
    """Follows one ledger."""

    def __init__(self, ledger: Ledger, time: Callable[[], float]) -> None:
        self._ledger = ledger
        self.time = GpuTime(time)
        self._devices: dict[str, Mapping[str, Device]] = {}
        """by node, as the ledger had them"""
        self._holders: dict[str, tuple[Workload, str, Mapping[str, Holding]]] = {}
        """by uid: workload, node, and what is counted of its cards"""

    def on_holder(self, uid: str, workload: Workload | None) -> None:
        """The ledger has what the API shows of a pod or claim; without a workload it holds nothing any more."""
        entry = self._ledger.pod(uid) if workload is not None else None
        known = self._holders.get(uid)
        if known is not None and entry is not None and known[2] is entry.holdings and known[0] == workload:
            return
        if known is not None and (entry is None or known[:2] != (workload, entry.facts.node)):
            self._release(uid)
        if entry is not None and workload is not None:
            self._charge(uid, workload, entry.facts.node)

    def on_cards(self, node: str) -> None:
        """The ledger has what the API shows of a node."""
        devices = self._ledger.devices(node)
        known = self._devices.get(node, {})
        if devices is known:
            return
        for uuid in known:
            if uuid not in devices:
                self.time.drop_card(CardKey(node, uuid))
        for uuid, device in devices.items():
            self.time.put_card(CardKey(node, uuid), device.model)
        if devices:
            self._devices[node] = devices
        else:
            self._devices.pop(node, None)
        for entry in self._ledger.pods_on(node):
            counted = self._holders.get(entry.facts.uid)
            if counted is not None:
                self._charge(entry.facts.uid, counted[0], node)

    async def stream(self) -> AsyncIterator[bytes]:
        """The series in pieces, with a turn of the loop between them."""
        idle = sorted(self.time.idle().items())
        header, samples = GRANTED.header, self.time.samples()
        while piece := list(islice(samples, LINES)):
            yield header + GRANTED.lines(piece)
            header = b""
            await asyncio.sleep(0)
        if idle:
            yield IDLE.header + IDLE.lines(idle)

    # -- inside

    def _charge(self, uid: str, workload: Workload, node: str) -> None:
        entry = self._ledger.pod(uid)
        held = entry.holdings if entry is not None else {}
        _, _, before = self._holders.get(uid, (workload, node, {}))
        for uuid in before:
            if uuid not in held:
                self.time.set_share(CardKey(node, uuid), uid, share=0.0)
        devices = self._ledger.devices(node)
        for uuid, holding in held.items():
            device = devices[uuid]
            share = share_of(holding.use, device, self._ledger.rules.get(device.vendor))
            self.time.set_share(CardKey(node, uuid), uid, share=share, workload=workload)
        self._holders[uid] = (workload, node, held)

    def _release(self, uid: str) -> None:
        _, node, held = self._holders.pop(uid)
        for uuid in held:
            self.time.set_share(CardKey(node, uuid), uid, share=0.0)


def share_of(use: Use, device: Device, rules: Rules | None = None) -> float:
    """What a use takes of a card, 0 to 1: the larger part of memory and cores, or of slots if it has neither."""
    memory = use.memory / device.memory if device.memory > 0 else 0.0
    if rules is not None and rules.core_masks:
        cores = use.cores.bit_count() / max(1, device.cores.bit_count())
    else:
        cores = use.cores / device.cores if device.cores > 0 else 0.0
    slots = use.slots / device.slots if device.slots > 0 else 0.0
    return min(1.0, max(memory, cores) or slots)


def _granted(sample: Sample) -> str:
    (namespace, kind, name), model = sample.key
    return (
        f'{{namespace="{escaped(namespace)}",owner_kind="{escaped(kind)}",owner_name="{escaped(name)}",'
        f'device_type="{escaped(model)}"}} {sample.seconds}'
    )


GRANTED: Series[Sample] = Series(
    "tessera_gpu_granted_seconds_total",
    "Seconds of cards granted, each by the larger share of its memory and its cores.",
    _granted,
    kind="counter",
)
IDLE: Series[tuple[str, float]] = Series(
    "tessera_gpu_idle_seconds_total",
    "Seconds of cards not granted.",
    lambda one: f'{{device_type="{escaped(one[0])}"}} {one[1]}',
    kind="counter",
)
