"""The gRPC methods between kubelet and its plugins, by name, with their messages.

Plain values from which clients and servers are made. Only methods that this program calls or serves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from google.protobuf.message import Message

from tessera.wire.kubelet import device_plugin_pb2 as device_plugin
from tessera.wire.kubelet import dra_pb2 as dra
from tessera.wire.kubelet import plugin_registration_pb2 as plugin_registration
from tessera.wire.kubelet import pod_resources_pb2 as pod_resources

VERSION = "v1beta1"
"""of the device plugin interface, as Register names it"""
HEALTHY = "Healthy"
UNHEALTHY = "Unhealthy"

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)


@dataclass(frozen=True, slots=True)
class Method(Generic[Request, Response]):
    """One call; a stream of responses where `streams`."""

    service: str
    name: str
    request: type[Request]
    response: type[Response]
    streams: bool = False

    @property
    def path(self) -> str:
        return f"/{self.service}/{self.name}"


REGISTRATION = "v1beta1.Registration"
REGISTER = Method(REGISTRATION, "Register", device_plugin.RegisterRequest, device_plugin.Empty)

DEVICE_PLUGIN = "v1beta1.DevicePlugin"
OPTIONS = Method(DEVICE_PLUGIN, "GetDevicePluginOptions", device_plugin.Empty, device_plugin.DevicePluginOptions)
LIST_AND_WATCH = Method(
    DEVICE_PLUGIN, "ListAndWatch", device_plugin.Empty, device_plugin.ListAndWatchResponse, streams=True
)
PREFERRED_ALLOCATION = Method(
    DEVICE_PLUGIN,
    "GetPreferredAllocation",
    device_plugin.PreferredAllocationRequest,
    device_plugin.PreferredAllocationResponse,
)
ALLOCATE = Method(DEVICE_PLUGIN, "Allocate", device_plugin.AllocateRequest, device_plugin.AllocateResponse)
PRE_START = Method(
    DEVICE_PLUGIN,
    "PreStartContainer",
    device_plugin.PreStartContainerRequest,
    device_plugin.PreStartContainerResponse,
)

POD_RESOURCES = "v1.PodResourcesLister"
LIST = Method(POD_RESOURCES, "List", pod_resources.ListPodResourcesRequest, pod_resources.ListPodResourcesResponse)

PLUGIN_REGISTRATION = "pluginregistration.Registration"
GET_INFO = Method(PLUGIN_REGISTRATION, "GetInfo", plugin_registration.InfoRequest, plugin_registration.PluginInfo)
NOTIFY_STATUS = Method(
    PLUGIN_REGISTRATION,
    "NotifyRegistrationStatus",
    plugin_registration.RegistrationStatus,
    plugin_registration.RegistrationStatusResponse,
)

DRA_PLUGIN_TYPE = "DRAPlugin"
DRA_VERSIONS = ("v1.DRAPlugin",)
"""of the service, as GetInfo names them"""
DRA_PLUGIN = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
PREPARE = Method(DRA_PLUGIN, "NodePrepareResources", dra.NodePrepareResourcesRequest, dra.NodePrepareResourcesResponse)
UNPREPARE = Method(
    DRA_PLUGIN, "NodeUnprepareResources", dra.NodeUnprepareResourcesRequest, dra.NodeUnprepareResourcesResponse
)
