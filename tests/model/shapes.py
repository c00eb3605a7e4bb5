"""What pods of the model look like: a fixed set of recipes, so that equal shapes meet again and again.

Slices of one card and of several, per cent, whole cards, MIG, init containers and sidecars, three vendors and two at
once; pods that went through the webhook (their slices travel with them) and pods that did not.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from tessera.scheduler.filter import Filter
from tessera.wire.objects import Node, Pod, ResourceQuota, decode_object
from tests.support.builders import CORES, GPU, MEMORY, PERCENT, PodBuilder, pod
from tests.support.stepwise_scheduler import using_downward_api

MLU = "cambricon.com/vmlu"
MLU_MEMORY = "cambricon.com/mlu.smlu.vmemory"
MLU_CORES = "cambricon.com/mlu.smlu.vcore"
XPU = "kunlunxin.com/vxpu"
XPU_MEMORY = "kunlunxin.com/vxpu-memory"
MIG_MODE = ("nvidia.com/vgpu-mode", "mig")

__all__ = ["CORES", "GPU", "MEMORY", "PERCENT", "plain_recipes", "quota", "recipes", "template"]

RARE = ("no devices", "impossible")
"""recipes that need to come only now and then"""
MIB_PER_MLU_UNIT = 256


def _mlu(count: int, memory: int, cores: int) -> dict[str, Any]:
    return {"limits": {MLU: count, MLU_MEMORY: memory, MLU_CORES: cores}}


def _xpu(count: int, memory: int) -> dict[str, Any]:
    return {"limits": {XPU: count, XPU_MEMORY: memory}}


@cache
def plain_recipes() -> dict[str, PodBuilder]:
    return {
        "small": pod().container(gpu=1, mem=4000, cores=10),
        "medium": pod().container(gpu=1, mem=10000, cores=30),
        "large": pod().container(gpu=1, mem=20000, cores=50),
        "memory only": pod().container(gpu=1, mem=10000),
        "per cent": pod().container(gpu=1, percent=50, cores=20),
        "whole": pod().container(gpu=1, cores=100),
        "two cards": pod().container(gpu=2, mem=10000, cores=20),
        "two containers": pod().container(gpu=1, mem=10000, cores=30).container(gpu=1, mem=4000, cores=10),
        "init": pod().init(gpu=1, mem=20000, cores=60).container(gpu=1, mem=4000, cores=10),
        "sidecar": pod().sidecar(gpu=1, mem=4000, cores=10).container(gpu=1, mem=10000, cores=30),
        "init beside sidecar": pod()
        .init(gpu=1, mem=4000, cores=10)
        .sidecar(gpu=1, mem=4000, cores=10)
        .init(gpu=2, mem=10000, cores=40)
        .container(gpu=1, mem=10000, cores=30)
        .container(limits={"cpu": "1"}),
        "alone": pod().container(gpu=1, mem=4000).policy(device="mutex"),
        "spread": pod().container(gpu=1, mem=4000, cores=5).policy(node="spread", device="binpack"),
        "mig small": pod().container(gpu=1, mem=4000).annotate(MIG_MODE),
        "mig large": pod().container(gpu=1, mem=15000).annotate(MIG_MODE),
        "mig several": pod()
        .init(gpu=1, mem=4000)
        .container(gpu=2, mem=4000)
        .container(gpu=1, mem=9000)
        .annotate(MIG_MODE),
        "mlu part": pod().container(**_mlu(1, 16, 30)),
        "mlu whole": pod().container(limits={MLU: 1}),
        "xpu slice": pod().container(**_xpu(1, 24576)),
        "xpu half": pod().container(**_xpu(1, 49152)),
        "xpu pair": pod().container(**_xpu(2, 24576)),
        "gpu and mlu": pod().container(gpu=1, mem=4000, cores=10).container(**_mlu(1, 8, 10)),
        "no devices": pod().container(limits={"cpu": "1"}),
        "impossible": pod().container(gpu=1, mem="2Gi"),
    }  # fmt: skip


@cache
def recipes() -> tuple[str, ...]:
    """With `!` where the pod went through the webhook, which gives slices of NVIDIA cards to the containers."""
    carried = [name for name, built in plain_recipes().items() if _can_carry(name, built)]
    return (*plain_recipes(), *(f"{name}!" for name in carried))


@cache
def template(recipe: str) -> Pod:
    """`!`: through the webhook; `^`: with priority 100; `^^`: with priority 200."""
    plain = recipe.rstrip("^")
    built = plain_recipes()[plain.removesuffix("!")]
    if recipe != plain:
        built = built.with_priority(100 * (len(recipe) - len(plain)))
    return (using_downward_api(built) if plain.endswith("!") else built).api()


NEVER_WHOLE = "never-whole"
"""label of the members of a gang one of which is never created"""


def in_gang(built: Pod, name: str, size: int, *, is_whole: bool) -> Pod:
    own = {"tessera.io/gang": name, "tessera.io/gang-size": str(size)}
    labels = {} if is_whole else {NEVER_WHOLE: ""}
    metadata = msgspec.structs.replace(built.metadata, annotations={**built.annotations, **own}, labels=labels)
    return msgspec.structs.replace(built, metadata=metadata)


def _can_carry(name: str, built: PodBuilder) -> bool:
    containers = (*built.init_containers, *built.containers)
    asks = any(GPU in container["resources"]["limits"] for container in containers)
    return asks and not name.startswith(("mig", "impossible"))


def simulate(deciding: Filter, asking: Pod, nodes: list[Node]) -> None:
    """Ask as an autoscaler does, with whole nodes."""
    body = msgspec.json.encode({"Pod": asking, "Nodes": {"metadata": {}, "items": nodes}})
    answer = msgspec.json.decode(deciding.answer(body))
    assert not answer["Error"], answer


def quota(namespace: str, name: str, hard: dict[str, int]) -> ResourceQuota:
    limits = ",".join(f'"limits.{resource}":"{limit}"' for resource, limit in hard.items())
    text = f'{{"metadata":{{"namespace":"{namespace}","name":"{name}","uid":"q"}},"spec":{{"hard":{{{limits}}}}}}}'
    return decode_object(text, ResourceQuota)
