"""Self-managed certificates: the plan, one keeper, several keepers, and real TLS connections."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest
import trustme
from aiohttp import web

from tessera.kube.client import KubeClient
from tessera.kube.errors import ApiError, Unreachable
from tessera.scheduler.authority import (
    AUTHORITY_SECONDS,
    DAY,
    LEAF_SECONDS,
    BadCertificate,
    Pair,
    facts_of,
    make_authority,
    make_leaf,
    signed_by,
    split_bundle,
)
from tessera.scheduler.certificate_files import Bad, CertificateFiles, Loaded, Unchanged
from tessera.scheduler.certificates import (
    ATTEMPTS,
    CHECK_SECONDS,
    QUIET_SECONDS,
    SETTLE_SECONDS,
    CertificateKeeper,
    Contended,
)
from tessera.scheduler.renewing import (
    MAX_NAMES,
    OVERLAP_SECONDS,
    Keep,
    Material,
    Renew,
    Trim,
    plan,
    renewed,
    service_names,
)
from tessera.scheduler.secret_store import KubeStore, StoredSecret, StoredWebhook
from tessera.scheduler.serving_context import ServingContext
from tessera.scheduler.settings import SelfManaged

NOW = 1_700_000_000.0
NAMES = service_names("tessera", "gpu")


def fresh(now: float = NOW, names: frozenset[str] = NAMES) -> Material:
    step = plan(None, now=now, names=names)
    assert isinstance(step, Renew)
    return renewed(step, now=now, names=names)


def kept(data: Mapping[str, bytes], now: float = NOW, names: frozenset[str] = NAMES) -> Keep:
    step = plan(data, now=now, names=names)
    assert isinstance(step, Keep), step
    return step


def renewal(data: Mapping[str, bytes] | None, now: float = NOW, names: frozenset[str] = NAMES, **other: Any) -> Renew:
    step = plan(data, now=now, names=names, **other)
    assert isinstance(step, Renew), step
    return step


# -- the plan


def test_the_service_is_known_by_its_dns_name_and_the_loopback() -> None:
    assert service_names("s", "n", ["gpu.example"]) == {
        "s.n.svc",
        "s.n.svc.cluster.local",
        "localhost",
        "127.0.0.1",
        "::1",
        "gpu.example",
    }


def test_a_missing_secret_is_made_and_then_kept() -> None:
    assert renewal(None).reason == "there is no certificate yet"
    made = fresh()
    step = kept(made.data)
    assert step.material == made
    assert step.expiry == NOW + LEAF_SECONDS
    assert set(made.data) == {"tls.crt", "tls.key", "ca.crt", "ca.key"}
    assert signed_by(made.data["tls.crt"], step.issuer)


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        (0.0, ""),
        (LEAF_SECONDS * 0.66, ""),
        (LEAF_SECONDS * 0.67, "the certificate ends soon"),
        (LEAF_SECONDS + 1, "the certificate is not valid now"),
        (-2 * DAY, "the certificate is not valid now"),
    ],
)
def test_a_leaf_is_renewed_by_the_same_authority_when_a_third_of_its_life_is_left(after: float, reason: str) -> None:
    made = fresh()
    if not reason:
        kept(made.data, NOW + after)
        return
    step = renewal(made.data, NOW + after)
    assert step.reason == reason
    assert step.authority == Pair(made.authorities[0], made.authority_key)
    again = renewed(step, now=NOW + after, names=NAMES)
    assert again.authorities == made.authorities
    assert again.leaf != made.leaf
    kept(again.data, NOW + after)


def test_an_authority_is_replaced_when_a_third_of_its_life_is_left_and_both_are_trusted() -> None:
    authority = make_authority(now=NOW)
    late = NOW + AUTHORITY_SECONDS * 0.67
    old = Material(make_leaf(authority, NAMES, now=late), (authority.certificate,), authority.key)
    step = renewal(old.data, late)
    assert (step.reason, step.authority) == ("the authority ends soon", None)
    new = renewed(step, now=late, names=NAMES)
    assert new.authorities[1:] == old.authorities
    assert signed_by(new.leaf.certificate, new.authorities[0])
    assert kept(new.data, late).issuer == new.authorities[0]


def test_the_old_authority_leaves_the_bundle_when_everybody_has_moved() -> None:
    old, new = fresh(), fresh()
    both = replace(new, authorities=(*new.authorities, *old.authorities))
    kept(both.data, NOW + OVERLAP_SECONDS - 1)
    step = plan(both.data, now=NOW + OVERLAP_SECONDS + 1, names=NAMES)
    assert isinstance(step, Trim)
    assert step.material == new
    kept(step.material.data, NOW + OVERLAP_SECONDS + 1)


@pytest.mark.parametrize(("days", "authorities"), [(0, 2), (6, 2), (8, 1)])
def test_the_overlap_of_authorities_lasts_a_week(days: int, authorities: int) -> None:
    both = replace(fresh(), authorities=(*(new := fresh()).authorities, *fresh().authorities), leaf=new.leaf)
    step = plan(both.data, now=NOW + days * DAY, names=NAMES)
    assert isinstance(step, Keep | Trim)
    assert len(step.material.authorities) == authorities


def test_trimming_an_authority_whose_key_is_not_ours_forgets_the_key_that_is() -> None:
    authority, other = make_authority(now=NOW), make_authority(now=NOW)
    leaf = make_leaf(authority, NAMES, now=NOW)
    data = Material(leaf, (other.certificate, authority.certificate), other.key).data
    step = plan(data, now=NOW + OVERLAP_SECONDS + 1, names=NAMES)
    assert isinstance(step, Trim)
    assert (step.material.authorities, step.material.authority_key) == ((authority.certificate,), b"")
    kept(step.material.data, NOW + OVERLAP_SECONDS + 1)


def test_a_leaf_for_other_names_is_renewed_for_both() -> None:
    """Two replicas that want different names would take turns for ever otherwise."""
    mine, theirs = NAMES | {"one.example"}, NAMES | {"two.example"}
    made = fresh(names=theirs)
    step = renewal(made.data, names=mine)
    assert step.reason == "the certificate is not for one.example"
    both = renewed(step, now=NOW, names=mine)
    kept(both.data, names=mine)
    kept(both.data, names=theirs)


def test_too_many_old_names_are_forgotten() -> None:
    many = NAMES | {f"n{i}.example" for i in range(MAX_NAMES)}
    made = fresh(names=many)
    again = renewed(renewal(made.data, names=NAMES | {"new.example"}), now=NOW, names=NAMES | {"new.example"})
    assert facts_of(again.leaf.certificate).names == NAMES | {"new.example"}


@pytest.mark.parametrize("name", ["tls.crt", "tls.key", "ca.crt"])
@pytest.mark.parametrize(
    "text", [None, b"", b"nonsense", make_authority(now=NOW).certificate, make_authority(now=NOW).key]
)
def test_damaged_content_is_replaced_and_the_replacement_kept(name: str, text: bytes | None) -> None:
    data = dict(fresh().data)
    if text is None:
        del data[name]
    else:
        data[name] = text
    step = renewal(data)
    kept(renewed(step, now=NOW, names=NAMES).data)


@pytest.mark.parametrize("text", [None, b"", b"nonsense", make_authority(now=NOW).key])
def test_without_the_key_of_its_authority_a_leaf_is_kept_until_it_ends(text: bytes | None) -> None:
    made = fresh()
    data = {**made.data, "ca.key": text or b""}
    kept(data)
    step = renewal(data, NOW + LEAF_SECONDS * 0.7)
    assert (step.authority, step.trusted) == (None, made.authorities)


def test_an_ended_authority_is_not_trusted_any_longer() -> None:
    made = fresh()
    late = NOW + AUTHORITY_SECONDS + 1
    step = renewal(made.data, late)
    assert (step.authority, step.trusted) == (None, ())


def test_authorities_in_use_stay_trusted_beside_a_new_one() -> None:
    in_use, ended = make_authority(now=NOW), make_authority(now=NOW - AUTHORITY_SECONDS)
    leaf = make_leaf(in_use, NAMES, now=NOW)
    bundle = in_use.certificate + ended.certificate + leaf.certificate
    step = renewal(None, trusted=[bundle, b"nonsense", b""])
    assert step.trusted == (in_use.certificate,)
    assert renewed(step, now=NOW, names=NAMES).authorities[1:] == (in_use.certificate,)


def test_a_secret_of_hamis_certificate_tool_is_taken_over() -> None:
    foreign = trustme.CA()
    made = foreign.issue_cert(*NAMES)
    now = time.time()
    data = {
        "ca": foreign.cert_pem.bytes(),
        "tls.crt": b"".join(blob.bytes() for blob in made.cert_chain_pems),
        "tls.key": made.private_key_pem.bytes(),
    }
    step = plan(data, now=now, names=NAMES | {"more.example"})
    assert isinstance(step, Renew)
    new = renewed(step, now=now, names=NAMES | {"more.example"})
    assert set(split_bundle(foreign.cert_pem.bytes())) <= set(new.authorities)
    same = plan(data, now=now, names=NAMES)
    assert isinstance(same, Trim)
    kept({**data, **same.material.data}, now)


# -- a cluster in memory


@dataclass
class FakeStore:
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
class Replica:
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


def replica(store: FakeStore, clock: Clock, names: frozenset[str] = NAMES) -> tuple[Replica, CertificateKeeper]:
    serving = Replica(store)
    store.replicas.append(serving)

    def note(expiry: float) -> None:
        serving.expiry = expiry

    return serving, CertificateKeeper(store, serving, names=names, now=clock, on_served=note, rng=random.Random(1))


async def test_the_first_round_makes_stores_announces_and_serves_a_certificate() -> None:
    store = FakeStore()
    serving, keeper = replica(store, Clock())
    assert await keeper.check() == CHECK_SECONDS
    assert store.secret is not None
    assert store.bundles == [store.secret["ca.crt"]]
    assert serving.served == Pair(store.secret["tls.crt"], store.secret["tls.key"])
    assert serving.expiry == NOW + LEAF_SECONDS


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
    clock.now += LEAF_SECONDS * 0.7
    assert await keeper.check() == CHECK_SECONDS
    assert serving.served != first
    assert serving.expiry == clock.now + LEAF_SECONDS
    assert (store.writes, store.patches) == (2, 1)


@pytest.mark.looptime
async def test_a_certificate_of_a_new_authority_is_shown_only_when_apiservers_had_time_to_hear_of_it() -> None:
    store, clock = FakeStore(), Clock()
    serving, keeper = replica(store, clock)
    await keeper.check()
    first = serving.served
    clock.now += AUTHORITY_SECONDS * 0.7
    assert 0 < await keeper.check() <= SETTLE_SECONDS
    assert store.bundles is not None
    assert len(split_bundle(store.bundles[0])) == 2
    assert serving.served == first
    await asyncio.sleep(SETTLE_SECONDS)
    assert await keeper.check() == CHECK_SECONDS
    assert serving.served not in (None, first)
    clock.now += OVERLAP_SECONDS + 1
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


@pytest.mark.looptime
@pytest.mark.parametrize("calls", range(1, 3))
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
            await asyncio.sleep(SETTLE_SECONDS)
            await quick_keeper.check()

    store._turn = rotate_in_between  # type: ignore[method-assign]
    await slow_keeper.check()
    await asyncio.sleep(SETTLE_SECONDS)
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


@pytest.mark.looptime
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
    await asyncio.sleep(SETTLE_SECONDS)
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


@pytest.mark.looptime
@pytest.mark.parametrize("seed", range(25))
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
    clock.now += LEAF_SECONDS * 0.7
    await everybody()
    await everybody()
    assert len({one.served for one, _ in replicas}) == 1
    assert store.writes == 2
    clock.now += AUTHORITY_SECONDS * 0.5
    await everybody()
    store.disturb_webhook(store.bundles[0] if store.bundles else b"")
    await asyncio.sleep(SETTLE_SECONDS + 1)
    await everybody()
    await everybody()
    assert len({one.served for one, _ in replicas}) == 1
    assert store.writes == 3
    assert store.secret is not None
    assert store.bundles == [store.secret["ca.crt"]]
    clock.now += OVERLAP_SECONDS + 1
    await everybody()
    await everybody()
    assert len(split_bundle(store.secret["ca.crt"])) == 1


# -- the loop


@contextlib.asynccontextmanager
async def running(keeper: CertificateKeeper) -> AsyncIterator[None]:
    task = asyncio.create_task(keeper.run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@pytest.mark.looptime
async def test_the_loop_checks_once_a_minute() -> None:
    store = FakeStore(rng=random.Random(0))
    serving, keeper = replica(store, Clock())
    assert keeper.problem
    async with running(keeper):
        await asyncio.sleep(1)
        assert keeper.problem == ""
        assert serving.served is not None
        before = store.calls
        await asyncio.sleep(10 * CHECK_SECONDS)
        assert store.calls - before == 2 * 10


@pytest.mark.looptime
async def test_a_poke_makes_it_check_soon_but_never_in_a_hurry() -> None:
    store = FakeStore()
    _, keeper = replica(store, Clock())
    async with running(keeper):
        await asyncio.sleep(QUIET_SECONDS + 1)
        before = store.calls
        keeper.poke()
        await asyncio.sleep(0.1)
        assert store.calls - before == 2
        for _ in range(1000):
            keeper.poke()
            await asyncio.sleep(0.01)
        assert store.calls - before <= 2 * 4


@pytest.mark.looptime
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


# -- the real store, on a client in memory


class FakeClient:
    """The verbs of KubeClient on a dictionary of objects."""

    def __init__(self, **objects: dict[str, Any]) -> None:
        self.objects = {path.replace("__", "/"): body for path, body in objects.items()}
        self.bodies: list[Any] = []
        self.fault: ApiError | None = None

    def _checked(self, body: Any = None) -> None:
        self.bodies.append(body)
        if self.fault is not None:
            raise self.fault

    async def get(self, path: str, kind: type[Any]) -> Any:
        self._checked()
        if path not in self.objects:
            raise ApiError(status=404)
        return self.objects[path]

    async def create(self, path: str, body: Any) -> None:
        self._checked(body)
        full = f"{path}/{body['metadata']['name']}"
        if full in self.objects:
            raise ApiError(status=409, reason="AlreadyExists")
        self.objects[full] = body

    async def replace(self, path: str, body: Any) -> None:
        self._checked(body)
        self.objects[path] = body

    async def patch(self, path: str, body: Any) -> None:
        self._checked(body)
        self.objects[path] = {**self.objects[path], "webhooks": body["webhooks"]}


SECRET_PATH = "/api/v1/namespaces/gpu/secrets/tls"
WEBHOOK_PATH = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/hook"
WHERE = SelfManaged(namespace="gpu", secret="tls", service="tessera", webhook_configuration="hook")


def store_on(client: FakeClient, where: SelfManaged = WHERE) -> KubeStore:
    return KubeStore(cast("KubeClient", client), where)


async def test_a_secret_is_created_once_and_read_back() -> None:
    client = FakeClient()
    store = store_on(client)
    assert await store.read_secret() is None
    assert await store.create_secret({"tls.crt": b"x", "tls.key": b"y"})
    assert not await store.create_secret({"tls.crt": b"z"})
    assert client.objects[SECRET_PATH]["type"] == "kubernetes.io/tls"
    found = await store.read_secret()
    assert found is not None
    assert found.data == {"tls.crt": b"x", "tls.key": b"y"}


async def test_replacing_a_secret_keeps_what_is_not_ours_and_its_version() -> None:
    client = FakeClient()
    client.objects[SECRET_PATH] = {
        "metadata": {"name": "tls", "resourceVersion": "7", "labels": {"a": "b"}},
        "type": "Opaque",
        "data": {"other": "b3RoZXI=", "tls.crt": "b2xk", "bad": "%%%", "worse": 5},
    }
    store = store_on(client)
    old = await store.read_secret()
    assert old is not None
    assert old.data == {"other": b"other", "tls.crt": b"old"}
    assert await store.replace_secret(old, {"tls.crt": b"new"})
    assert client.objects[SECRET_PATH] == {
        "metadata": {"name": "tls", "resourceVersion": "7", "labels": {"a": "b"}},
        "type": "Opaque",
        "data": {"other": "b3RoZXI=", "tls.crt": "bmV3", "bad": "%%%", "worse": 5},
    }


@pytest.mark.parametrize("raw", [{}, {"data": None}, {"data": []}])
async def test_a_secret_without_content_is_empty(raw: dict[str, Any]) -> None:
    client = FakeClient()
    client.objects[SECRET_PATH] = raw
    found = await store_on(client).read_secret()
    assert found is not None
    assert found.data == {}


async def test_the_bundle_of_every_webhook_is_patched_on_the_version_that_was_read() -> None:
    client = FakeClient()
    rules = [{"operations": ["CREATE"]}]
    client.objects[WEBHOOK_PATH] = {
        "metadata": {"name": "hook", "resourceVersion": "3"},
        "webhooks": [
            {"name": "a", "clientConfig": {"service": {"name": "s"}, "caBundle": "b2xk"}, "rules": rules},
            {"name": "b", "clientConfig": {"url": "https://x"}},
            {"name": "c"},
        ],
    }
    store = store_on(client)
    old = await store.read_webhook()
    assert old is not None
    assert old.bundles == (b"old", b"", b"")
    assert await store.patch_webhook(old, b"new")
    assert client.bodies[-1] == {
        "metadata": {"resourceVersion": "3"},
        "webhooks": [
            {"name": "a", "clientConfig": {"service": {"name": "s"}, "caBundle": "bmV3"}, "rules": rules},
            {"name": "b", "clientConfig": {"url": "https://x", "caBundle": "bmV3"}},
            {"name": "c", "clientConfig": {"caBundle": "bmV3"}},
        ],
    }


async def test_a_missing_or_unnamed_webhook_configuration_is_none() -> None:
    assert await store_on(FakeClient()).read_webhook() is None
    assert await store_on(FakeClient(), replace(WHERE, webhook_configuration="")).read_webhook() is None


async def test_a_configuration_without_webhooks_has_no_bundles() -> None:
    client = FakeClient()
    client.objects[WEBHOOK_PATH] = {"metadata": {}}
    found = await store_on(client).read_webhook()
    assert found is not None
    assert found.bundles == ()


@pytest.mark.parametrize("status", [404, 409])
async def test_a_lost_race_is_no_fault(status: int) -> None:
    client = FakeClient()
    client.fault = ApiError(status=status)
    store = store_on(client)
    assert not await store.replace_secret(StoredSecret({}), {})
    assert not await store.patch_webhook(StoredWebhook(()), b"")


async def test_other_answers_are_faults() -> None:
    client = FakeClient()
    client.fault = ApiError(status=403)
    store = store_on(client)
    for call in (
        store.read_secret(),
        store.create_secret({}),
        store.replace_secret(StoredSecret({}), {}),
        store.read_webhook(),
        store.patch_webhook(StoredWebhook(()), b""),
    ):
        with pytest.raises(ApiError):
            await call


# -- real connections


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(100):
        writer.write(data)
    writer.close()


@contextlib.asynccontextmanager
async def listening(context: ssl.SSLContext) -> AsyncIterator[int]:
    server = await asyncio.start_server(_echo, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connected(port: int, authority: bytes, client: trustme.LeafCert | None = None) -> Connection:
    context = ssl.create_default_context(cadata=authority.decode())
    if client is not None:
        client.configure_cert(context)
    return await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="tessera.gpu.svc")


async def echoed(connection: Connection) -> str:
    """The end of the certificate that this connection was opened with, if the connection works."""
    reader, writer = connection
    writer.write(b"x")
    assert await reader.read(1) == b"x"
    return str(writer.get_extra_info("peercert")["notAfter"])


async def closed(connection: Connection) -> None:
    connection[1].close()
    with contextlib.suppress(ssl.SSLError, ConnectionError):
        await connection[1].wait_closed()


async def test_a_renewed_certificate_is_shown_to_new_connections_and_old_ones_live_on() -> None:
    now = time.time()
    first = fresh(now - 10 * DAY)
    second = renewed(renewal(first.data, now, NAMES | {"more.example"}), now=now, names=NAMES | {"more.example"})
    serving = ServingContext()
    serving.serve(first.leaf)
    async with listening(serving.context) as port:
        old = await connected(port, first.bundle)
        end = await echoed(old)
        serving.serve(second.leaf)
        new = await connected(port, first.bundle)
        assert await echoed(new) != end
        assert await echoed(old) == end
        await closed(old)
        await closed(new)


async def test_through_a_rotation_of_the_authority_the_bundle_covers_both_certificates() -> None:
    now = time.time()
    old = fresh(now)
    step = Renew("rotation", None, old.authorities, NAMES)
    new = renewed(step, now=now, names=NAMES)
    serving = ServingContext()
    async with listening(serving.context) as port:
        for leaf in (old.leaf, new.leaf):
            serving.serve(leaf)
            connection = await connected(port, new.bundle)
            await echoed(connection)
            await closed(connection)
        with pytest.raises(ssl.SSLCertVerificationError):
            await connected(port, old.bundle)


async def test_before_the_first_certificate_handshakes_fail() -> None:
    serving = ServingContext()
    async with listening(serving.context) as port:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await connected(port, make_authority(now=time.time()).certificate)


@pytest.mark.parametrize("kinds", [("ECDSA", "RSA"), ("RSA", "ECDSA")])
async def test_a_certificate_with_another_kind_of_key_takes_over_completely(kinds: tuple[str, str]) -> None:
    authority = trustme.CA()
    serving = ServingContext()
    async with listening(serving.context) as port:
        seen = []
        for kind in kinds:
            made = authority.issue_cert("tessera.gpu.svc", key_type=trustme.KeyType[kind], common_name=kind)
            serving.serve(Pair(made.cert_chain_pems[0].bytes(), made.private_key_pem.bytes()))
            connection = await connected(port, authority.cert_pem.bytes())
            subject = dict(pair[0] for pair in connection[1].get_extra_info("peercert")["subject"])
            seen.append(subject["commonName"])
            await closed(connection)
        assert seen == list(kinds)


async def test_a_bad_pair_leaves_the_old_certificate_in_use() -> None:
    good, other = fresh(time.time()), fresh(time.time())
    serving = ServingContext()
    serving.serve(good.leaf)
    for bad in (
        Pair(good.leaf.certificate, other.leaf.key),
        Pair(b"", b""),
        Pair(good.leaf.certificate + b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", good.leaf.key),
    ):
        with pytest.raises(BadCertificate):
            serving.serve(bad)
    assert serving.served == good.leaf
    async with listening(serving.context) as port:
        connection = await connected(port, good.bundle)
        await echoed(connection)
        await closed(connection)


def test_a_weak_certificate_that_tls_does_not_accept_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise ssl.SSLError("EE_KEY_TOO_SMALL")

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", refuse)
    with pytest.raises(BadCertificate, match="EE_KEY_TOO_SMALL"):
        ServingContext().serve(fresh().leaf)


def test_where_files_cannot_live_in_memory_a_temporary_one_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    serving, leaf = ServingContext(), fresh().leaf
    serving.serve(leaf)
    assert serving.served == leaf


async def test_clients_may_show_a_certificate_of_the_configured_authority_and_no_other() -> None:
    made = fresh(time.time())
    friends, strangers = trustme.CA(), trustme.CA()
    serving = ServingContext(client_ca=friends.cert_pem.bytes())
    seen: list[Any] = []

    async def answer(request: web.Request) -> web.Response:
        assert request.transport is not None
        seen.append(request.transport.get_extra_info("peercert"))
        return web.Response(text="ok")

    app = web.Application()
    app.router.add_get("/", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=serving.context)
    await site.start()
    port = runner.addresses[0][1]

    async def asked(client: trustme.LeafCert | None) -> bool:
        connection = await connected(port, made.bundle, client)
        connection[1].write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        try:
            return b"200 OK" in await connection[0].read(1000)
        except (ssl.SSLError, ConnectionError):
            return False
        finally:
            await closed(connection)

    try:
        # Also after a change of the serving certificate.
        for leaf in (
            made.leaf,
            renewed(renewal(made.data, time.time(), NAMES | {"y"}), now=time.time(), names=NAMES).leaf,
        ):
            serving.serve(leaf)
            assert await asked(None)
            assert await asked(friends.issue_cert("friend.example"))
            assert not await asked(strangers.issue_cert("stranger.example"))
    finally:
        await runner.cleanup()
    names = [dict(one["subjectAltName"]) if one else None for one in seen]
    assert names == [None, {"DNS": "friend.example"}] * 2


@pytest.mark.parametrize("text", [b"nonsense", b"\xff\xfe", make_authority(now=NOW).key])
def test_a_client_authority_that_is_no_certificate_is_refused(text: bytes) -> None:
    with pytest.raises(BadCertificate, match="clients' authority"):
        ServingContext(client_ca=text)


# -- files


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "tls.crt", tmp_path / "tls.key"


def write(files: tuple[Path, Path], pair: Pair) -> None:
    """As kubelet does it: new files take the place of the old ones."""
    for path, text in zip(files, (pair.certificate, pair.key), strict=True):
        other = path.with_suffix(".new")
        other.write_bytes(text)
        other.replace(path)


def test_files_are_loaded_and_followed(files: tuple[Path, Path]) -> None:
    serving = ServingContext()
    following = CertificateFiles(*files, serving)
    first, second = fresh().leaf, fresh(NOW + DAY).leaf
    write(files, first)
    assert following.look() == Loaded(NOW + LEAF_SECONDS)
    assert following.look() == Unchanged()
    write(files, second)
    assert following.look() == Loaded(NOW + DAY + LEAF_SECONDS)
    assert serving.served == second
    write(files, second)
    assert following.look() == Unchanged()
    assert following.look() == Unchanged()


def test_missing_files_are_reported_once(files: tuple[Path, Path]) -> None:
    following = CertificateFiles(str(files[0]), str(files[1]), ServingContext())
    first, second = following.look(), following.look()
    assert isinstance(first, Bad)
    assert isinstance(second, Bad)
    assert (first.is_news, second.is_news) == (True, False)
    assert str(files[0]) in first.text
    write(files, fresh().leaf)
    assert isinstance(following.look(), Loaded)


@pytest.mark.parametrize("half", [0, 1])
def test_a_half_written_pair_keeps_the_old_certificate_until_the_other_half_is_there(
    files: tuple[Path, Path], half: int
) -> None:
    serving = ServingContext()
    following = CertificateFiles(*files, serving)
    old, new = fresh().leaf, fresh().leaf
    write(files, old)
    following.look()
    halves = (new.certificate, new.key)
    files[half].write_bytes(halves[half])
    answer = following.look()
    assert isinstance(answer, Bad)
    assert "does not belong" in answer.text
    assert serving.served == old
    files[1 - half].write_bytes(halves[1 - half])
    assert isinstance(following.look(), Loaded)
    assert serving.served == new


@pytest.mark.parametrize("text", [b"", b"nonsense"])
def test_bad_files_keep_the_old_certificate_and_good_ones_end_the_complaint(
    files: tuple[Path, Path], text: bytes
) -> None:
    serving = ServingContext()
    following = CertificateFiles(*files, serving)
    old = fresh().leaf
    write(files, old)
    following.look()
    files[0].write_bytes(text)
    assert isinstance(following.look(), Bad)
    assert serving.served == old
    write(files, old)
    assert following.look() == Unchanged()
    files[0].write_bytes(text)
    answer = following.look()
    assert isinstance(answer, Bad)
    assert answer.is_news
