"""Keeps the device plugin service on its socket and registered with kubelet.

    absent --serve--> served --register--> registered --(kubelet listens)--> in use
      ^                 ^  ^                   |                               |
      |                 |  +--(kubelet.sock was replaced, or kubelet stopped listening)
      +--(own socket vanished)-----------------+-------------------------------+

A failed step is tried again after a pause, or as soon as something changes in kubelet's directory. Cancel to stop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from tessera.kube.backoff import Backoff
from tessera.node.kubelet.endpoint import (
    FAULTS,
    GRACE_S,
    LOOK_EVERY_S,
    Endpoint,
    FileId,
    ServingError,
    SocketWatch,
    described,
    open_channel,
    unary,
)
from tessera.node.kubelet.service import Allocator, Counted, DevicePluginService, registration_request
from tessera.node.settings import AgentSettings
from tessera.wire.kubelet import device_plugin_pb2 as messages
from tessera.wire.kubelet.methods import REGISTER

log = structlog.get_logger(__name__)

REGISTER_S = 5.0
"""for kubelet to connect back, read the options and answer"""

LISTEN_S = 10.0
"""kubelet listens at once after a registration; if it does not for this long, it has forgotten the plugin"""


class RegistrationError(Exception):
    """kubelet did not accept the registration; the text says why."""


async def register(kubelet: Path, request: messages.RegisterRequest, *, deadline: float = REGISTER_S) -> None:
    """Registers the plugin once. Raises RegistrationError."""
    async with open_channel(kubelet) as channel:
        try:
            await unary(channel, REGISTER)(request, timeout=deadline)
        except FAULTS as error:
            raise RegistrationError(f"kubelet at {kubelet}: {described(error)}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginTiming:
    """All in seconds."""

    backoff: Backoff = field(default_factory=lambda: Backoff(initial=2.0, cap=30.0, floor=1.0))
    look_every: float = LOOK_EVERY_S
    listen: float = LISTEN_S
    register: float = REGISTER_S
    grace: float = GRACE_S


_DEFAULT_TIMING = PluginTiming()


def socket_path(settings: AgentSettings) -> Path:
    """Returns the socket of a resource."""
    return settings.paths.plugins / f"nvidia-{settings.resource.rpartition('/')[2]}.sock"


class Plugin:
    """The device plugin of one resource."""

    def __init__(
        self,
        settings: AgentSettings,
        counted: Counted,
        allocator: Allocator,
        *,
        timing: PluginTiming = _DEFAULT_TIMING,
        on_new_kubelet: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_new_kubelet` is called when kubelet may have restarted, before it can call Allocate."""
        self._on_new_kubelet = on_new_kubelet
        self._kubelet = settings.paths.kubelet_socket
        self._timing = timing
        self._service = DevicePluginService(settings, counted, allocator)
        self._endpoint = Endpoint(socket_path(settings), self._service, grace=timing.grace)
        self._registration = registration_request(settings, endpoint=self._endpoint.path.name)
        self._registered: FileId | None = None
        """kubelet's socket at the last successful registration"""
        self._heard_at = 0.0
        """when kubelet was last seen listening, or was registered with"""
        self.problem = "not started"
        """why kubelet cannot use the plugin; empty if it can"""

    async def run(self) -> None:
        """Runs until cancelled; then streams end, the server stops and the socket is removed."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._service.follow())
            group.create_task(self._keep())

    async def _keep(self) -> None:
        failures = 0
        watch = SocketWatch(own=self._endpoint.path, kubelet=self._kubelet, look_every=self._timing.look_every)
        try:
            seen = state = watch.look()
            while True:
                # A new kubelet does not inherit the back-off of the time before it.
                failures = failures if state.kubelet == seen.kubelet else 0
                before = self._endpoint.file
                try:
                    if await self._endpoint.keep_served():
                        self._registered = None
                    await self._keep_registered(state.kubelet)
                except (ServingError, RegistrationError) as error:
                    failures += 1
                    wait = self._timing.backoff.delay(failures)
                    self._set_problem(str(error), again_in_s=round(wait, 1))
                else:
                    failures = 0 if self._service.streams else failures
                    wait = self._timing.listen
                # A change of the own socket made here is no news.
                seen = state if self._endpoint.file == before else state._replace(own=self._endpoint.file)
                state = await watch.other_than(seen, within=wait)
        finally:
            await self._endpoint.stop()

    async def _keep_registered(self, kubelet: FileId | None) -> None:
        if self._kubelet is None:
            self._set_problem("")
            return
        if kubelet is None:
            self._registered = None
            self._set_problem(f"kubelet is not running: no {self._kubelet}")
            return
        now = asyncio.get_running_loop().time()
        if self._service.streams:
            self._heard_at = now
        if kubelet == self._registered and now - self._heard_at >= self._timing.listen:
            self._registered = None
            raise RegistrationError(f"kubelet does not listen, though {self._kubelet} accepted the registration")
        if kubelet != self._registered:
            # First: kubelet may call Allocate as soon as it knows the plugin.
            self._on_new_kubelet()
            await register(self._kubelet, self._registration, deadline=self._timing.register)
            self._registered, self._heard_at = kubelet, asyncio.get_running_loop().time()
            log.info("registered", resource=self._registration.resource_name, endpoint=self._registration.endpoint)
        self._set_problem("")

    def _set_problem(self, problem: str, **more: float) -> None:
        """Logs each problem once."""
        if problem and problem != self.problem:
            log.warning("kubelet cannot use the plugin", problem=problem, **more)
        self.problem = problem
