from __future__ import annotations

import asyncio
from base64 import b64encode
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import trustme

from tessera.kube.access import Access
from tessera.kube.client import KubeClient
from tessera.kube.errors import ApiError
from tessera.scheduler.certificates.authority import LEAF_S, Material, facts_of, service_names
from tessera.scheduler.certificates.tls import (
    CHECK_S,
    LOOK_S,
    CertificateStore,
    ServingTls,
    StoredSecret,
    StoredWebhook,
    TlsError,
)
from tessera.scheduler.settings import SelfManaged, TlsFiles
from tests.support.event_loops import in_fake_time
from tests.support.logs import captured
from tests.support.network import NOW, fresh
from tests.support.scheduler_process import write_pair

NO_CLIENT = cast("KubeClient", None)
OWN = SelfManaged("ns", "secret", "service", "webhook")


def serving(source: TlsFiles | SelfManaged | None, client: Any = NO_CLIENT, *, client_ca: str = "") -> ServingTls:
    return ServingTls(source, client, client_ca=client_ca, now=lambda: NOW)


@in_fake_time
async def test_without_a_certificate_there_is_no_tls_and_nothing_to_look_at() -> None:
    none = serving(None)
    none.prepare()
    assert (none.context, none.expiry) == (None, 0.0)
    task = asyncio.create_task(none.run())
    none.look()
    with captured() as logs:
        await asyncio.sleep(10 * LOOK_S)
    assert not task.done()
    assert logs.events == []
    task.cancel()


async def test_the_files_are_read_before_anything_listens(tmp_path: Path) -> None:
    files = write_pair(tmp_path, trustme.CA())
    made = serving(files)
    assert made.expiry == 0.0
    for _ in range(2):
        made.prepare()
        assert made.expiry == facts_of(Path(files.certificate).read_bytes()).not_after


@pytest.mark.parametrize("missing", ["tls.crt", "tls.key"])
async def test_nothing_starts_with_files_that_cannot_be_read(tmp_path: Path, missing: str) -> None:
    files = write_pair(tmp_path, trustme.CA())
    (tmp_path / missing).unlink()
    with pytest.raises(TlsError, match=f"cannot read .*/{missing}: No such file or directory"):
        serving(files).prepare()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot read .*ca.crt: No such file"),
        (b"", "ca.crt: .*no certificate"),
        (b"x", "ca.crt: .*no certificate"),
    ],
)
async def test_an_authority_of_clients_that_cannot_be_read_is_no_authority(
    tmp_path: Path, content: bytes | None, said: str
) -> None:
    files = write_pair(tmp_path, trustme.CA())
    if content is not None:
        (tmp_path / "ca.crt").write_bytes(content)
    with pytest.raises(TlsError, match=said):
        serving(files, client_ca=str(tmp_path / "ca.crt"))


@in_fake_time
async def test_files_are_looked_at_every_few_seconds_and_at_once_when_told(tmp_path: Path) -> None:
    authority = trustme.CA()
    made = serving(write_pair(tmp_path, authority))
    made.prepare()
    task = asyncio.create_task(made.run())
    with captured() as logs:
        await asyncio.sleep(LOOK_S / 2)
        write_pair(tmp_path, authority)
        await asyncio.sleep(LOOK_S)
        assert len(logs.of("certificate read again")) == 1
        write_pair(tmp_path, authority)
        made.look()
        await asyncio.sleep(0.01)
        assert len(logs.of("certificate read again")) == 2
    task.cancel()


@in_fake_time
async def test_bad_files_are_reported_once_and_again_after_good_ones(tmp_path: Path) -> None:
    authority = trustme.CA()
    files = write_pair(tmp_path, authority)
    made = serving(files)
    made.prepare()
    good, before = Path(files.certificate).read_bytes(), made.expiry
    task = asyncio.create_task(made.run())
    with captured() as logs:
        for text, complaints in ((b"nonsense", 1), (good, 1), (b"nonsense", 2)):
            Path(files.certificate).write_bytes(text)
            await asyncio.sleep(3 * LOOK_S)
            assert len(logs.of("certificate not read again, the old one stays")) == complaints
            assert made.expiry == before
    task.cancel()


class Cluster:
    """Has a good Secret and no webhook configuration; notes when it is read."""

    def __init__(self, secret: Material) -> None:
        self._secret = {"data": {name: b64encode(value).decode() for name, value in secret.data.items()}}
        self.reads: list[float] = []

    async def find(self, path: str, _kind: type[Any]) -> Any:
        if "webhook" in path:
            return None
        self.reads.append(asyncio.get_running_loop().time())
        return self._secret


@in_fake_time
async def test_own_certificates_are_checked_every_minute_and_sooner_when_told() -> None:
    names = service_names(OWN.service, OWN.namespace)
    cluster = Cluster(fresh(names=names))
    made = serving(OWN, cluster)
    made.prepare()
    assert made.context is not None
    task = asyncio.create_task(made.run())
    await asyncio.sleep(90)
    made.look()
    await asyncio.sleep(1)
    assert cluster.reads == [0, CHECK_S, 90]
    assert made.expiry == NOW + LEAF_S
    task.cancel()


async def test_a_certificate_of_our_own_is_missing_until_it_is_served() -> None:
    where = SelfManaged(namespace="kube-system", secret="s", service="svc", webhook_configuration="w")
    async with KubeClient(Access("http://127.0.0.1:9")) as client:
        own = ServingTls(where, client, client_ca="", now=lambda: 0.0)
        assert own.missing() == "there is no serving certificate yet"
        assert ServingTls(None, client, client_ca="", now=lambda: 0.0).missing() == ""


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

    async def find(self, path: str, kind: type[Any]) -> Any:
        self._checked()
        return self.objects.get(path)

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


def store_on(client: FakeClient, where: SelfManaged = WHERE) -> CertificateStore:
    return CertificateStore(cast("KubeClient", client), where)


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
