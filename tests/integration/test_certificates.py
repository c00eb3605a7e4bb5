"""Serving certificates: from files that change, and self-managed in a Secret that other clients may change."""

from __future__ import annotations

import asyncio
import base64
import os
import signal
import ssl
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trustme

from tessera.kube.resources import MUTATING_WEBHOOKS, SECRETS
from tessera.scheduler.certificates import tls
from tessera.scheduler.certificates.authority import DAY, LEAF_S, facts_of, split_bundle
from tessera.scheduler.certificates.tls import ServingTls
from tessera.scheduler.process import Process
from tessera.scheduler.settings import Listeners, SelfManaged, Settings, TlsFiles
from tessera.services.listener import Listener
from tessera.services.value_types import Address
from tessera_lab.sandbox.api.faults import Hold
from tessera_lab.sandbox.api.kinds import MUTATING_WEBHOOKS as WEBHOOK_KIND
from tessera_lab.sandbox.api.kinds import SECRETS as SECRET_KIND
from tessera_lab.sandbox.control_plane import ControlPlane
from tests.support.event_loops import on_uvloop
from tests.support.logs import captured
from tests.support.product import gpu_pod
from tests.support.scheduler_process import LOOPBACK, running, shown_certificate, trusting, until, write_pair

OWN = SelfManaged("kube-system", "tessera-tls", "tessera", "tessera-webhook")
LISTENERS = Listeners(extender=None, webhook=LOOPBACK, metrics=None)


def webhook_of(process: Process) -> Address:
    return process.listeners["webhook"].address


# -- from files


def leaf_of(files: TlsFiles) -> bytes:
    """The first certificate of the file, in DER."""
    first, *_ = split_bundle(Path(files.certificate).read_bytes())
    return ssl.PEM_cert_to_DER_cert(first.decode())


@pytest.mark.parametrize("listener", ["webhook", "extender"])
@pytest.mark.parametrize("told", [True, False], ids=["by a signal", "by the files alone"])
@on_uvloop
async def test_changed_files_are_served_to_new_connections_and_old_ones_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: bool, listener: str
) -> None:
    if not told:
        monkeypatch.setattr(tls, "LOOK_S", 0.01)
    authority = trustme.CA()
    files = write_pair(tmp_path, authority)
    context = trusting(authority)
    listeners = replace(LISTENERS, extender=LOOPBACK, extender_tls=True)
    with captured() as logs:
        async with ControlPlane() as plane, running(plane, Settings(listeners=listeners, tls=files)) as process:
            at = process.listeners[listener].address
            assert await shown_certificate(at, context) == leaf_of(files)
            reader, writer = await asyncio.open_connection(at.host, at.port, ssl=context)
            write_pair(tmp_path, authority)
            if told:
                os.kill(os.getpid(), signal.SIGHUP)
            await logs.until("certificate read again")
            assert await shown_certificate(at, context) == leaf_of(files)
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert (await reader.read()).startswith(b"HTTP/1.1 200")
            writer.close()
            await writer.wait_closed()


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda files: Path(files.certificate).write_text("nonsense"), "not a certificate in PEM"),
        (lambda files: Path(files.key).unlink(), "No such file or directory"),
        (
            lambda files: Path(files.key).write_bytes(trustme.CA().issue_cert("127.0.0.1").private_key_pem.bytes()),
            "the key does not belong to the certificate",
        ),
    ],
    ids=["nonsense", "missing", "another key"],
)
@on_uvloop
async def test_bad_files_are_reported_once_and_the_old_certificate_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[TlsFiles], Any], said: str
) -> None:
    monkeypatch.setattr(tls, "LOOK_S", 0.01)
    authority = trustme.CA()
    files = write_pair(tmp_path, authority)
    good = leaf_of(files)
    with captured() as logs:
        async with ControlPlane() as plane, running(plane, Settings(listeners=LISTENERS, tls=files)) as process:
            spoil(files)
            fault = await logs.until("certificate not read again, the old one stays")
            assert fault["level"] == "error"
            assert said in fault["error"]
            assert await shown_certificate(webhook_of(process), trusting(authority)) == good
            write_pair(tmp_path, authority)
            await logs.until("certificate read again")
            assert await shown_certificate(webhook_of(process), trusting(authority)) == leaf_of(files) != good
    assert len(logs.of("certificate not read again, the old one stays")) == 1


# -- our own


@pytest.fixture
def _hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds follow each other at once, where they are a minute apart in a cluster."""
    monkeypatch.setattr(tls, "CHECK_S", 0.02)
    monkeypatch.setattr(tls, "QUIET_S", 0.01)
    monkeypatch.setattr(tls, "SETTLE_S", 0.02)


def stored(plane: ControlPlane) -> dict[str, bytes]:
    """The Secret's content; empty where there is none."""
    found = plane.server.cluster.store.get(SECRET_KIND, OWN.namespace, OWN.secret)
    data = found.object["data"] if found is not None else {}
    return {name: base64.b64decode(text) for name, text in data.items()}


def bundle(plane: ControlPlane) -> bytes:
    """What the apiserver trusts."""
    found = plane.server.cluster.store.get(WEBHOOK_KIND, "", OWN.webhook_configuration)
    assert found is not None
    return base64.b64decode(found.object["webhooks"][0]["clientConfig"].get("caBundle", ""))


async def register(plane: ControlPlane, at: Address) -> None:
    """The webhook configuration as a chart makes it, still without a CA bundle."""
    rule = {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}
    webhook = {
        "name": "vgpu.hami.io",
        "clientConfig": {"url": f"https://{at}/webhook"},
        "rules": [rule],
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Fail",
    }
    body = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": OWN.webhook_configuration},
        "webhooks": [webhook],
    }
    await plane.client.create(MUTATING_WEBHOOKS.path(), body)


async def is_right(plane: ControlPlane) -> None:
    """Wait until the configuration trusts exactly what the Secret says."""
    await plane.wait_for(lambda: bundle(plane) and bundle(plane) == stored(plane).get("ca.crt"), what="the bundle")


@pytest.mark.usefixtures("_hurried")
@on_uvloop
async def test_certificates_of_our_own_need_nothing_but_a_place() -> None:
    with captured():
        settings = Settings(listeners=LISTENERS, tls=OWN)
        async with ControlPlane() as plane, running(plane, settings) as process:
            await register(plane, webhook_of(process))
            await is_right(plane)
            assert set(stored(plane)) == {"tls.crt", "tls.key", "ca.crt", "ca.key"}
            facts = facts_of(stored(plane)["tls.crt"])
            assert facts.names >= {"tessera.kube-system.svc", "localhost", "127.0.0.1"}
            pod = await plane.create_pod(gpu_pod("p", gpu=1))
            assert pod["spec"]["schedulerName"] == "hami-scheduler"


@pytest.mark.usefixtures("_hurried")
@on_uvloop
async def test_two_replicas_that_start_together_end_with_one_authority() -> None:
    settings = Settings(listeners=LISTENERS, tls=OWN)
    gate = Hold(release=asyncio.Event(), reached=asyncio.Event())
    with captured() as logs:
        async with ControlPlane() as plane, AsyncExitStack() as stack:
            # Both have made an authority of their own before either can store it.
            plane.server.faults.next(gate, method="POST", path="/secrets$")
            first = await stack.enter_async_context(running(plane, settings))
            await gate.reached.wait()
            second = await stack.enter_async_context(running(plane, settings))
            await plane.wait_for(lambda: stored(plane), what="the second one's Secret")
            kept = stored(plane)
            gate.release.set()
            await register(plane, webhook_of(first))
            await is_right(plane)
            await logs.until("certificate served", times=2)
            assert stored(plane) == kept
            assert bundle(plane) == kept["ca.crt"]
            assert len(split_bundle(bundle(plane))) == 1
            shown = [await shown_certificate(webhook_of(one), trusting(bundle(plane))) for one in (first, second)]
            assert {ssl.DER_cert_to_PEM_cert(one).strip() for one in shown} == {kept["tls.crt"].decode().strip()}
    assert [seen.status for seen in plane.server.journal if seen.method == "POST" and "secrets" in seen.path] == [
        201,
        409,
    ]


@pytest.mark.usefixtures("_hurried")
@on_uvloop
async def test_a_secret_that_was_deleted_is_made_again_and_the_apiserver_trusts_it() -> None:
    with captured() as logs:
        settings = Settings(listeners=LISTENERS, tls=OWN)
        async with ControlPlane() as plane, running(plane, settings) as process:
            await register(plane, webhook_of(process))
            await is_right(plane)
            old = stored(plane)
            await plane.client.delete(SECRETS.path(OWN.namespace, OWN.secret))
            await plane.wait_for(
                lambda: stored(plane).get("tls.crt", old["tls.crt"]) != old["tls.crt"], what="a Secret"
            )
            await is_right(plane)
            # The old authority stays trusted for as long as some replica may show a certificate of it.
            assert set(split_bundle(bundle(plane))) > set(split_bundle(old["ca.crt"]))
            await logs.until("certificate served", times=2)
            shown = await shown_certificate(webhook_of(process), trusting(bundle(plane)))
            assert ssl.DER_cert_to_PEM_cert(shown).strip() == stored(plane)["tls.crt"].decode().strip()
            assert (await plane.create_pod(gpu_pod("p", gpu=1)))["spec"]["schedulerName"] == "hami-scheduler"


@pytest.mark.parametrize(
    "foreign", [b"", trustme.CA().cert_pem.bytes(), b"nonsense"], ids=["empty", "another", "nonsense"]
)
@pytest.mark.usefixtures("_hurried")
@on_uvloop
async def test_a_bundle_that_another_client_changed_is_repaired(foreign: bytes) -> None:
    with captured() as logs:
        settings = Settings(listeners=LISTENERS, tls=OWN)
        async with ControlPlane() as plane, running(plane, settings) as process:
            await register(plane, webhook_of(process))
            await is_right(plane)
            right, patches = bundle(plane), len(logs.of("webhook configuration patched"))
            patch = [{"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": encoded(foreign)}]
            await plane.client.patch(
                MUTATING_WEBHOOKS.path(name=OWN.webhook_configuration),
                patch,
                content_type="application/json-patch+json",
            )
            await logs.until("webhook configuration patched", times=patches + 1)
            assert bundle(plane) == right
            assert (await plane.create_pod(gpu_pod("p", gpu=1)))["spec"]["schedulerName"] == "hami-scheduler"


@pytest.mark.usefixtures("_hurried")
@on_uvloop
async def test_a_certificate_is_renewed_long_before_its_end_by_the_same_authority() -> None:
    clock = Clock(time.time() - 0.7 * LEAF_S)
    with captured() as logs:
        async with ControlPlane() as plane:
            serving = ServingTls(OWN, plane.client, client_ca="", now=clock)
            listener = Listener(LOOPBACK, [], tls=serving.context, grace=1.0)
            await listener.start()
            task = asyncio.create_task(serving.run())
            try:
                await register(plane, listener.address)
                await is_right(plane)
                await logs.until("certificate served")
                old, ends = stored(plane), serving.expiry
                first = await shown_certificate(listener.address, trusting(bundle(plane)))
                assert ends == pytest.approx(clock.now + LEAF_S, abs=2)
                clock.now += 0.6 * LEAF_S
                await rounds(plane, 2)
                assert stored(plane) == old
                clock.now += 0.1 * LEAF_S
                await logs.until("certificate served", times=2)
                assert (stored(plane)["ca.crt"], bundle(plane)) == (old["ca.crt"], old["ca.crt"])
                assert await shown_certificate(listener.address, trusting(bundle(plane))) != first
                assert serving.expiry > ends + 200 * DAY
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                await listener.stop()


class Clock:
    """Unix time that stands still until a test moves it."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


async def rounds(plane: ControlPlane, count: int) -> None:
    """Wait until the Secret was read so often."""
    plane.server.journal.clear()
    await until(lambda: sum(seen.path.endswith(f"/secrets/{OWN.secret}") for seen in plane.server.journal) >= count)


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()
