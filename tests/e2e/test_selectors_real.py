"""Selectors on a real apiserver and a stock kube-scheduler: the devices that match are those that match here.

Each claim asks for all devices that match, with an administrator's access, so that one device serves all claims and the
allocation is the list of matching devices.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import yaml

from tessera.vendors.claims.pools import PoolDevices, pool_devices
from tessera.wire.cel import Selector, compile_selector
from tessera.wire.resource_api import API_VERSION, DRIVER, ResourceClaim, ResourceSlice
from tests.e2e.control_plane import ControlPlane
from tests.support.claims import FAILED, FALSE, TRUE, C, G

Json = dict[str, Any]

WITHIN_S = 120.0
LEAST_OF_EACH = 3
"""selectors of each outcome at least: the comparison must not be about one kind only"""

SOME = [
    f"{G}.model == 'NVIDIA A100'",
    f"{G}.index < 1",
    f"{G}.driverVersion.isLessThan(semver('580.0.0'))",
    f"has({G}.spare) && !{G}.spare || {C}.memory.compareTo(quantity('100Gi')) < 0",
    f"has({G}.nvlinkGroup)",
    f"{G}.uuid.endsWith('-2')",
    "!('resource.kubernetes.io' in device.attributes)",
    "!device.allowMultipleAllocations",
]
"""that match some of the devices"""
EXPRESSIONS = list(dict.fromkeys([*TRUE, *FALSE, *SOME, *FAILED]))


def device(name: str, *, shared: bool, memory: str, **attributes: Json) -> Json:
    capacity = {"memory": {"value": memory}, "cores": {"value": "100"}}
    taken = {"attributes": attributes, "capacity": capacity}
    return {"name": name, **taken, **({"allowMultipleAllocations": True} if shared else {})}


def devices() -> list[Json]:
    first = device(
        "one",
        shared=True,
        memory="140Gi",
        uuid={"string": "GPU-1"},
        index={"int": 1},
        model={"string": "NVIDIA H200"},
        spare={"bool": True},
        computeCapability={"version": "9.0.0"},
        driverVersion={"version": "580.65.6"},
    )
    first["attributes"]["resource.kubernetes.io/pcieRoot"] = {"string": "pci0000:00"}
    second = device(
        "two",
        shared=False,
        memory="80Gi",
        uuid={"string": "GPU-2"},
        index={"int": 0},
        model={"string": "NVIDIA A100"},
        nvlinkGroup={"string": "nvlink-0"},
        computeCapability={"version": "8.0.0"},
        driverVersion={"version": "570.1.2-rc.1"},
    )
    return [first, second]


class Stock:
    """A node without a kubelet, its devices, and a kube-scheduler of its own."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self.label = f"selectors-{uuid.uuid4().hex[:6]}"
        file = plane.folder / f"{self.label}.yaml"
        configuration = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": {"kubeconfig": str(plane.kubeconfig("kube-scheduler")), "qps": 1000, "burst": 1000},
            "leaderElection": {"leaderElect": False},
            "profiles": [{"schedulerName": self.label}],
        }
        file.write_text(yaml.safe_dump(configuration))
        self.program = plane.program(self.label, "kube-scheduler", f"--config={file}", "--secure-port=0", "--v=2")

    def create(self, *objects: Json) -> str:
        """Creates what the apiserver accepts; returns what it says of the rest."""
        file = self.plane.folder / f"{self.label}-objects.json"
        file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))
        return self.plane.try_kubectl("create", "-f", str(file)).stderr

    def get(self, kind: str) -> dict[str, Json]:
        found = json.loads(self.plane.kubectl("get", kind, f"--namespace={self.label}", "-o", "json"))["items"]
        return {each["metadata"]["name"]: each for each in found}

    def setup(self) -> None:
        ready = {
            "type": "Ready",
            "status": "True",
            "lastHeartbeatTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        size = {"cpu": "64", "memory": "64Gi", "pods": "500"}
        metadata = {"name": self.label, "labels": {"kubernetes.io/hostname": self.label}}
        pool = {"name": self.label, "generation": 1, "resourceSliceCount": 1}
        said = self.create(
            {
                "apiVersion": "v1",
                "kind": "Namespace",
                "metadata": {"name": self.label, "labels": {"resource.kubernetes.io/admin-access": "true"}},
            },
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": metadata,
                "status": {"capacity": size, "allocatable": size, "conditions": [ready]},
            },
            {
                "apiVersion": API_VERSION,
                "kind": "DeviceClass",
                "metadata": {"name": self.label},
                "spec": {"selectors": [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}]},
            },
            {
                "apiVersion": API_VERSION,
                "kind": "ResourceSlice",
                "metadata": {"name": self.label},
                "spec": {"driver": DRIVER, "pool": pool, "nodeName": self.label, "devices": devices()},
            },
        )
        assert not said

    def claim(self, number: int, expression: str) -> Json:
        exactly = {
            "deviceClassName": self.label,
            "allocationMode": "All",
            "adminAccess": True,
            "selectors": [{"cel": {"expression": expression}}],
        }
        return {
            "apiVersion": API_VERSION,
            "kind": "ResourceClaim",
            "metadata": {"name": f"c{number}", "namespace": self.label},
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
        }

    def pod(self, claim: str) -> Json:
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": claim, "namespace": self.label},
            "spec": {
                "schedulerName": self.label,
                "nodeSelector": {"kubernetes.io/hostname": self.label},
                "tolerations": [{"operator": "Exists"}],
                "resourceClaims": [{"name": "gpu", "resourceClaimName": claim}],
                "containers": [{"name": "main", "image": "none", "resources": {"claims": [{"name": "gpu"}]}}],
            },
        }

    def has_decided(self, names: Sequence[str]) -> bool:
        """Whether kube-scheduler has answered about each pod."""
        pods = self.get("pods")
        return all(_conditions(pods[name]) for name in names)

    def stop(self) -> None:
        self.program.kill()
        self.plane.try_kubectl("delete", "namespace", self.label, "--wait=false")
        for kind in ("node", "deviceclass", "resourceslice"):
            self.plane.try_kubectl("delete", kind, self.label)


def _conditions(pod: Json) -> str:
    """What kube-scheduler says of a pod; empty if nothing yet."""
    for each in pod.get("status", {}).get("conditions", ()):
        if each["type"] == "PodScheduled":
            return each.get("message", "") or "scheduled"
    return ""


def matching(pool: PoolDevices, selector: Selector) -> dict[str, bool | None]:
    """What a selector says of each device; None where it fails."""
    return {name: selector.answer(each.published, driver=DRIVER) for name, each in pool.devices.items()}


def test_a_stock_scheduler_finds_the_same_devices(plane: ControlPlane, tell: Callable[[str], None]) -> None:
    stock = Stock(plane)
    try:
        stock.setup()
        refused = stock.create(*(stock.claim(number, text) for number, text in enumerate(EXPRESSIONS)))
        names = sorted(stock.get("resourceclaims"))
        kept = {name: EXPRESSIONS[int(name[1:])] for name in names}
        # What is meant to have a value on a card is an expression that the apiserver accepts.
        assert {*TRUE, *FALSE, *SOME} <= set(kept.values()), refused
        assert not stock.create(*(stock.pod(name) for name in names))
        stock.program.start()
        stock.program.ready(lambda: stock.has_decided(names), within_s=WITHIN_S)
        pods = stock.get("pods")
        claims = stock.get("resourceclaims")
        slices = json.loads(plane.kubectl("get", "resourceslice", stock.label, "-o", "json"))
        pool = pool_devices([msgspec.convert(slices, ResourceSlice)])
        assert sorted(pool.devices) == ["one", "two"]
        outcomes: Counter[str] = Counter()
        for name, text in kept.items():
            selector = compile_selector(text)
            assert isinstance(selector, Selector), text
            ours = matching(pool, selector)
            message = _conditions(pods[name])
            if "CEL runtime error" in message or "could not be converted to bool" in message:
                outcomes["failed"] += 1
                assert None in ours.values(), text
                continue
            given = msgspec.convert(claims[name], ResourceClaim).devices_of(DRIVER)
            outcomes[f"{len(given)} devices"] += 1
            assert {each.device for each in given} == {device for device, found in ours.items() if found}, text
            assert None not in ours.values(), (text, message)
        tell(f"{len(kept)} selectors: {dict(outcomes)}")
        assert min(outcomes[each] for each in ("failed", "0 devices", "1 devices", "2 devices")) >= LEAST_OF_EACH
    finally:
        stock.stop()
