"""Answers kubelet: the two calls of a driver for dynamic resources, and the two of its registration.

Every claim of a call has an entry in the answer, with an error of its own: one that cannot be prepared holds up no
other. Nothing that kubelet sends ends the agent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import grpc
import structlog
from grpc import aio

from tessera.node.dra.prepared_claims import PreparedClaim
from tessera.node.handover.assignments import ObjectKey
from tessera.node.kubelet import channels
from tessera.node.kubelet.endpoint import Service
from tessera.node.kubelet.service import status_text
from tessera.node.modes.base import AllocationRefused
from tessera.wire.kubelet import dra_pb2 as messages
from tessera.wire.kubelet import methods
from tessera.wire.kubelet import plugin_registration_pb2 as registration
from tessera.wire.resource_api import DRIVER

log = structlog.get_logger(__name__)

FAULT = "a fault in the node agent; its log says more"

Context: TypeAlias = "aio.ServicerContext[Any, Any]"


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
            channels.answering(methods.PREPARE, self._prepare),
            channels.answering(methods.UNPREPARE, self._unprepare),
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
            channels.answering(methods.GET_INFO, self._info),
            channels.answering(methods.NOTIFY_STATUS, self._notify),
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
