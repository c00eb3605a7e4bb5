"""Keeps the self-managed serving certificate, its Secret and the webhook configuration in step.

One round: read the webhook configuration, then the Secret; make or renew what `renewal.plan` says; check that the
configuration trusts what the Secret says; only then serve the leaf. The order matters: the patch names the version that
was read before the Secret, so an older bundle never takes the place of a newer one. Any number of replicas may do this
at the same time; the loser of a race uses what the winner wrote.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from tessera.kube.backoff import Backoff
from tessera.kube.errors import KubeError
from tessera.scheduler.certificates.authority import BadCertificate, signed_by
from tessera.scheduler.certificates.renewal import Keep, Renew, plan, renewed
from tessera.scheduler.certificates.secret_store import CertificateStore, StoredSecret
from tessera.scheduler.certificates.serving_context import ServingContext

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
