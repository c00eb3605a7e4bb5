"""The identity of instances in their pod's annotation, against the embedded apiserver."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest

from tessera.kube.access import Access
from tessera.kube.client import KubeClient
from tessera.kube.errors import AccessError
from tessera.kube.resources import PODS
from tessera.node.handover.assignments import ObjectKey
from tessera.node.modes.mig.mode import TRIES, MigAnnotations, NotWritten
from tessera.wire.keys import MIG_ALLOCATIONS
from tessera.wire.pod_devices import MigAllocation, decode_mig_allocations, encode_mig_allocations
from tessera_lab.sandbox.api.faults import Drop, Fail, Fault, Hold, LoseAnswer
from tessera_lab.sandbox.api.server import ApiServer
from tests.support.cards import HALF, ONE
from tests.support.event_loops import in_fake_time

PATH = PODS.path("default", "p")
OTHER = replace(HALF, container=1)
DONE = replace(ONE, mig_uuid="MIG-1", gpu_instance=0, compute_instance=0)


@dataclass
class World:
    """An apiserver with one pod."""

    server: ApiServer
    client: KubeClient
    pod: ObjectKey

    async def write(self, *allocations: MigAllocation) -> None:
        await MigAnnotations(self.client).write(self.pod, allocations)

    async def annotations(self) -> dict[str, str]:
        found: dict[str, Any] = await self.client.get(PATH, dict[str, Any])
        annotations: dict[str, str] = found["metadata"].get("annotations", {})
        return annotations

    async def reservations(self) -> tuple[MigAllocation, ...]:
        return decode_mig_allocations((await self.annotations())[MIG_ALLOCATIONS])

    async def annotate(self, **annotations: str) -> None:
        await self.client.patch(PATH, {"metadata": {"annotations": annotations}})


@asynccontextmanager
async def world(text: str | None = None) -> AsyncIterator[World]:
    annotations = {MIG_ALLOCATIONS: encode_mig_allocations([ONE, OTHER]) if text is None else text}
    pod = {
        "metadata": {"name": "p", "annotations": annotations},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    }
    async with ApiServer() as server, KubeClient(Access(server.url)) as client:
        created: dict[str, Any] = await client.create(PODS.path("default"), pod, dict[str, Any])
        yield World(server, client, ObjectKey("default", "p", created["metadata"]["uid"]))


@in_fake_time
async def test_the_entries_of_a_claim_are_completed_and_the_others_stay() -> None:
    async with world() as here:
        await here.write(DONE)
        assert await here.reservations() == (DONE, OTHER)


@in_fake_time
async def test_a_complete_annotation_is_not_written_again() -> None:
    async with world() as here:
        await here.write(DONE)
        here.server.faults.next(Fail(500), method="PATCH", times=TRIES)
        await here.write(DONE)


@in_fake_time
async def test_a_pod_that_changes_meanwhile_keeps_both_changes() -> None:
    """Upstream fails the pod on the conflict."""
    async with world() as here:
        hold = Hold(asyncio.Event(), asyncio.Event())
        here.server.faults.next(hold, method="PATCH")
        writing = asyncio.create_task(here.write(DONE))
        await hold.reached.wait()
        other = replace(OTHER, mig_uuid="MIG-2", gpu_instance=1, compute_instance=0)
        await here.annotate(**{MIG_ALLOCATIONS: encode_mig_allocations([ONE, other]), "seen": "yes"})
        hold.release.set()
        await writing
        assert await here.reservations() == (DONE, other)
        assert (await here.annotations())["seen"] == "yes"


@pytest.mark.parametrize("method", ["GET", "PATCH"])
@pytest.mark.parametrize(
    "fault", [Fail(409), Fail(429, retry_after_s=7), Fail(500), Fail(503), Drop(), LoseAnswer()], ids=str
)
@in_fake_time
async def test_what_passes_is_tried_again(method: str, fault: Fault) -> None:
    async with world() as here:
        here.server.faults.next(fault, method=method, times=3)
        await here.write(DONE)
        assert await here.reservations() == (DONE, OTHER)


@in_fake_time
async def test_a_server_that_asks_for_patience_gets_it() -> None:
    async with world() as here:
        here.server.faults.next(Fail(429, retry_after_s=7), method="GET")
        await here.write(DONE)
        assert asyncio.get_running_loop().time() >= 7


@in_fake_time
async def test_a_server_that_asks_for_endless_patience_holds_no_container_up_for_long() -> None:
    async with world() as here:
        here.server.faults.next(Fail(429, retry_after_s=2**31), method="GET")
        await here.write(DONE)
        assert asyncio.get_running_loop().time() <= 11


@pytest.mark.parametrize(("fault", "tries"), [(Fail(500), TRIES), (Drop(), TRIES), (Fail(403), 1), (Fail(422), 1)])
@in_fake_time
async def test_what_does_not_pass_is_given_up(fault: Fault, tries: int) -> None:
    async with world() as here:
        here.server.faults.next(fault, method="PATCH", times=tries)
        with pytest.raises(NotWritten, match="pod default/p: "):
            await here.write(DONE)
        assert here.server.faults.take("PATCH", PATH) is None


@in_fake_time
async def test_no_access_is_no_reason_to_try_again() -> None:
    async def refuse() -> dict[str, str]:
        raise AccessError("the token file is gone")

    async with world() as here:
        access = Access(here.server.url)
        access.headers = refuse  # type: ignore[method-assign]
        async with KubeClient(access) as client:
            with pytest.raises(NotWritten, match="the token file is gone"):
                await MigAnnotations(client).write(here.pod, [DONE])


@in_fake_time
async def test_a_pod_that_is_gone_or_another_is_not_written_to() -> None:
    async with world() as here:
        with pytest.raises(NotWritten, match="another has its name"):
            await MigAnnotations(here.client).write(here.pod._replace(uid="earlier"), [DONE])
        with pytest.raises(NotWritten, match="404"):
            await MigAnnotations(here.client).write(here.pod._replace(name="q"), [DONE])
        assert await here.reservations() == (ONE, OTHER)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no longer reserves this MIG instance"),
        (encode_mig_allocations([OTHER]), "container 0, device 0"),
        (encode_mig_allocations([replace(ONE, uuid="GPU-other")]), "no longer reserves"),
        (encode_mig_allocations([replace(ONE, slot=HALF.slot)]), "no longer reserves"),
        ("{", "not valid JSON"),
        ("[{}]", "incomplete"),
    ],
    ids=["empty", "missing", "other card", "other place", "broken", "incomplete"],
)
@in_fake_time
async def test_a_reservation_that_is_another_by_now_is_left_as_it_is(text: str, problem: str) -> None:
    async with world(text) as here:
        with pytest.raises(NotWritten, match=problem):
            await here.write(DONE)
        assert (await here.annotations())[MIG_ALLOCATIONS] == text
