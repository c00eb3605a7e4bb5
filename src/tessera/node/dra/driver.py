"""The driver for ResourceClaims: what prepares them, what kubelet calls, and what publishes the cards.

    recover claims of an earlier process -> serve kubelet -> publish

Each card has one allocator. If that is kube-scheduler, cards are published only after the node's classic registration
is gone, and a card that a pod of the classic path still holds is tainted. If it is Tessera's scheduler, every device is
tainted for the others, and the node is registered only after that (`published`).

The plugin keeps two sockets served: the driver's own, and the one by which kubelet finds it.

    absent --serve--> served --(kubelet asks GetInfo and notifies)--> registered
      ^                  |                                                |
      +--(a socket vanished or was replaced by a file that none serves)---+

A kubelet that starts finds the registration socket by itself. Cancel to stop; both sockets are removed then, and
kubelet forgets the driver.
"""

from __future__ import annotations

import asyncio

import structlog

from tessera.node.dra.preparer import ClaimPreparer
from tessera.node.dra.publisher import SlicePublisher
from tessera.node.dra.service import DriverService, Preparer, RegistrationService
from tessera.node.kubelet.endpoint import Endpoint, ServingError, SocketWatch
from tessera.node.kubelet.plugin import PluginTiming
from tessera.node.settings import AgentSettings
from tessera.wire.resource_api import DRIVER

log = structlog.get_logger(__name__)

NOT_REGISTERED = "kubelet has not registered the driver yet"
SOCKET = "dra.sock"
REGISTRATION_SOCKET = f"{DRIVER}-reg.sock"

TIMING = PluginTiming()


class DraPlugin:
    """The driver for ResourceClaims on one node."""

    def __init__(self, settings: AgentSettings, preparer: Preparer) -> None:
        paths = settings.paths
        self._driver = Endpoint(paths.dra / SOCKET, DriverService(preparer))
        service = RegistrationService(str(self._driver.path), on_status=self._on_status)
        self._registration = Endpoint(paths.registry / REGISTRATION_SOCKET, service)
        self._status = NOT_REGISTERED
        self.problem = "not started"
        """why kubelet cannot use the driver; empty if it can"""

    async def run(self) -> None:
        """Runs until cancelled."""
        failures = 0
        watch = SocketWatch(own=self._registration.path, kubelet=self._driver.path)
        try:
            while True:
                try:
                    await self._keep_served()
                except ServingError as error:
                    failures += 1
                    self._set_problem(str(error))
                    wait = TIMING.backoff.delay(failures)
                else:
                    failures = 0
                    self._set_problem(self._status)
                    wait = TIMING.listen
                await watch.other_than(watch.look(), within=wait)
        finally:
            # First, so that kubelet makes no call that finds no driver.
            await self._registration.stop()
            await self._driver.stop()

    async def _keep_served(self) -> None:
        """The driver's socket first: kubelet calls it as soon as it knows of it."""
        self._driver.path.parent.mkdir(parents=True, exist_ok=True)
        for endpoint in (self._driver, self._registration):
            if endpoint is self._registration and not endpoint.is_in_place:
                self._status = NOT_REGISTERED
            await endpoint.keep_served()

    def _on_status(self, refusal: str) -> None:
        self._status = f"kubelet refused the driver: {refusal}" if refusal else ""
        if refusal:
            log.warning("kubelet refused the driver", reason=refusal)
        else:
            log.info("registered", driver=DRIVER)
        self._set_problem(self._status)

    def _set_problem(self, problem: str) -> None:
        if problem not in ("", NOT_REGISTERED, self.problem):
            log.warning("kubelet cannot use the driver", problem=problem)
        self.problem = problem


class Driver:
    """Lives as long as the settings that it was built from."""

    def __init__(self, settings: AgentSettings, preparer: ClaimPreparer, publisher: SlicePublisher) -> None:
        self.preparer = preparer
        self.publisher = publisher
        self.plugin = DraPlugin(settings, preparer)

    @property
    def problem(self) -> str:
        """Why claims cannot be served; empty if they can."""
        if self.plugin.problem:
            return f"kubelet cannot use the driver for ResourceClaims: {self.plugin.problem}"
        return self.publisher.problem

    async def run(self, *, after: asyncio.Event | None) -> None:
        """Runs until cancelled, after the preparer has recovered. Publishes `after` an event."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.plugin.run())
                if after is not None:
                    await after.wait()
                group.create_task(self.publisher.run())
        finally:
            await self.preparer.stop()
