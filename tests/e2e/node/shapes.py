"""Pods whose containers print their environment: many shapes, and no two with the same slice."""

from __future__ import annotations

from tessera_lab.sandbox.api.kinds import Json
from tessera_lab.sandbox.objects import containers_of, is_sidecar
from tests.e2e.node.image import PRINTING, TALKER
from tests.support.product import container, pod, sidecar

GRACE_S = 5
WISHES = {
    "NVIDIA_VISIBLE_DEVICES": "all",
    "CUDA_DEVICE_MEMORY_LIMIT_0": "80000m",
    "CUDA_DEVICE_MEMORY_LIMIT": "80000m",
    "CUDA_DEVICE_SM_LIMIT": "100",
    "CUDA_DEVICE_SM_LIMIT_0": "100",
    "CUDA_DEVICE_MEMORY_SHARED_CACHE": "/tmp/mine",
}
"""what a tenant would like"""


def talking(manifest: Json) -> Json:
    """The pod with an image that is here, and containers that print their environment."""
    spec = manifest["spec"]
    spec |= {"terminationGracePeriodSeconds": GRACE_S}
    for each in containers_of(manifest):
        each["image"] = TALKER.name
    for each in spec.get("initContainers", ()):
        if not is_sidecar(each):
            each["command"] = ["/bin/sh", "-c", PRINTING]
    return manifest


def wishful(manifest: Json) -> Json:
    """The pod of a tenant who sets the variables of a slice itself, in every container that gets one."""
    for each in containers_of(manifest):
        if each["resources"]["limits"]:
            each["env"] = [{"name": name, "value": value} for name, value in WISHES.items()]
    return manifest


def mixed(count: int) -> list[Json]:
    """Every third is of such a tenant."""
    pods = [talking(_shaped(f"p{number:02}", kind=number % 7, mem=100 + 10 * number)) for number in range(count)]
    return [wishful(each) if number % 3 == 0 else each for number, each in enumerate(pods)]


def _shaped(name: str, *, kind: int, mem: int) -> Json:
    cores = 1 + mem // 10 % 5
    match kind:
        case 0:
            return pod(name, container("a", gpu=1, mem=mem))
        case 1:
            return pod(name, container("a", gpu=1, mem=mem, cores=cores))
        case 2:
            return pod(name, container("a", gpu=2, mem=mem, cores=cores))
        case 3:
            return pod(name, container("a", gpu=1, mem=mem), container("b", gpu=1, mem=mem + 5, cores=cores))
        case 4:
            return pod(name, container("a", gpu=1, mem=mem), init=[container("i", gpu=2, mem=mem + 5)])
        case 5:
            return pod(name, container("a", gpu=2, mem=mem), init=[sidecar("s", gpu=1, mem=mem + 5, cores=cores)])
        case _:
            return pod(name, container("a", gpu=1, mem=mem), container("without"))
