"""Keeps the service on its socket and registered with kubelet, whatever becomes of either.

    absent --serve--> served --register--> registered --(kubelet listens)--> in use
      ^                 ^  ^                   |                               |
      |                 |  +--(kubelet.sock is another one, or kubelet stopped listening)
      +--(own socket vanished)-----------------+-------------------------------+

What fails is tried again after a while, or as soon as something changes in kubelet's folder. Stop is cancellation.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from tessera.kube.backoff import Backoff
from tessera.node.kubelet import messages as encoding
from tessera.node.kubelet.endpoint import GRACE_S, Endpoint, ServingError
from tessera.node.kubelet.registration import REGISTER_S, RegisteringError, register
from tessera.node.kubelet.service import Allocator, Counted, DevicePluginService
from tessera.node.kubelet.socket_watch import LOOK_EVERY_S, FileId, Watching
from tessera.node.settings import AgentSettings

log = structlog.get_logger(__name__)

LISTEN_S = 10.0
"""kubelet listens at once after a registration; when it does not for so long, it has forgotten the plugin"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """All in seconds."""

    backoff: Backoff = field(default_factory=lambda: Backoff(initial=2.0, cap=30.0, floor=1.0))
    look_every: float = LOOK_EVERY_S
    listen: float = LISTEN_S
    register: float = REGISTER_S
    grace: float = GRACE_S


_USUAL_PACE = Pace()


def socket_path(settings: AgentSettings) -> Path:
    """One for each resource."""
    return settings.paths.plugins / f"nvidia-{settings.resource.rpartition('/')[2]}.sock"


class Plugin:
    """The device plugin of one resource."""

    def __init__(
        self,
        settings: AgentSettings,
        counted: Counted,
        allocator: Allocator,
        *,
        pace: Pace = _USUAL_PACE,
        on_new_kubelet: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_new_kubelet` is called whenever kubelet may have begun anew, before it can ask for anything."""
        self._on_new_kubelet = on_new_kubelet
        self._kubelet = settings.paths.kubelet_socket
        self._pace = pace
        self._service = DevicePluginService(settings, counted, allocator)
        self._endpoint = Endpoint(socket_path(settings), self._service, grace=pace.grace)
        self._registration = encoding.registration(settings, endpoint=self._endpoint.path.name)
        self._registered: FileId | None = None
        """kubelet's socket at the last registration that worked"""
        self._heard_at = 0.0
        """when kubelet was last known to listen, or given the chance to"""
        self.problem = "not started"
        """why kubelet cannot use the plugin; empty = it can"""

    async def run(self) -> None:
        """Until cancelled: then streams end, the server stops and the socket is gone."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._service.follow())
            group.create_task(self._keep())

    async def _keep(self) -> None:
        rng = random.Random()
        failures = 0
        watching = Watching(own=self._endpoint.path, kubelet=self._kubelet, look_every=self._pace.look_every)
        with watching:
            try:
                seen = sight = await watching.look()
                while True:
                    # A kubelet that has just come is no reason to be slow because an earlier one was not there.
                    failures = failures if sight.kubelet == seen.kubelet else 0
                    before = self._endpoint.file
                    try:
                        await self._keep_served(sight.own)
                        await self._keep_registered(sight.kubelet)
                    except (ServingError, RegisteringError) as error:
                        failures += 1
                        wait = self._pace.backoff.delay(failures, rng)
                        self._is(str(error), again_in_s=round(wait, 1))
                    else:
                        failures = 0 if self._service.streams else failures
                        wait = self._pace.listen
                    # What this agent did to its own socket is no news to it.
                    seen = sight if self._endpoint.file == before else sight._replace(own=self._endpoint.file)
                    sight = await watching.other_than(seen, within=wait)
            finally:
                await self._endpoint.stop()

    async def _keep_served(self, own: FileId | None) -> None:
        served = self._endpoint.file
        if served is not None and own == served:
            return
        if served is not None and own is not None and await self._endpoint.is_answered():
            # The newer agent wins, or the two would take the place from each other for ever.
            raise ServingError(f"another agent serves on {self._endpoint.path}")
        await self._endpoint.serve()
        log.info("serving", socket=str(self._endpoint.path))
        self._registered = None

    async def _keep_registered(self, kubelet: FileId | None) -> None:
        if self._kubelet is None:
            self._is("")
            return
        if kubelet is None:
            self._registered = None
            self._is(f"kubelet is not there: no {self._kubelet}")
            return
        now = asyncio.get_running_loop().time()
        if self._service.streams:
            self._heard_at = now
        if kubelet == self._registered and now - self._heard_at >= self._pace.listen:
            self._registered = None
            raise RegisteringError(f"kubelet does not listen, though {self._kubelet} took the registration")
        if kubelet != self._registered:
            # Before: kubelet may ask for devices as soon as it has heard of us.
            self._on_new_kubelet()
            await register(self._kubelet, self._registration, deadline=self._pace.register)
            self._registered, self._heard_at = kubelet, asyncio.get_running_loop().time()
            log.info("registered", resource=self._registration.resource_name, endpoint=self._registration.endpoint)
        self._is("")

    def _is(self, problem: str, **more: float) -> None:
        """Say what changed, once."""
        if problem and problem != self.problem:
            log.warning("kubelet cannot use the plugin", problem=problem, **more)
        self.problem = problem
