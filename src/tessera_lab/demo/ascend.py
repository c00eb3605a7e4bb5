"""The Ascend node of the demo. Huawei's own plugin serves these chips, so it is simulated as well.

It does what the scheduler relies on: it registers its chips, finds its pod through the node lock, releases the lock,
and writes how the handover ended.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence

from tessera.core.devices import Device
from tessera.kube.client import KubeClient
from tessera.kube.resources import NODES
from tessera.vendors.ascend import Ascend
from tessera.vendors.ascend.backend import VISIBLE
from tessera.vendors.ascend.templates import CHART
from tessera.wire import keys
from tessera.wire.errors import WireError
from tessera.wire.pod_devices import DeviceEntry, decode_pod_devices, encode_pod_devices
from tessera.wire.registration import encode_registration_json
from tessera_lab.sandbox.api.kinds import Json
from tessera_lab.sandbox.nodes.allocation import AllocateError
from tessera_lab.sandbox.nodes.kubelet import Kubelet
from tessera_lab.sandbox.nodes.node import SimulatedNode
from tessera_lab.sandbox.objects import annotations_of, containers_of, uid_of

CHIP = "Ascend910B3"
VENDOR = Ascend(next(chip for chip in CHART.configs if chip.common_word == CHIP))
SHARES = 4
"""pods that share a chip: as many as fit with the smallest template"""

_UUIDS = uuid.UUID("d0b4f9b2-52a9-5b53-9a57-3e6f4d2a8c11")


def ascend_chips(node: str, count: int) -> tuple[Device, ...]:
    """Chips as their plugin registers them, with the same ids every time."""
    return tuple(
        Device(
            uuid=f"NPU-{uuid.uuid5(_UUIDS, f'{node}/{index}')}",
            vendor=CHIP,
            index=index,
            slots=SHARES,
            memory=VENDOR.chip.memory_allocatable,
            cores=VENDOR.chip.ai_core,
            model=CHIP,
        )
        for index in range(count)
    )


class AscendPlugin:
    """Huawei's plugin, as far as scheduler and kubelet see it. It relies on kubelet admitting pods in binding order."""

    def __init__(self, client: KubeClient, node: str, kubelet: Kubelet) -> None:
        self._client = client
        self._path = NODES.path(name=node)
        self._kubelet = kubelet
        self._handed: dict[str, int] = {}
        """pod -> containers that have their chips"""

    async def allocate(self, device_ids: Sequence[str]) -> Mapping[str, str]:
        for pod in self._kubelet.waiting_pods():
            slices = [each for each in _entries(pod) if each]
            done = self._handed.get(uid_of(pod), 0)
            if done >= len(slices):
                continue
            if len(slices[done]) != len(device_ids):
                raise AllocateError(f"a container is to get {len(slices[done])} chips, asked for {len(device_ids)}")
            self._handed[uid_of(pod)] = done + 1
            if done + 1 == len(slices):
                await self._client.patch(self._path, {"metadata": {"annotations": {keys.NODE_LOCK: None}}})
            return {VISIBLE: ",".join(entry.uuid for entry in slices[done])}
        raise AllocateError("no pod waits for chips")

    def prefer(self, available: Sequence[str], count: int) -> Sequence[str] | None:
        return None

    def admitted(self, pod: Json) -> dict[str, str]:
        self._handed.pop(uid_of(pod), None)
        if not any(_entries(pod)):
            return {}
        blank = encode_pod_devices([()] * len(containers_of(pod)))
        return {keys.BIND_PHASE: keys.PHASE_SUCCESS, VENDOR.keys.to_allocate: blank}

    def rejected(self, pod: Json) -> dict[str, str]:
        self._handed.pop(uid_of(pod), None)
        return {keys.BIND_PHASE: keys.PHASE_FAILED} if any(_entries(pod)) else {}


class AscendNode(SimulatedNode):
    """A node with Ascend chips."""

    resource = VENDOR.names.count

    def agent_of(self, client: KubeClient, kubelet: Kubelet) -> AscendPlugin:
        return AscendPlugin(client, self.name, kubelet)

    def registration(self) -> dict[str, str]:
        return {VENDOR.keys.register: encode_registration_json(self.cards)}


def _entries(pod: Json) -> Sequence[Sequence[DeviceEntry]]:
    try:
        return decode_pod_devices(annotations_of(pod).get(VENDOR.keys.to_allocate, ""))
    except WireError:
        return ()
