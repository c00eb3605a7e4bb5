"""The sharing mode `mig`: a reservation becomes exactly that GPU instance, which goes when its pod ends.

    hand_over: check -> create -> CDI -> identity into the pod's annotation -> response   (a failure undoes everything)
    reconcile: adopt what live pods have -> release what no live pod has -> enable MIG on idle cards

Everything that touches hardware or records runs in one thread, one job at a time, so no intermediate state is visible.
Only cards of the fleet and instances of the agent are touched. Static MIG (`--mig-strategy`) is in `static_mig`.

Only entries of the annotation that belong to the assignment and still reserve the same place are completed; everything
else in it stays. After a conflict it is read again: a conflict never fails a pod.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TypeVar

import structlog

from tessera.core.model.devices import MIG
from tessera.host.call_thread import CallThread, CallTimeout
from tessera.host.cards import InventoryError, MigHardware, MigInstance
from tessera.kube.backoff import Backoff, retry_on_error
from tessera.kube.client import KubeClient
from tessera.kube.errors import KubeError, is_conflict
from tessera.kube.resources import PODS
from tessera.node.fleet import Fleet
from tessera.node.handover.assignments import Assignment, ObjectKey
from tessera.node.modes.base import AllocationRefused, ContainerResponse, SharingMode
from tessera.node.modes.device_lists import DeviceLists
from tessera.node.modes.mig.instances import (
    FoundInstances,
    GpuInstances,
    InstanceHolders,
    InstanceRequest,
    PlacementTaken,
    holders_of,
    requests_of,
)
from tessera.node.modes.mig.mode_switch import ModeSwitch, shared_without_mig
from tessera.node.modes.mig.records import MigRecords, boot_id
from tessera.node.settings import AgentSettings
from tessera.node.watched_value import WatchedValue
from tessera.wire.errors import WireError
from tessera.wire.keys import MIG_ALLOCATIONS
from tessera.wire.objects import Pod
from tessera.wire.pod_devices import MigAllocation, decode_mig_allocations, encode_mig_allocations

log = structlog.get_logger(__name__)

TRIES = 10
"""to complete an annotation, after conflicts and faults that pass"""
PAUSES = Backoff(initial=0.1, cap=2.0)

Write = Callable[[ObjectKey, Sequence[MigAllocation]], Awaitable[None]]
"""completes these reservations of a pod. Raises NotWritten"""

T = TypeVar("T")

HARDWARE_S = 60.0
"""for one job; an instance takes about a second, a card that hangs takes forever"""
WRITE_S = 20.0
"""for the annotation; kubelet waits for the response meanwhile"""
STOP_S = 10.0
"""for a job in progress when the agent ends"""
LEAVING_S = (0.1, 0.2, 0.4, 0.8, 1.6)
"""pauses while the instance of a pod that just ended still has the place"""


class NotWritten(Exception):
    """The reservations could not be completed; the text says why."""


class MigAnnotations:
    """Writes to one apiserver."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client

    async def write(self, pod: ObjectKey, completed: Sequence[MigAllocation]) -> None:
        try:
            await retry_on_error(lambda: self._try(pod, completed), backoff=PAUSES, is_retriable=_is_retriable)
        except KubeError as error:
            raise NotWritten(f"pod {pod}: {error}") from error

    async def _try(self, pod: ObjectKey, completed: Sequence[MigAllocation]) -> None:
        path = PODS.path(pod.namespace, pod.name)
        live = await self._client.get(path, Pod)
        if live.metadata.uid != pod.uid:
            raise NotWritten(f"pod {pod} is gone; another has its name")
        before = live.annotations.get(MIG_ALLOCATIONS, "")
        after = _completed(pod, before, completed)
        if after != before:
            metadata = {
                "uid": pod.uid,
                "resourceVersion": live.metadata.resource_version,
                "annotations": {MIG_ALLOCATIONS: after},
            }
            await self._client.patch(path, {"metadata": metadata})


def _completed(pod: ObjectKey, text: str, completed: Sequence[MigAllocation]) -> str:
    """Returns the annotation with these entries completed; unchanged if they already are."""
    try:
        entries = {(each.container, each.device): each for each in decode_mig_allocations(text)}
        known = dict(entries)
        for each in completed:
            entry = known.get((each.container, each.device))
            if entry is None or (entry.uuid, entry.slot) != (each.uuid, each.slot):
                raise NotWritten(
                    f"pod {pod} no longer reserves this MIG instance (container {each.container}, device {each.device})"
                )
            known[each.container, each.device] = each
        return text if known == entries else encode_mig_allocations(known.values())
    except WireError as error:
        raise NotWritten(f"pod {pod}: {error}") from error


def _is_retriable(error: KubeError, failures: int) -> bool:
    return failures < TRIES and (error.is_transient or is_conflict(error))


class Mig(SharingMode):
    def __init__(
        self,
        settings: AgentSettings,
        hardware: MigHardware,
        *,
        device_lists: DeviceLists,
        write: Write,
        known: Callable[[], Sequence[Assignment] | None] = lambda: (),
        calls: CallThread | None = None,
        clock: Callable[[], float] = time.monotonic,
        boot: str | None = None,
    ) -> None:
        """`known` returns the live assignments at start, None if they are unknown: a card that pods share without MIG
        must not be switched. `clock` is in seconds."""
        super().__init__()
        self._settings = settings
        self._device_lists = device_lists
        self._write = write
        self.instances = self.current_instances
        self._known = known
        self._calls = calls or CallThread("mig")
        self._clock = clock
        self._records = MigRecords(settings.paths.state, boot=boot_id() if boot is None else boot)
        self._instances = GpuInstances(hardware, self._records)
        self._switch = ModeSwitch(hardware, self._records)
        self._shared: frozenset[str] = frozenset()
        """cards on which live pods have slices without MIG"""
        self._holders = InstanceHolders(pods=None)
        self._in_progress: Counter[str] = Counter()
        """uids of pods whose instances are being created: they count as live in any case"""
        self._rounds = WatchedValue(0)
        """of reconciling that ended"""
        self._current: tuple[MigInstance, ...] = ()

    def current_instances(self) -> tuple[MigInstance, ...]:
        """Returns the instances of the agent that exist now."""
        return self._current

    async def start(self, fleet: Fleet) -> None:
        self._fleet = fleet
        assignments = self._known()
        if assignments is None:
            # The first reconcile knows the assignments and enables MIG.
            cards, shared = Fleet(), self._shared
        else:
            cards, shared = fleet.in_mode(MIG), shared_without_mig(assignments)
        await self._try_job("MIG cannot be enabled", lambda: self._enable_mig(cards, shared, self._clock()))
        await super().start(fleet)

    async def hand_over(self, assignment: Assignment, ids: Sequence[str], *, certain: bool = True) -> ContainerResponse:
        requests = requests_of(assignment, ids, fleet=self._fleet, settings=self._settings, certain=certain)
        with self._handing_over(assignment.pod.uid):
            found = await self._create_instances(requests)
            try:
                return await self._respond(assignment, found)
            except (AllocationRefused, NotWritten, OSError) as error:
                await self._try_job("MIG instances cannot be undone", lambda: self._instances.undo(found.created))
                if isinstance(error, AllocationRefused):
                    raise
                raise AllocationRefused(
                    f"the MIG instance was not handed over: {str(error) or 'no answer in time'}"
                ) from error

    async def reconcile(self, live: Sequence[Assignment], fleet: Fleet) -> None:
        """`live` must be current: an instance handed over after it was read would be destroyed."""
        assignments = tuple(live)
        self._fleet = fleet
        self._shared = shared = shared_without_mig(assignments)
        self._holders = holders = holders_of(assignments, besides=self._in_progress)
        now, own = self._clock(), fleet.in_mode(MIG)

        def job() -> None:
            self._records.catch_up()
            self._instances.adopt(assignments, fleet)
            self._instances.release(holders, cards=_uuids(fleet), now=now)
            self._enable_mig(own, shared, now)
            # Cards that had this mode before, while others still have it.
            self._switch.keep_restored(_uuids(fleet) - _uuids(own), now=now)

        if not fleet.problem:
            await self._try_job("MIG instances are not reconciled", job)
            self._rounds.set(self._rounds.value + 1)
        await super().reconcile(live, fleet)

    async def stop(self) -> None:
        await self._calls.close(patience=STOP_S)
        await super().stop()

    @contextmanager
    def _handing_over(self, uid: str) -> Iterator[None]:
        if self._holders.pods is not None:
            self._holders = replace(self._holders, pods=self._holders.pods | {uid})
        self._in_progress[uid] += 1
        try:
            yield
        finally:
            self._in_progress[uid] -= 1
            if not self._in_progress[uid]:
                del self._in_progress[uid]

    async def _create_instances(self, requests: Sequence[InstanceRequest]) -> FoundInstances:
        """Waits briefly for a place that is about to become free. Raises AllocationRefused."""
        pauses = iter(LEAVING_S)
        while True:
            rounds = self._rounds.value
            job = partial(self._create, requests, fleet=self._fleet, shared=self._shared, holders=self._holders)
            try:
                return await self._job(job)
            except PlacementTaken as error:
                pause = next(pauses, None)
                if pause is None:
                    raise AllocationRefused(str(error)) from error
            except (InventoryError, CallTimeout, OSError) as error:
                raise AllocationRefused(f"the MIG instance cannot be created: {error}") from error
            await self._rounds.other_than(rounds, within=pause)

    async def _respond(self, assignment: Assignment, found: FoundInstances) -> ContainerResponse:
        """Updates the CDI specs and the pod's annotation before the container gets its response."""
        await self.refresh()
        allocations = [each.allocation for each in found.instances]
        # A ResourceClaim says itself which instance it gets, and has no annotation to complete.
        if not assignment.of_resource_claim and any(each not in assignment.mig for each in allocations):
            async with asyncio.timeout(WRITE_S):
                await self._write(assignment.pod, allocations)
        uuids = [each.mig_uuid for each in allocations if each.mig_uuid]
        return self._device_lists.response(uuids, self._fleet, self._current)

    async def _try_job(self, complaint: str, work: Callable[[], None]) -> None:
        """Logs a failure; a later reconcile tries again."""
        try:
            await self._job(work)
        except (CallTimeout, OSError) as error:
            log.error(complaint, error=str(error))

    async def _job(self, work: Callable[[], T]) -> T:
        def job() -> T:
            self._records.load()
            try:
                return work()
            finally:
                self._current = tuple(each for record in self._records.all() if (each := record.instance))

        return await self._calls.call(job, deadline=HARDWARE_S)

    # -- in the thread

    def _create(
        self,
        requests: Sequence[InstanceRequest],
        *,
        fleet: Fleet,
        shared: Collection[str],
        holders: InstanceHolders,
    ) -> FoundInstances:
        for card in fleet:
            uuid = card.facts.uuid
            if any(each.allocation.uuid == uuid for each in requests):
                problem = self._switch.enable(card, shared=shared)
                if problem:
                    raise AllocationRefused(f"card {uuid} cannot be used for MIG: {problem}")
        return self._instances.create_all(requests, holders)

    def _enable_mig(self, fleet: Fleet, shared: Collection[str], now: float) -> None:
        for card in fleet:
            self._switch.keep_enabled(card, shared=shared, now=now)


def _uuids(fleet: Fleet) -> frozenset[str]:
    return frozenset(card.facts.uuid for card in fleet)
