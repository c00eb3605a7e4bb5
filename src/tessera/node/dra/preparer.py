"""Prepares and unprepares ResourceClaims: the same answers of the sharing modes as on the classic path, by CDI.

    prepare: read the claim -> already prepared: the same answer again
                            -> prepared with other devices: refused, whatever the claim says by now
                            -> fits on its cards (`arbiter`) -> hand over each request -> record -> CDI spec -> answer
    unprepare: CDI spec and record go; the reconciler then releases what the mode holds

Calls for one claim are served one after the other, those for different claims side by side. A call that kubelet gives
up is finished all the same. The claim is read from the API every time: its uid must be the one that kubelet names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

import structlog

from tessera.kube.client import KubeClient
from tessera.kube.errors import KubeError
from tessera.kube.resources import PODS, RESOURCE_CLAIMS
from tessera.node.arbiter import Arbiter
from tessera.node.dra.claim_reader import (
    RequestPart,
    allocated_here,
    assignments_of,
    by_request,
    find_conflict,
    other_claims,
    read_claim,
)
from tessera.node.dra.offers import Offer, offers
from tessera.node.dra.prepared_claims import PreparedClaim, PreparedClaims, cdi_device, cdi_kind, checked_uid
from tessera.node.fleet import Fleet
from tessera.node.handover.assignments import Holding, ObjectKey
from tessera.node.modes.base import AllocationRefused, ContainerResponse, SharingMode
from tessera.node.modes.cdi import CDI_VERSION, Document, edits
from tessera.node.settings import AgentSettings
from tessera.node.watched_value import WatchedValue
from tessera.wire.resource_api import AllocatedDevice, ClaimingPod, ResourceClaim

log = structlog.get_logger(__name__)

READ_S = 10.0
"""for the claim while kubelet waits"""

T = TypeVar("T")


class ClaimPreparer:
    """Serves kubelet once `recover` has returned."""

    def __init__(
        self,
        client: KubeClient,
        settings: AgentSettings,
        fleet: WatchedValue[Fleet],
        *,
        mode: SharingMode,
        arbiter: Arbiter,
        prepared: PreparedClaims,
        boot: str,
    ) -> None:
        """`boot` changes with every boot of the machine."""
        self._client = client
        self._settings = settings
        self._fleet = fleet
        self._mode = mode
        self._arbiter = arbiter
        self._prepared = prepared
        self._boot = boot
        self._turns: dict[str, asyncio.Task[Any]] = {}
        """the last call for each claim, by uid, while it runs"""

    async def prepare(self, key: ObjectKey) -> PreparedClaim:
        """Raises AllocationRefused."""
        return await self._in_turn(_checked(key), lambda: self._prepare(key))

    async def unprepare(self, key: ObjectKey) -> None:
        """Raises AllocationRefused."""
        await self._in_turn(_checked(key), lambda: self._unprepare(key))

    async def stop(self) -> None:
        """Ends calls in progress; kubelet repeats them."""
        tasks = list(self._turns.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _in_turn(self, uid: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        before = self._turns.get(uid)

        async def run() -> T:
            if before is not None:
                await asyncio.wait([before])
            return await work()

        task = asyncio.create_task(run(), name=f"claim-{uid}")
        self._turns[uid] = task
        task.add_done_callback(lambda done: self._turns.pop(uid) if self._turns.get(uid) is done else None)
        return await asyncio.shield(task)

    # -- prepare

    async def _prepare(self, key: ObjectKey) -> PreparedClaim:
        claim = await self._read(key)
        devices = by_request(allocated_here(claim, node=self._settings.node_name))
        known = self._prepared.get(key.uid)
        try:
            if known is not None and known.boot == self._boot:
                if known.devices != devices:
                    # Containers may use what they were given, whatever was written to the claim since.
                    raise AllocationRefused(
                        f"ResourceClaim {key} was allocated again before kubelet has unprepared it here"
                    )
                await self._prepared.restore_spec(known)
                return known
            return await self._hand_over(claim, key)
        except OSError as error:
            raise AllocationRefused(f"ResourceClaim {key} cannot be recorded: {error}") from error

    async def _hand_over(self, claim: ResourceClaim, key: ObjectKey) -> PreparedClaim:
        parts = read_claim(claim, self._offered(), node=self._settings.node_name)
        await self._check_consumers(claim, key, [part.name for part in parts])
        holding = Holding(key, assignments_of(parts))
        await self._arbiter.admit([holding], lambda: self._prepared.begin(holding))
        try:
            responses = {part.name: await self._respond(key, part) for part in parts}
            record = prepared_claim(key, parts, responses, boot=self._boot)
            await self._prepared.put(record)
        finally:
            # After success the record counts instead.
            self._prepared.abandon(key.uid)
        log.info("claim prepared", claim=str(key), devices=[each.device for each in record.devices])
        return record

    def _offered(self) -> dict[str, Offer]:
        """All devices of the node, by name."""
        return {each.name: each for each in offers(self._fleet.value, self._settings)}

    async def _respond(self, key: ObjectKey, part: RequestPart) -> ContainerResponse:
        if part.assignment is None:
            return self._mode.show_cards(part.cards)
        # One id per device, and of no other claim.
        ids = [f"{key.uid}/{part.name}/{number}" for number in range(len(part.devices))]
        return await self._mode.hand_over(part.assignment, ids)

    async def _read(self, key: ObjectKey) -> ResourceClaim:
        claim = await self._find(RESOURCE_CLAIMS.path(key.namespace, key.name), ResourceClaim)
        if claim is None:
            raise AllocationRefused(f"ResourceClaim {key} does not exist")
        if claim.metadata.uid != key.uid:
            raise AllocationRefused(f"ResourceClaim {key} is another one now: its uid is not {key.uid}")
        return claim

    async def _check_consumers(self, claim: ResourceClaim, key: ObjectKey, requests: Sequence[str]) -> None:
        """Refuses a claim that a container would use together with other requests for cards."""
        for consumer in claim.status.reserved_for or ():
            if consumer.resource != PODS.plural:
                continue
            pod = await self._find(PODS.path(key.namespace, consumer.name), ClaimingPod)
            if pod is None or pod.metadata.uid != consumer.uid:
                continue
            every: dict[str, Sequence[str]] = {key.name: requests}
            for name in other_claims(pod, key.name):
                other = await self._find(RESOURCE_CLAIMS.path(key.namespace, name), ResourceClaim)
                devices = () if other is None else allocated_here(other, node=self._settings.node_name)
                every[name] = [*dict.fromkeys(each.request_name for each in devices)]
            problem = find_conflict(pod, key.name, every)
            if problem:
                raise AllocationRefused(problem)

    async def _find(self, path: str, kind: type[T]) -> T | None:
        """None if there is no such object."""
        try:
            async with asyncio.timeout(READ_S):
                return await self._client.find(path, kind)
        except (KubeError, TimeoutError) as error:
            raise AllocationRefused(f"{path} cannot be read: {str(error) or 'no answer'}") from error

    async def _unprepare(self, key: ObjectKey) -> None:
        try:
            was_there = self._prepared.get(key.uid) is not None
            await self._prepared.drop(key.uid)
        except OSError as error:
            raise AllocationRefused(f"ResourceClaim {key} cannot be unprepared: {error}") from error
        if was_there:
            log.info("claim unprepared", claim=str(key))

    # -- at start

    async def recover(self) -> None:
        """Finds out which claims an earlier process prepared, and removes what is left of claims of earlier boots.

        Raises AllocationRefused, KubeError or OSError; then nothing is known, and nothing may be released."""
        try:
            await self._prepared.load()
        except ValueError as error:
            aside = await self._prepared.set_aside()
            log.error("the record of prepared claims is unreadable", moved_to=str(aside), error=str(error))
            await self._find_again()
        for record in self._prepared.all():
            if record.boot == self._boot:
                # Until kubelet unprepares it, containers may use it, whether or not the claim still exists.
                await self._prepared.restore_spec(record)
            elif await self._is_gone(record):
                log.info("a claim is gone; what was prepared for it is removed", claim=str(record.key))
                await self._prepared.drop(record.key.uid)
        for uid in await self._prepared.spec_uids():
            if self._prepared.get(uid) is None:
                await self._prepared.drop(uid)
        self._prepared.open()

    async def _is_gone(self, record: PreparedClaim) -> bool:
        key = record.key
        claim = await self._find(RESOURCE_CLAIMS.path(key.namespace, key.name), ResourceClaim)
        if claim is None or claim.metadata.uid != key.uid:
            return True
        return not allocated_here(claim, node=self._settings.node_name)

    async def _find_again(self) -> None:
        """The record is lost: a claim that the API shows on this node and that has a CDI spec was prepared."""
        offered = self._offered()
        listed = await self._client.list(RESOURCE_CLAIMS.path(), ResourceClaim)
        claims = {each.metadata.uid: each for each in listed.items}
        for uid in await self._prepared.spec_uids():
            spec, claim = await self._prepared.read_spec(uid), claims.get(uid)
            if spec is None or claim is None or not allocated_here(claim, node=self._settings.node_name):
                continue
            key = ObjectKey(claim.metadata.namespace, claim.metadata.name, uid)
            try:
                parts = read_claim(claim, offered, node=self._settings.node_name)
            except AllocationRefused as refusal:
                log.error("a prepared claim cannot be recognised", claim=str(key), problem=str(refusal))
                continue
            named = {device.get("name") for device in spec.get("devices", ())}
            ids: dict[str, tuple[str, ...]] = {
                part.name: (_qualified(uid, part.name),) if cdi_device(uid, part.name) in named else ()
                for part in parts
            }
            await self._prepared.put(_record(key, parts, ids, spec, boot=self._boot))


def _checked(key: ObjectKey) -> str:
    try:
        return checked_uid(key.uid)
    except ValueError as error:
        raise AllocationRefused(str(error)) from error


def prepared_claim(
    key: ObjectKey, parts: Sequence[RequestPart], responses: Mapping[str, ContainerResponse], *, boot: str
) -> PreparedClaim:
    """The record of a claim whose requests got these responses, by name."""
    devices: list[Document] = []
    ids: dict[str, tuple[str, ...]] = {}
    for name, response in responses.items():
        changes = edits(response.devices, response.mounts, response.env)
        own: tuple[str, ...] = ()
        if changes:
            # A CDI device that changes nothing is refused by runtimes.
            devices.append({"name": cdi_device(key.uid, name), "containerEdits": changes})
            own = (_qualified(key.uid, name),)
        # The claim's own device comes last: of equal variables, the last one counts.
        ids[name] = (*response.cdi_devices, *own)
    spec = {"cdiVersion": CDI_VERSION, "kind": cdi_kind(), "devices": devices} if devices else None
    return _record(key, parts, ids, spec, boot=boot)


def _record(
    key: ObjectKey,
    parts: Sequence[RequestPart],
    ids: dict[str, tuple[str, ...]],
    spec: dict[str, Any] | None,
    *,
    boot: str,
) -> PreparedClaim:
    return PreparedClaim(
        key=key,
        boot=boot,
        devices=_in_order(parts),
        assignments=assignments_of(parts),
        cdi_devices=ids,
        spec=spec,
    )


def _in_order(parts: Sequence[RequestPart]) -> tuple[AllocatedDevice, ...]:
    return tuple(device for part in parts for device in part.devices)


def _qualified(uid: str, request: str) -> str:
    return f"{cdi_kind()}={cdi_device(uid, request)}"
