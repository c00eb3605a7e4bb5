from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from tessera.kube.client import KubeClient
from tessera.kube.errors import ApiError
from tessera.scheduler.certificates.tls import CertificateStore, StoredSecret, StoredWebhook
from tessera.scheduler.settings import SelfManaged


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
