"""The driver for ResourceClaims: what prepares them, what kubelet calls, and what publishes the cards.

    recover claims of an earlier process -> serve kubelet -> publish

Each card has one allocator. If that is kube-scheduler, cards are published only after the node's classic registration
is gone, and a card that a pod of the classic path still holds is tainted. If it is Tessera's scheduler, every device is
tainted for the others, and the node is registered only after that (`published`).

The plugin keeps two sockets served: the driver's own, and the one by which kubelet finds it.

    absent --serve--> served --(kubelet asks GetInfo and notifies)--> registered
      ^                  |                                                |
      +--(a socket vanished or was replaced by a file that none serves)---+

A kubelet that starts finds the registration socket by itself. Every claim of a call has an entry in the answer, with an
error of its own: one that cannot be prepared holds up no other. Nothing that kubelet sends ends the agent. Cancel to
stop; both sockets are removed then, and kubelet forgets the driver.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import grpc
import structlog
from grpc import aio

from tessera.node.dra.prepared_claims import PreparedClaim
from tessera.node.dra.preparer import ClaimPreparer
from tessera.node.dra.publisher import SlicePublisher
from tessera.node.handover.assignments import ObjectKey
from tessera.node.kubelet.endpoint import Endpoint, Service, ServingError, SocketWatch, answering
from tessera.node.kubelet.plugin import PluginTiming
from tessera.node.kubelet.service import FAULT, status_text
from tessera.node.modes.base import AllocationRefused
from tessera.node.settings import AgentSettings
from tessera.wire.kubelet import dra_pb2 as messages
from tessera.wire.kubelet import methods
from tessera.wire.kubelet import plugin_registration_pb2 as registration
from tessera.wire.resource_api import DRIVER

log = structlog.get_logger(__name__)


Context: TypeAlias = "aio.ServicerContext[Any, Any]"

NOT_REGISTERED = "kubelet has not registered the driver yet"
SOCKET = "dra.sock"
REGISTRATION_SOCKET = f"{DRIVER}-reg.sock"

TIMING = PluginTiming()


class Preparer(Protocol):
    """Both may raise AllocationRefused."""

    async def prepare(self, key: ObjectKey) -> PreparedClaim: ...

    async def unprepare(self, key: ObjectKey) -> None: ...


class DriverService(Service):
    """`dra/v1`. Used from the event loop only."""

    def __init__(self, preparer: Preparer) -> None:
        self._preparer = preparer

    @property
    def probe(self) -> tuple[methods.Method[Any, Any], messages.NodePrepareResourcesRequest]:
        return methods.PREPARE, messages.NodePrepareResourcesRequest()

    def handler(self) -> grpc.GenericRpcHandler:
        calls = (
            answering(methods.PREPARE, self._prepare),
            answering(methods.UNPREPARE, self._unprepare),
        )
        return grpc.method_handlers_generic_handler(methods.DRA_PLUGIN, dict(calls))

    async def _prepare(
        self, request: messages.NodePrepareResourcesRequest, _context: Context
    ) -> messages.NodePrepareResourcesResponse:
        keys = _keys(request.claims)
        answers = await asyncio.gather(*(self._prepare_one(key) for key in keys))
        return messages.NodePrepareResourcesResponse(
            claims={key.uid: answer for key, answer in zip(keys, answers, strict=True)}
        )

    async def _prepare_one(self, key: ObjectKey) -> messages.NodePrepareResourceResponse:
        try:
            return prepare_response(await self._preparer.prepare(key))
        except AllocationRefused as refusal:
            log.warning("claim not prepared", claim=str(key), reason=str(refusal))
            return messages.NodePrepareResourceResponse(error=status_text(str(refusal)))
        except Exception:
            log.exception("preparing a claim failed", claim=str(key))
            return messages.NodePrepareResourceResponse(error=FAULT)

    async def _unprepare(
        self, request: messages.NodeUnprepareResourcesRequest, _context: Context
    ) -> messages.NodeUnprepareResourcesResponse:
        keys = _keys(request.claims)
        answers = await asyncio.gather(*(self._unprepare_one(key) for key in keys))
        return messages.NodeUnprepareResourcesResponse(
            claims={
                key.uid: messages.NodeUnprepareResourceResponse(error=error)
                for key, error in zip(keys, answers, strict=True)
            }
        )

    async def _unprepare_one(self, key: ObjectKey) -> str:
        try:
            await self._preparer.unprepare(key)
        except AllocationRefused as refusal:
            log.warning("claim not unprepared", claim=str(key), reason=str(refusal))
            return status_text(str(refusal))
        except Exception:
            log.exception("unpreparing a claim failed", claim=str(key))
            return FAULT
        return ""


def prepare_response(record: PreparedClaim) -> messages.NodePrepareResourceResponse:
    """A container gets the CDI devices of all devices of its request, so the first device names them for all."""
    answered: set[str] = set()
    devices = []
    for each in record.devices:
        ids = () if each.request_name in answered else record.cdi_devices.get(each.request_name, ())
        answered.add(each.request_name)
        devices.append(
            messages.Device(
                request_names=[each.request_name],
                pool_name=each.pool,
                device_name=each.device,
                cdi_device_ids=ids,
                share_id=each.share_id,
            )
        )
    return messages.NodePrepareResourceResponse(devices=devices)


def _keys(claims: Sequence[messages.Claim]) -> list[ObjectKey]:
    return list(dict.fromkeys(ObjectKey(each.namespace, each.name, each.uid) for each in claims))


class RegistrationService(Service):
    """`pluginregistration/v1`: where the driver's own socket is, and what kubelet made of it."""

    def __init__(self, endpoint: str, *, on_status: Callable[[str], None]) -> None:
        """`on_status` gets why kubelet refused the driver; empty if it is registered."""
        self._endpoint = endpoint
        self._on_status = on_status

    @property
    def probe(self) -> tuple[methods.Method[Any, Any], registration.InfoRequest]:
        return methods.GET_INFO, registration.InfoRequest()

    def handler(self) -> grpc.GenericRpcHandler:
        calls = (
            answering(methods.GET_INFO, self._info),
            answering(methods.NOTIFY_STATUS, self._notify),
        )
        return grpc.method_handlers_generic_handler(methods.PLUGIN_REGISTRATION, dict(calls))

    async def _info(self, _request: registration.InfoRequest, _context: Context) -> registration.PluginInfo:
        return registration.PluginInfo(
            type=methods.DRA_PLUGIN_TYPE,
            name=DRIVER,
            endpoint=self._endpoint,
            supported_versions=methods.DRA_VERSIONS,
        )

    async def _notify(
        self, request: registration.RegistrationStatus, _context: Context
    ) -> registration.RegistrationStatusResponse:
        self._on_status("" if request.plugin_registered else request.error or "kubelet gave no reason")
        return registration.RegistrationStatusResponse()


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
