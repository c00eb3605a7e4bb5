"""The serving certificate of the listeners, from files, from our own authority, or none.

The self-managed one lives in a Secret, and its authority in the `caBundle` of a webhook configuration. Every write
names the version that it is based on, so that of several replicas exactly one wins; the others are told (False) and
read again. Fields that are not ours are written back as they were.

One round of the rotator: read the webhook configuration, then the Secret; make or renew what `authority.plan` says;
check that the configuration trusts what the Secret says; only then serve the leaf. The order matters: the patch names
the version that was read before the Secret, so an older bundle never takes the place of a newer one.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog

from tessera.files.reader import MAX_SMALL_BYTES, read_file
from tessera.kube.backoff import Backoff
from tessera.kube.client import KubeClient
from tessera.kube.errors import KubeError, is_conflict, is_gone
from tessera.kube.resources import MUTATING_WEBHOOKS, SECRETS
from tessera.scheduler.certificates.authority import (
    BadCertificate,
    Keep,
    Renew,
    plan,
    renewed,
    service_names,
    signed_by,
)
from tessera.scheduler.certificates.serving_context import CertificateFiles, ServingContext
from tessera.scheduler.settings import SelfManaged, TlsFiles

TLS_SECRET = "kubernetes.io/tls"

log = structlog.get_logger(__name__)

CHECK_S = 60.0
"""seconds between two rounds; a foreign change can go unnoticed for that long"""
QUIET_S = 5.0
"""shortest time between two rounds, however often `poke` is called, so that two controllers cannot form a busy loop"""
SETTLE_S = 10.0
"""seconds between a new bundle and the first certificate of its authority, so that all apiservers have the bundle"""
BACKOFF = Backoff(initial=2.0, cap=60.0, floor=1.0)
ATTEMPTS = 5
"""lost races per round before it is given up until the next"""

LOOK_S = 5.0
"""between two looks at the files; kubelet updates a mounted Secret within about a minute anyway"""


@dataclass(frozen=True, slots=True)
class StoredSecret:
    """A Secret as it was read."""

    data: Mapping[str, bytes]
    """what cannot be decoded is left out"""
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class StoredWebhook:
    """A webhook configuration as it was read."""

    bundles: tuple[bytes, ...]
    """one for every webhook in it; empty where there is none"""
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)


class CertificateStore:
    """The API calls of certificate rotation. Faults are KubeErrors; a lost race is False."""

    def __init__(self, client: KubeClient, where: SelfManaged) -> None:
        self._client = client
        self._where = where

    async def read_secret(self) -> StoredSecret | None:
        found = await self._client.find(SECRETS.path(self._where.namespace, self._where.secret), dict)
        if found is None:
            return None
        encoded = _mapping(found.get("data"))
        decoded = {name: value for name, text in encoded.items() if (value := _decoded(text)) is not None}
        return StoredSecret(decoded, found)

    async def create_secret(self, data: Mapping[str, bytes]) -> bool:
        where = self._where
        body = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": where.secret, "namespace": where.namespace},
            "type": TLS_SECRET,
            "data": _encoded(data),
        }
        return await _wins(self._client.create(SECRETS.path(where.namespace), body), is_conflict)

    async def replace_secret(self, old: StoredSecret, data: Mapping[str, bytes]) -> bool:
        body = {**old.raw, "data": {**_mapping(old.raw.get("data")), **_encoded(data)}}
        path = SECRETS.path(self._where.namespace, self._where.secret)
        return await _wins(self._client.replace(path, body), is_gone)

    async def read_webhook(self) -> StoredWebhook | None:
        """None if there is no such configuration."""
        if not self._where.webhook_configuration:
            return None
        found = await self._client.find(MUTATING_WEBHOOKS.path(name=self._where.webhook_configuration), dict)
        if found is None:
            return None
        bundles = (_decoded(_client_config(webhook).get("caBundle")) or b"" for webhook in _webhooks(found))
        return StoredWebhook(tuple(bundles), found)

    async def patch_webhook(self, old: StoredWebhook, bundle: bytes) -> bool:
        text = base64.b64encode(bundle).decode()
        webhooks = [
            {**webhook, "clientConfig": {**_client_config(webhook), "caBundle": text}} for webhook in _webhooks(old.raw)
        ]
        version = _mapping(old.raw.get("metadata")).get("resourceVersion")
        # A merge patch replaces the whole list, so it carries the version that was read.
        body = {"metadata": {"resourceVersion": version}, "webhooks": webhooks}
        path = MUTATING_WEBHOOKS.path(name=self._where.webhook_configuration)
        return await _wins(self._client.patch(path, body), is_gone)


async def _wins(write: Awaitable[None], is_lost: Callable[[KubeError], bool]) -> bool:
    """Whether a write took effect; `is_lost` says of a refusal that another replica was first."""
    try:
        await write
    except KubeError as error:
        if is_lost(error):
            return False
        raise
    return True


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _webhooks(raw: Mapping[str, Any]) -> list[dict[str, Any]]:
    found = raw.get("webhooks")
    return [_mapping(webhook) for webhook in found] if isinstance(found, list) else []


def _client_config(webhook: Mapping[str, Any]) -> dict[str, Any]:
    return _mapping(webhook.get("clientConfig"))


def _decoded(text: Any) -> bytes | None:
    if not isinstance(text, str):
        return None
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None


def _encoded(data: Mapping[str, bytes]) -> dict[str, str]:
    return {name: base64.b64encode(value).decode() for name, value in data.items()}


class Contended(Exception):
    """The Secret or the webhook configuration changed at every attempt."""


class CertificateRotator:
    """One replica's share of the work."""

    def __init__(
        self,
        store: CertificateStore,
        serving: ServingContext,
        *,
        names: frozenset[str],
        now: Callable[[], float],
        on_served: Callable[[float], None] = lambda _expiry: None,
    ) -> None:
        """`now` is unix time; `on_served` gets the end of the served certificate in unix time."""
        self._store = store
        self._serving = serving
        self._names = names
        self._now = now
        self._on_served = on_served
        self._poked = asyncio.Event()
        self._in_place: tuple[bytes, float] | None = None
        """the bundle last seen in the configuration, and since when, in the loop's time"""
        self.problem = "no certificate yet"
        """why the last round did not succeed; empty where it did"""

    def poke(self) -> None:
        """Check soon, because something changed."""
        self._poked.set()

    async def run(self) -> None:
        """Round after round, until cancelled."""
        failures = 0
        while True:
            try:
                delay = await self.check()
                failures, self.problem = 0, ""
            except (KubeError, BadCertificate, Contended) as error:
                failures += 1
                delay = BACKOFF.delay(failures)
                self.problem = str(error)
                log.warning("certificate not checked", problem=self.problem, failures=failures)
            await self._pause(delay)

    async def check(self) -> float:
        """One round; seconds until the next one is due."""
        for _ in range(ATTEMPTS):
            webhook = await self._store.read_webhook()
            secret = await self._store.read_secret()
            bundles = webhook.bundles if webhook is not None else ()
            trusted = bundles if self._in_place is None else (*bundles, self._in_place[0])
            data = secret.data if secret is not None else None
            step = plan(data, now=self._now(), names=self._names, trusted=trusted)
            if not isinstance(step, Keep):
                material = (
                    renewed(step, now=self._now(), names=self._names) if isinstance(step, Renew) else step.material
                )
                if await self._write(secret, material.data):
                    log.info("certificate written", reason=step.reason)
                continue  # read again in the right order
            bundle = step.material.bundle
            if webhook is not None and any(one != bundle for one in bundles):
                if not await self._store.patch_webhook(webhook, bundle):
                    continue
                log.info("webhook configuration patched", authorities=len(step.material.authorities))
            return self._show(step)
        raise Contended("the Secret or the webhook configuration changed every time it was read")

    async def _write(self, secret: StoredSecret | None, data: dict[str, bytes]) -> bool:
        if secret is None:
            return await self._store.create_secret(data)
        return await self._store.replace_secret(secret, data)

    def _show(self, step: Keep) -> float:
        """Serve the leaf if its authority has been in the bundle long enough for every apiserver to know it."""
        time = asyncio.get_running_loop().time()
        if self._in_place is None or self._in_place[0] != step.material.bundle:
            self._in_place = (step.material.bundle, time)
        served, leaf = self._serving.served, step.material.leaf
        if served == leaf:
            return CHECK_S
        settled = self._in_place[1] + SETTLE_S
        if served is not None and time < settled and not signed_by(served.certificate, step.issuer):
            return settled - time
        self._serving.serve(leaf)
        self._on_served(step.expiry)
        log.info("certificate served", expiry=step.expiry)
        return CHECK_S

    async def _pause(self, delay: float) -> None:
        await asyncio.sleep(min(delay, QUIET_S))
        if delay > QUIET_S:
            try:
                async with asyncio.timeout(delay - QUIET_S):
                    await self._poked.wait()
            except TimeoutError:
                pass
        self._poked.clear()


class TlsError(Exception):
    """The configured files cannot be used."""


class ServingTls:
    """One context for all listeners that speak TLS; `run` keeps its certificate fresh."""

    def __init__(
        self, source: TlsFiles | SelfManaged | None, client: KubeClient, *, client_ca: str, now: Callable[[], float]
    ) -> None:
        self.expiry = 0.0
        """unix time at which the served certificate ends; 0 if none is served"""
        self._serving: ServingContext | None = None
        self._files: CertificateFiles | None = None
        self._keeper: CertificateRotator | None = None
        self._looking = asyncio.Event()
        if source is None:
            return
        self._serving = _serving_context(client_ca)
        if isinstance(source, TlsFiles):
            self._files = CertificateFiles(source.certificate, source.key, self._serving)
            return
        names = service_names(source.service, source.namespace)
        store = CertificateStore(client, source)
        self._keeper = CertificateRotator(store, self._serving, names=names, now=now, on_served=self._served)

    @property
    def context(self) -> ssl.SSLContext | None:
        return self._serving.context if self._serving is not None else None

    def missing(self) -> str:
        """Why handshakes would fail; empty if they would not, or if TLS is off."""
        return "there is no serving certificate yet" if self._serving is not None and self.expiry == 0.0 else ""

    def prepare(self) -> None:
        """Read the files once; raises TlsError if they cannot be used, so that the process does not start."""
        try:
            self._read_files()
        except BadCertificate as error:
            raise TlsError(str(error)) from error

    def look(self) -> None:
        """Check soon, because something may have changed."""
        self._looking.set()
        if self._keeper is not None:
            self._keeper.poke()

    async def run(self) -> None:
        """Until cancelled."""
        if self._keeper is not None:
            await self._keeper.run()
        complaint = ""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._looking.wait()
            self._looking.clear()
            try:
                if self._read_files():
                    log.info("certificate read again", expiry=self.expiry)
                complaint = ""
            except BadCertificate as error:
                if str(error) != complaint:
                    log.error("certificate not read again, the old one stays", error=str(error))
                complaint = str(error)

    def _read_files(self) -> bool:
        """Returns whether there is a new certificate. Raises BadCertificate."""
        expiry = self._files.read() if self._files is not None else None
        if expiry is not None:
            self._served(expiry)
        return expiry is not None

    def _served(self, expiry: float) -> None:
        self.expiry = expiry


def _serving_context(client_ca: str) -> ServingContext:
    try:
        authority = read_file(client_ca, limit=MAX_SMALL_BYTES) if client_ca else b""
        if client_ca and not authority:
            # Without this error every client would be refused, silently.
            raise TlsError(f"{client_ca}: there is no certificate in it")
        return ServingContext(client_ca=authority)
    except OSError as error:
        raise TlsError(f"cannot read {error.filename}: {error.strerror}") from error
    except BadCertificate as error:
        raise TlsError(f"{client_ca}: {error}") from error
