"""One keeper of certificates, several of them at once, and their loop, on a cluster in memory."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import cast

import pytest

from tessera.kube.errors import ApiError, Unreachable
from tessera.scheduler.certificates.authority import (
    AUTHORITY_S,
    DAY,
    LEAF_S,
    OVERLAP_S,
    Pair,
    facts_of,
    make_authority,
    signed_by,
    split_bundle,
)
from tessera.scheduler.certificates.serving_context import ServingContext
from tessera.scheduler.certificates.tls import (
    ATTEMPTS,
    CHECK_S,
    QUIET_S,
    SETTLE_S,
    CertificateRotator,
    CertificateStore,
    Contended,
    StoredSecret,
    StoredWebhook,
)
from tests.support.event_loops import in_fake_time
from tests.support.network import NAMES, NOW


@dataclass
class FakeStore(CertificateStore):
    """A Secret and a webhook configuration with versions; every call takes some turns of the loop."""

    secret: dict[str, bytes] | None = None
    bundles: list[bytes] | None = field(default_factory=lambda: [b""])
    rng: random.Random = field(default_factory=lambda: random.Random(0))
    faults: list[Exception] = field(default_factory=list)
    versions: dict[str, int] = field(default_factory=lambda: {"secret": 0, "webhook": 0})
    patches: int = 0
    writes: int = 0
    calls: int = 0
    replicas: list[Replica] = field(default_factory=list)

    async def _turn(self) -> None:
        self.calls += 1
        for _ in range(self.rng.randrange(4)):
            await asyncio.sleep(0)
        if self.faults:
            raise self.faults.pop(0)

    async def read_secret(self) -> StoredSecret | None:
        await self._turn()
        if self.secret is None:
            return None
        return StoredSecret(dict(self.secret), {"version": self.versions["secret"]})

    async def create_secret(self, data: Mapping[str, bytes]) -> bool:
        await self._turn()
        if self.secret is not None:
            return False
        return self._write(data)

    async def replace_secret(self, old: StoredSecret, data: Mapping[str, bytes]) -> bool:
        await self._turn()
        if self.secret is None or old.raw["version"] != self.versions["secret"]:
            return False
        return self._write(data)

    def _write(self, data: Mapping[str, bytes]) -> bool:
        self.secret = {**(self.secret or {}), **data}
        self.versions["secret"] += 1
        self.writes += 1
        return True

    async def read_webhook(self) -> StoredWebhook | None:
        await self._turn()
        if self.bundles is None:
            return None
        return StoredWebhook(tuple(self.bundles), {"version": self.versions["webhook"]})

    async def patch_webhook(self, old: StoredWebhook, bundle: bytes) -> bool:
        await self._turn()
        if self.bundles is None or old.raw["version"] != self.versions["webhook"]:
            return False
        self.bundles = [bundle for _ in self.bundles]
        self.versions["webhook"] += 1
        self.patches += 1
        for replica in self.replicas:
            replica.check()
        return True

    def disturb_webhook(self, bundle: bytes) -> None:
        assert self.bundles is not None
        self.bundles = [bundle for _ in self.bundles]
        self.versions["webhook"] += 1


@dataclass
class Replica(ServingContext):
    """Where one keeper serves: a certificate is never shown that the configuration does not cover."""

    store: FakeStore
    served: Pair | None = None
    expiry: float = 0.0

    def serve(self, pair: Pair) -> None:
        self.served = pair
        self.check()

    def check(self) -> None:
        if self.served is not None and self.store.bundles is not None:
            for bundle in self.store.bundles:
                assert any(signed_by(self.served.certificate, one) for one in split_bundle(bundle))


class Clock:
    def __init__(self, now: float = NOW) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def replica(store: FakeStore, clock: Clock, names: frozenset[str] = NAMES) -> tuple[Replica, CertificateRotator]:
    serving = Replica(store)
    store.replicas.append(serving)

    def note(expiry: float) -> None:
        serving.expiry = expiry

    return serving, CertificateRotator(store, serving, names=names, now=clock, on_served=note)


async def test_the_first_round_makes_stores_announces_and_serves_a_certificate() -> None:
    store = FakeStore()
    serving, keeper = replica(store, Clock())
    assert await keeper.check() == CHECK_S
    assert store.secret is not None
    assert store.bundles == [store.secret["ca.crt"]]
    assert serving.served == Pair(store.secret["tls.crt"], store.secret["tls.key"])
    assert serving.expiry == NOW + LEAF_S


async def test_while_all_is_well_nothing_is_written() -> None:
    store = FakeStore()
    _, keeper = replica(store, Clock())
    await keeper.check()
    await keeper.check()
    assert (store.writes, store.patches) == (1, 1)


async def test_a_leaf_that_ends_is_replaced_in_use() -> None:
    store, clock = FakeStore(), Clock()
    serving, keeper = replica(store, clock)
    await keeper.check()
    first = serving.served
    clock.now += LEAF_S * 0.7
    assert await keeper.check() == CHECK_S
    assert serving.served != first
    assert serving.expiry == clock.now + LEAF_S
    assert (store.writes, store.patches) == (2, 1)


@in_fake_time
async def test_a_certificate_of_a_new_authority_is_shown_only_when_apiservers_had_time_to_hear_of_it() -> None:
    store, clock = FakeStore(), Clock()
    serving, keeper = replica(store, clock)
    await keeper.check()
    first = serving.served
    clock.now += AUTHORITY_S * 0.7
    assert 0 < await keeper.check() <= SETTLE_S
    assert store.bundles is not None
    assert len(split_bundle(store.bundles[0])) == 2
    assert serving.served == first
    await asyncio.sleep(SETTLE_S)
    assert await keeper.check() == CHECK_S
    assert serving.served not in (None, first)
    clock.now += OVERLAP_S + 1
    await keeper.check()
    assert len(split_bundle(store.bundles[0])) == 1


async def test_a_certificate_is_not_served_when_the_patch_of_its_bundle_lost_a_race() -> None:
    store = FakeStore()
    serving, keeper = replica(store, Clock())
    patch = store.patch_webhook

    async def lost_once(old: StoredWebhook, bundle: bytes) -> bool:
        store.patch_webhook = patch  # type: ignore[method-assign]
        store.disturb_webhook(make_authority(now=NOW).certificate)
        return await patch(old, bundle)

    store.patch_webhook = lost_once  # type: ignore[method-assign]
    await keeper.check()
    assert serving.served is not None
    assert store.bundles == [cast("dict[str, bytes]", store.secret)["ca.crt"]]


@pytest.mark.parametrize("calls", range(1, 3))
@in_fake_time
async def test_a_slow_replica_never_undoes_what_a_quick_one_did_between_two_of_its_calls(calls: int) -> None:
    store, early, late = FakeStore(), Clock(), Clock()
    quick, quick_keeper = replica(store, late)
    slow, slow_keeper = replica(store, early)
    await quick_keeper.check()
    # To one of them the authority is already too old, to the other not yet.
    authority = facts_of(cast("dict[str, bytes]", store.secret)["ca.crt"])
    due = authority.not_after - (authority.not_after - authority.not_before) / 3
    early.now = late.now = due - 30 * DAY
    await slow_keeper.check()
    await quick_keeper.check()
    early.now, late.now = due - 60, due + 60
    turn = store._turn
    left = calls

    async def rotate_in_between() -> None:
        nonlocal left
        left -= 1
        await turn()
        if left == 0:
            await quick_keeper.check()
            await asyncio.sleep(SETTLE_S)
            await quick_keeper.check()

    store._turn = rotate_in_between  # type: ignore[method-assign]
    await slow_keeper.check()
    await asyncio.sleep(SETTLE_S)
    await slow_keeper.check()
    assert quick.served == slow.served
    assert store.writes == 3


@pytest.mark.parametrize("damage", [b"", b"nonsense", make_authority(now=NOW).certificate])
async def test_a_foreign_change_of_the_bundle_is_put_right(damage: bytes) -> None:
    store = FakeStore(bundles=[b"", b""])
    _, keeper = replica(store, Clock())
    await keeper.check()
    store.disturb_webhook(damage)
    await keeper.check()
    assert store.secret is not None
    assert store.bundles == [store.secret["ca.crt"]] * 2
    assert store.patches == 2


@in_fake_time
async def test_a_deleted_secret_is_made_anew_without_a_gap_in_trust() -> None:
    store = FakeStore()
    serving, keeper = replica(store, Clock())
    await keeper.check()
    first = serving.served
    store.secret = None
    store.disturb_webhook(b"")
    await keeper.check()
    assert serving.served == first
    serving.check()
    await asyncio.sleep(SETTLE_S)
    await keeper.check()
    assert serving.served != first


async def test_without_a_webhook_configuration_the_certificate_is_served_and_one_that_appears_is_completed() -> None:
    store = FakeStore(bundles=None)
    serving, keeper = replica(store, Clock())
    await keeper.check()
    assert serving.served is not None
    store.bundles = [b""]
    await keeper.check()
    assert store.bundles == [cast("dict[str, bytes]", store.secret)["ca.crt"]]


async def test_nothing_is_served_while_the_bundle_cannot_be_written() -> None:
    store = FakeStore()
    await replica(store, Clock())[1].check()
    store.disturb_webhook(b"")
    serving, keeper = replica(store, Clock())

    async def refused(old: StoredWebhook, bundle: bytes) -> bool:
        raise ApiError(status=403, reason="Forbidden")

    store.replicas.clear()
    store.patch_webhook = refused  # type: ignore[method-assign]
    with pytest.raises(ApiError):
        await keeper.check()
    assert serving.served is None


async def test_a_round_that_loses_every_race_gives_up_until_the_next() -> None:
    store = FakeStore()

    async def lost(data: Mapping[str, bytes]) -> bool:
        return False

    store.create_secret = lost  # type: ignore[method-assign]
    serving, keeper = replica(store, Clock())
    with pytest.raises(Contended):
        await keeper.check()
    assert store.calls == 2 * ATTEMPTS
    assert serving.served is None


@pytest.mark.no_cover
@pytest.mark.parametrize("seed", range(25))
@in_fake_time
async def test_replicas_that_start_at_once_use_one_certificate_and_never_show_what_is_not_trusted(seed: int) -> None:
    store, clock = FakeStore(rng=random.Random(seed)), Clock()
    replicas = [replica(store, clock) for _ in range(4)]

    async def everybody() -> None:
        done = await asyncio.gather(*(keeper.check() for _, keeper in replicas), return_exceptions=True)
        assert all(isinstance(one, float | Contended) for one in done), done

    await everybody()
    await everybody()
    assert len({one.served for one, _ in replicas}) == 1
    assert store.writes == 1
    clock.now += LEAF_S * 0.7
    await everybody()
    await everybody()
    assert len({one.served for one, _ in replicas}) == 1
    assert store.writes == 2
    clock.now += AUTHORITY_S * 0.5
    await everybody()
    store.disturb_webhook(store.bundles[0] if store.bundles else b"")
    await asyncio.sleep(SETTLE_S + 1)
    await everybody()
    await everybody()
    assert len({one.served for one, _ in replicas}) == 1
    assert store.writes == 3
    assert store.secret is not None
    assert store.bundles == [store.secret["ca.crt"]]
    clock.now += OVERLAP_S + 1
    await everybody()
    await everybody()
    assert len(split_bundle(store.secret["ca.crt"])) == 1


# -- the loop


@contextlib.asynccontextmanager
async def running(keeper: CertificateRotator) -> AsyncIterator[None]:
    task = asyncio.create_task(keeper.run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@in_fake_time
async def test_the_loop_checks_once_a_minute() -> None:
    store = FakeStore(rng=random.Random(0))
    serving, keeper = replica(store, Clock())
    assert keeper.problem
    async with running(keeper):
        await asyncio.sleep(1)
        assert keeper.problem == ""
        assert serving.served is not None
        before = store.calls
        await asyncio.sleep(10 * CHECK_S)
        assert store.calls - before == 2 * 10


@in_fake_time
async def test_a_poke_makes_it_check_soon_but_never_in_a_hurry() -> None:
    store = FakeStore()
    _, keeper = replica(store, Clock())
    async with running(keeper):
        await asyncio.sleep(QUIET_S + 1)
        before = store.calls
        keeper.poke()
        await asyncio.sleep(0.1)
        assert store.calls - before == 2
        for _ in range(1000):
            keeper.poke()
            await asyncio.sleep(0.01)
        assert store.calls - before <= 2 * 4


@in_fake_time
async def test_faults_are_reported_and_tried_again_with_growing_pauses() -> None:
    fault = Unreachable("no route", maybe_done=False)
    store = FakeStore(faults=[fault] * 200)
    serving, keeper = replica(store, Clock())
    async with running(keeper):
        await asyncio.sleep(1)
        assert keeper.problem == "no route"
        await asyncio.sleep(600)
        assert 10 <= store.calls <= 200
        store.faults.clear()
        await asyncio.sleep(61)
        assert keeper.problem == ""
        assert serving.served is not None
