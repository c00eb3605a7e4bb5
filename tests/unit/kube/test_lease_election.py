"""Elections on the embedded API server; the clock is moved by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from tessera.kube.access import Access
from tessera.kube.client import KubeClient
from tessera.kube.errors import ApiError
from tessera.kube.lease_election import LeaseElection, LeaseLost
from tessera.kube.leases import LONGEST_S
from tessera.kube.resources import LEASES
from tessera.lab.sandbox.api.server import ApiServer, ServerOptions
from tests.support.builders import NOW

PATH = LEASES.path("default", "defrag")
DURATION_S = 30.0


@dataclass
class Contest:
    """One Lease, and processes that want it."""

    client: KubeClient
    time: float = 0.0

    def process(self, identity: str, *, ahead: float = 0.0) -> LeaseElection:
        """`ahead`: how far its clocks are ahead of the others'."""
        return LeaseElection(
            self.client,
            namespace="default",
            name="defrag",
            identity=identity,
            duration_s=DURATION_S,
            clock=lambda: self.time + ahead,
            now=lambda: NOW + self.time + ahead,
        )

    async def lease(self) -> dict[str, Any]:
        return await self.client.get(PATH, dict[str, Any])

    @contextmanager
    def seen_before(self, lease: dict[str, Any]) -> Iterator[None]:
        """Reads show this state of the lease."""

        async def stale(_path: str, kind: Any) -> Any:
            return msgspec.convert(lease, kind)

        get, self.client.get = self.client.get, stale  # type: ignore[method-assign, assignment]
        yield
        self.client.get = get  # type: ignore[method-assign]


@asynccontextmanager
async def contest() -> AsyncIterator[Contest]:
    async with ApiServer(ServerOptions(seed=1)) as server, KubeClient(Access(server.url)) as client:
        yield Contest(client)


async def test_the_first_process_holds_the_lease_while_it_renews_it() -> None:
    async with contest() as on:
        one, two = on.process("one"), on.process("two", ahead=10**6)
        assert await one.acquire()
        for on.time in (5.0, 10.0, 40.0, 45.0, 60.0):
            assert await one.acquire()
            assert not await two.acquire()
            assert (one.is_held(), two.is_held()) == (True, False)


async def test_a_lease_that_is_not_renewed_is_taken_after_its_duration_and_not_before() -> None:
    async with contest() as on:
        one, two, three = (on.process(name) for name in ("one", "two", "three"))
        await one.acquire()
        on.time = 5.0
        assert not await two.acquire()
        on.time = 21.0
        assert not one.is_held(), "the holder gives up first"
        on.time = 34.0
        assert not await two.acquire()
        on.time = 35.0
        assert await two.acquire()
        assert not await three.acquire()
        assert not await one.acquire()
        assert (await on.lease())["spec"]["leaseTransitions"] == 1


async def test_of_two_that_take_a_free_lease_at_the_same_time_one_gets_it() -> None:
    async with contest() as on:
        one, two = on.process("one"), on.process("two")
        await one.acquire()
        await one.release()
        free = await on.lease()
        assert await two.acquire()
        with on.seen_before(free):
            assert not await one.acquire()
        assert (two.is_held(), one.is_held()) == (True, False)


async def test_a_lease_that_another_took_while_it_was_renewed_stays_with_the_other() -> None:
    async with contest() as on:
        one, two = on.process("one"), on.process("two")
        await one.acquire()
        own = await on.lease()
        assert not await two.acquire()
        on.time = 30.0
        assert await two.acquire()
        taken = await on.lease()
        with on.seen_before(own):
            assert not await one.acquire()
        assert (two.is_held(), one.is_held()) == (True, False)
        assert await on.lease() == taken


async def test_a_holder_that_reads_the_name_of_another_gives_up_at_once() -> None:
    async with contest() as on:
        one = on.process("one")
        await one.acquire()
        lease = await on.lease()
        lease["spec"]["holderIdentity"] = "two"
        await on.client.replace(PATH, lease)
        assert one.is_held()
        assert not await one.acquire()
        assert not one.is_held()


async def test_a_lease_with_absurd_numbers_is_taken_all_the_same() -> None:
    async with contest() as on:
        one = on.process("one")
        spec = {"holderIdentity": "thief", "leaseDurationSeconds": 2**31 - 1, "leaseTransitions": 2**31 - 1}
        await on.client.create(LEASES.path("default"), {"metadata": {"name": "defrag"}, "spec": spec})
        assert not await one.acquire()
        on.time = LONGEST_S - 1.0
        assert not await one.acquire()
        on.time = LONGEST_S + 1.0
        assert await one.acquire()
        assert (await on.lease())["spec"].get("leaseTransitions", 0) == 0, "no apiserver takes a larger number"


async def test_a_released_lease_is_free_at_once() -> None:
    async with contest() as on:
        one, two = on.process("one"), on.process("two")
        await one.acquire()
        await one.release()
        assert not one.is_held()
        assert await two.acquire()


async def test_annotations_outlive_the_holder() -> None:
    async with contest() as on:
        one, two = on.process("one"), on.process("two")
        await one.acquire()
        await one.annotate({"a": "1"})
        await one.annotate({"b": "2"})
        await one.acquire()
        await one.release()
        await two.acquire()
        assert dict(two.annotations) == {"a": "1", "b": "2"}


async def test_a_process_that_has_lost_the_lease_writes_nothing_even_if_it_does_not_know() -> None:
    async with contest() as on:
        one, two = on.process("one", ahead=0.0), on.process("two")
        await one.acquire()
        await one.annotate({"a": "1"})
        lease = await on.lease()
        lease["spec"]["holderIdentity"] = "two"
        await on.client.replace(PATH, lease)
        assert one.is_held(), "it believes so"
        with pytest.raises(LeaseLost):
            await one.annotate({"a": "2"})
        assert not one.is_held()
        assert (await on.lease())["metadata"]["annotations"] == {"a": "1"}
        assert await two.acquire()
        on.time = 25.0
        with pytest.raises(LeaseLost):
            await two.annotate({"a": "2"})


async def test_an_apiserver_that_does_not_answer_is_a_fault_not_a_loss() -> None:
    async with contest() as on:
        one = on.process("one")
        await one.acquire()

        async def broken(*_args: Any, **_more: Any) -> Any:
            raise ApiError(status=503)

        on.client.get = broken  # type: ignore[method-assign]
        with pytest.raises(ApiError):
            await one.acquire()
        assert one.is_held(), "until its time is over"
        on.time = 21.0
        assert not one.is_held()
