"""A GPU cluster as the API shows it: thousands of nodes and pods as complete JSON objects.

Objects have the size and the noise of real ones (managed fields, conditions, images), so that skipping unused
fields costs here what it costs in production. The same numbers always give the same objects.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tessera.core.model.devices import HAMI_CORE, Device
from tessera.vendors.downward_api import container_env
from tessera.vendors.nvidia.downward_api import NvidiaDownwardApi
from tessera.wire import keys
from tessera.wire.pod_devices import DeviceEntry, encode_pod_devices
from tessera.wire.registration import encode_registration_json

NVIDIA = "NVIDIA"
MODEL = "NVIDIA A100-SXM4-80GB"
CARD_MEMORY = 81_920
"""MiB"""
SHARERS = 10
HELD = (4_000, 3)
"""MiB and per cent of each running pod: 16 of them leave space on every card of a node with eight"""
NAMESPACES = 50
IMAGES = 30
"""a kubelet reports up to 50"""
BORN = "2026-11-15T06:47:30Z"


def node_name(number: int) -> str:
    return f"gpu-a100-pool-node-{number:05}"


def card_uuid(node: int, index: int) -> str:
    return f"GPU-{node:08x}-{index:04x}-4c53-9a4e-0123456789ab"


def node_objects(nodes: int, devices: int) -> list[bytes]:
    return [msgspec.json.encode(_node(number, devices)) for number in range(nodes)]


def pod_objects(nodes: int, devices: int, pods_per_node: int) -> list[bytes]:
    """Running pods, bound and handed over, spread over the cards of their node."""
    template = msgspec.json.encode(_running_pod()).decode()
    return [
        (template % _pod_marks(node, pod, devices)).encode() for node in range(nodes) for pod in range(pods_per_node)
    ]


def _node(number: int, devices: int) -> dict[str, Any]:
    name = node_name(number)
    cards = [
        Device(
            card_uuid(number, i), NVIDIA, i, SHARERS, CARD_MEMORY, model=MODEL, numa=i * 2 // devices, mode=HAMI_CORE
        )
        for i in range(devices)
    ]
    amounts = {"cpu": "128", "ephemeral-storage": "3655Gi", "hugepages-1Gi": "0", "memory": "2113191508Ki"}
    amounts |= {"nvidia.com/gpu": str(SHARERS * devices), "pods": "110"}
    address = f"10.{number // 65536}.{number // 256 % 256}.{number % 256}"
    return {
        "metadata": {
            "name": name,
            "uid": f"{number:08x}-0d0e-4000-8000-00000000beef",
            "resourceVersion": str(1_000 + number),
            "creationTimestamp": BORN,
            "labels": {
                "beta.kubernetes.io/arch": "amd64",
                "beta.kubernetes.io/os": "linux",
                "gpu": "on",
                "kubernetes.io/hostname": name,
                "node.kubernetes.io/instance-type": "a100.8x80",
                "topology.kubernetes.io/zone": f"zone-{number % 3}",
                **{f"feature.node.kubernetes.io/cpu-cpuid.F{i}": "true" for i in range(30)},
            },
            "annotations": {
                "hami.io/node-nvidia-register": encode_registration_json(cards),
                keys.AGENT: "env",
                "node.alpha.kubernetes.io/ttl": "0",
                "volumes.kubernetes.io/controller-managed-attach-detach": "true",
            },
            "managedFields": _managed("kubelet", "f:status", 20),
        },
        "spec": {"podCIDR": f"{address}/25", "podCIDRs": [f"{address}/25"], "providerID": f"rack:///{name}"},
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [
                _condition(kind, "False", "kubelet has no complaint about it")
                for kind in ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready")
            ],
            "addresses": [{"type": "InternalIP", "address": address}, {"type": "Hostname", "address": name}],
            "nodeInfo": {"kernelVersion": "6.8.0", "kubeletVersion": "v1.36.3", "architecture": "amd64"},
            "images": [
                {
                    "names": [f"registry.example/team-{i}/trainer@sha256:{i:064x}", f"registry.example/team-{i}:{i}"],
                    "sizeBytes": 9_000_000_000 + i,
                }
                for i in range(IMAGES)
            ],
        },
    }


def _running_pod() -> dict[str, Any]:
    """A template with `%(...)s` for what differs between pods."""
    pod = asking_pod(*HELD)
    pod["metadata"] |= {
        "name": "%(name)s",
        "generateName": "training-",
        "namespace": "%(namespace)s",
        "uid": "%(uid)s",
        "resourceVersion": "%(version)s",
        "labels": pod["metadata"]["labels"] | {keys.ASSIGNED_NODE: "%(node)s"},
        "annotations": {
            keys.ASSIGNED_NODE: "%(node)s",
            keys.ASSIGNED_TIME: "1794725250",
            keys.BIND_PHASE: keys.PHASE_SUCCESS,
            keys.BIND_TIME: "1794725250",
            "hami.io/vgpu-devices-to-allocate": ";",
            "hami.io/vgpu-devices-allocated": "%(slices)s",
            keys.visible_devices(0): "%(card)s",
            keys.memory_limit(0, 0): f"{HELD[0]}m",
            keys.core_limit(0): str(HELD[1]),
        },
    }
    pod["spec"]["nodeName"] = "%(node)s"
    pod["status"] = {
        "phase": "Running",
        "conditions": [_condition(kind, "True", "") for kind in ("PodScheduled", "Initialized", "Ready")],
        "hostIP": "10.0.0.1",
        "podIP": "10.128.0.1",
        "startTime": BORN,
        "containerStatuses": [
            {
                "name": "main",
                "state": {"running": {"startedAt": BORN}},
                "lastState": {},
                "ready": True,
                "restartCount": 0,
                "image": "registry.example/team/trainer:1",
                "imageID": f"registry.example/team/trainer@sha256:{7:064x}",
                "containerID": f"containerd://{9:064x}",
                "started": True,
            }
        ],
        "qosClass": "Burstable",
    }
    return pod


def _pod_marks(node: int, pod: int, devices: int) -> dict[str, str]:
    card = card_uuid(node, pod % devices)
    return {
        "name": f"training-{node}-{pod}",
        "namespace": f"team-{node % NAMESPACES}",
        "uid": f"{node:08x}-{pod:04x}-4000-8000-000000000000",
        "version": str(100_000 + node),
        "node": node_name(node),
        "card": card,
        "slices": encode_pod_devices([[DeviceEntry(card, NVIDIA, *HELD)]]),
    }


def asking_pod(memory: int, cores: int) -> dict[str, Any]:
    """An admitted pod as kube-scheduler sends it to an extender: a template for name, namespace and uid."""
    amounts = {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "1"}
    amounts |= {"nvidia.com/gpumem": str(memory), "nvidia.com/gpucores": str(cores)}
    token = "kube-api-access-tcjbj"
    sources = [
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
    ]
    return {
        "metadata": {
            "name": "%(name)s",
            "namespace": "%(namespace)s",
            "uid": "%(uid)s",
            "resourceVersion": "12315",
            "generation": 1,
            "creationTimestamp": BORN,
            "labels": {"app": "training", "pod-template-hash": "5cc5f466ff"},
            "ownerReferences": [
                {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "training-5cc5f466ff", "controller": True}
            ],
            "managedFields": _managed("kube-controller-manager", "f:spec", 8),
        },
        "spec": {
            "volumes": [{"name": token, "projected": {"sources": sources, "defaultMode": 420}}],
            "containers": [
                {
                    "name": "main",
                    "image": "registry.example/team/trainer:1",
                    "command": ["python", "-m", "train"],
                    "env": container_env(NvidiaDownwardApi(), container=0, name="main", devices=1),
                    "resources": {"limits": amounts, "requests": amounts},
                    "volumeMounts": [{"name": token, "readOnly": True, "mountPath": "/var/run/secrets"}],
                    "terminationMessagePath": "/dev/termination-log",
                    "terminationMessagePolicy": "File",
                    "imagePullPolicy": "IfNotPresent",
                }
            ],
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 30,
            "dnsPolicy": "ClusterFirst",
            "serviceAccountName": "default",
            "securityContext": {},
            "schedulerName": "hami-scheduler",
            "tolerations": [
                {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute"}
                for key in ("not-ready", "unreachable")
            ],
            "priority": 0,
            "enableServiceLinks": True,
            "preemptionPolicy": "PreemptLowerPriority",
        },
        "status": {"phase": "Pending", "qosClass": "Burstable"},
    }


def _condition(kind: str, status: str, message: str) -> dict[str, str]:
    times = {"lastHeartbeatTime": BORN, "lastTransitionTime": BORN}
    return {"type": kind, "status": status, **times, "reason": f"KubeletHas{kind}", "message": message}


def _managed(manager: str, root: str, fields: int) -> list[dict[str, Any]]:
    tree: dict[str, Any] = {root: {f"f:field{i}": {".": {}, "f:name": {}, "f:value": {}} for i in range(fields)}}
    return [{"manager": manager, "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": tree}]
