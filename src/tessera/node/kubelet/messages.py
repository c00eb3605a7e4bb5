"""What the agent has to say, as kubelet's messages."""

from __future__ import annotations

from collections.abc import Iterable

from tessera.node.kubelet.device_ids import Replica
from tessera.node.modes.base import Answer
from tessera.node.settings import AgentSettings
from tessera.wire.kubelet import device_plugin_pb2 as messages
from tessera.wire.kubelet.methods import HEALTHY, UNHEALTHY, VERSION

MOST_TEXT = 1024
"""characters of a status text: it travels in a header, where there is little room"""


def options(settings: AgentSettings) -> messages.DevicePluginOptions:
    """The same wherever kubelet asks, because kubelets differ in where they look."""
    return messages.DevicePluginOptions(
        pre_start_required=False, get_preferred_allocation_available=settings.node.preferred_allocation
    )


def registration(settings: AgentSettings, *, endpoint: str) -> messages.RegisterRequest:
    return messages.RegisterRequest(
        version=VERSION, endpoint=endpoint, resource_name=settings.resource, options=options(settings)
    )


def device_list(replicas: Iterable[Replica]) -> messages.ListAndWatchResponse:
    return messages.ListAndWatchResponse(devices=[_device(each) for each in replicas])


def _device(replica: Replica) -> messages.Device:
    topology = None
    if replica.numa is not None:
        topology = messages.TopologyInfo(nodes=[messages.NUMANode(ID=replica.numa)])
    return messages.Device(ID=replica.id, health=HEALTHY if replica.healthy else UNHEALTHY, topology=topology)


def allocation(answers: Iterable[Answer]) -> messages.AllocateResponse:
    return messages.AllocateResponse(container_responses=[_container(answer) for answer in answers])


def _container(answer: Answer) -> messages.ContainerAllocateResponse:
    return messages.ContainerAllocateResponse(
        envs=answer.env,
        mounts=[
            messages.Mount(container_path=mount.container_path, host_path=mount.host_path, read_only=mount.read_only)
            for mount in answer.mounts
        ],
        devices=[
            messages.DeviceSpec(
                container_path=node.container_path, host_path=node.host_path, permissions=node.permissions
            )
            for node in answer.devices
        ],
        annotations=answer.annotations,
        cdi_devices=[messages.CDIDevice(name=name) for name in answer.cdi_devices],
    )


def status_text(text: str) -> str:
    """Fit for a gRPC status, whatever somebody wrote into it."""
    readable = text.encode("utf-8", "replace").decode()
    return readable if len(readable) <= MOST_TEXT else f"{readable[: MOST_TEXT - 3]}..."
