"""The demo's story: small steps on the running cluster, each followed by a line or two about what happened.

The objects are written as a user would write them. A step waits for what it tells about; if that does not happen in
time, the step fails (`DemoError`). Why a pod waits is told by the functions behind `tessera explain`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from tessera.inspect.explanation import explain
from tessera.inspect.verdicts import FitsNowhere
from tessera.kube.errors import ApiError
from tessera.wire.keys import MIG_ALLOCATIONS
from tessera.wire.pod_devices import decode_mig_allocations
from tessera_lab.demo.cluster import DemoCluster, DemoError
from tessera_lab.demo.screens import CardView, ClusterView, short_name, take_view
from tessera_lab.sandbox.api.kinds import Json
from tessera_lab.sandbox.objects import annotations_of, condition_of, name_of, namespace_of

IMAGE = "registry.example/app:1"
"""never pulled: the demo runs no containers"""


def pod(
    name: str, limits: Mapping[str, int], *, namespace: str = "default", annotations: Mapping[str, str] | None = None
) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "annotations": dict(annotations or {})},
        "spec": {
            "containers": [
                {
                    "name": "main",
                    "image": IMAGE,
                    "resources": {"limits": {key: str(value) for key, value in limits.items()}},
                }
            ]
        },
    }


CLAIM_TEMPLATE: Json = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaimTemplate",
    "metadata": {"name": "small-gpu", "namespace": "default"},
    "spec": {
        "spec": {
            "devices": {
                "requests": [
                    {
                        "name": "gpu",
                        "exactly": {
                            "deviceClassName": "gpu.tessera.io",
                            "selectors": [
                                {"cel": {"expression": "device.attributes['gpu.tessera.io'].model.contains('L4')"}}
                            ],
                            "capacity": {"requests": {"memory": "2000Mi", "cores": "10"}},
                        },
                    }
                ]
            }
        }
    },
}
CLAIMANT: Json = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "embed",
        "namespace": "default",
        "annotations": {"hami.io/gpu-scheduler-policy": "binpack"},
    },
    "spec": {
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "small-gpu"}],
        "containers": [{"name": "main", "image": IMAGE, "resources": {"claims": [{"name": "gpu"}]}}],
    },
}
CHATS = tuple(
    pod(
        f"chat-{number}",
        {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 5000, "nvidia.com/gpucores": 20},
        annotations={"nvidia.com/use-gputype": "L4", "hami.io/gpu-scheduler-policy": "binpack"},
    )
    for number in range(1, 5)
)
NOTEBOOK = pod(
    "notebook", {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 20000}, annotations={"nvidia.com/use-gputype": "H100"}
)
_FOUR_H100 = {"nvidia.com/gpu": 4, "nvidia.com/gpucores": 100}
_TOGETHER = {"nvidia.com/use-gputype": "H100", "hami.io/gpu-scheduler-policy": "topology-aware"}
TRAINER = pod("train-1", _FOUR_H100, annotations=_TOGETHER)
GREEDY = pod("train-2", _FOUR_H100, annotations=_TOGETHER)
ISOLATED = pod("scoring", {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 9000}, annotations={"nvidia.com/vgpu-mode": "mig"})
ASCEND = pod("ocr", {"huawei.com/Ascend910B3": 1, "huawei.com/Ascend910B3-memory": 12000})

TEAM = "students"
TEAM_NAMESPACE: Json = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TEAM}}
TEAM_LIMIT_MIB = 30000
TEAM_QUOTA: Json = {
    "apiVersion": "v1",
    "kind": "ResourceQuota",
    "metadata": {"name": "gpu-memory", "namespace": TEAM},
    "spec": {"hard": {"limits.nvidia.com/gpumem": str(TEAM_LIMIT_MIB)}},
}
HOMEWORKS = tuple(
    pod(
        f"homework-{number}",
        {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 20000},
        namespace=TEAM,
        annotations={"nvidia.com/use-gputype": "A100"},
    )
    for number in (1, 2)
)


@dataclass(frozen=True, slots=True)
class Step:
    """`act` does something and tells what happened."""

    title: str
    act: Callable[[DemoCluster], Awaitable[list[str]]]
    picture: bool = False
    """whether the picture of the demo shows the end of this step"""


async def _share(cluster: DemoCluster) -> list[str]:
    await _run_pods(cluster, *CHATS)
    cards = _cards_of(take_view(cluster), "chat-1")
    one = cards[0]
    return [
        f"All four run on {_describe(one)}: {one.used_mib} of {one.memory_mib} MiB, {one.used_cores} % of the cores.",
        "Each container is limited to its share: chat-1 runs with"
        f" CUDA_DEVICE_MEMORY_LIMIT_0={_environment(cluster, 'chat-1')['CUDA_DEVICE_MEMORY_LIMIT_0']}.",
    ]


async def _claim(cluster: DemoCluster) -> list[str]:
    await cluster.apply(CLAIM_TEMPLATE)
    await _run_pods(cluster, CLAIMANT)
    card = _cards_of(take_view(cluster), "embed")[0]
    limit = _environment(cluster, "embed")["CUDA_DEVICE_MEMORY_LIMIT_0"]
    return [f"It shares {_describe(card)} with the inference pods, limited to {limit} by its claim."]


async def _notebook(cluster: DemoCluster) -> list[str]:
    await _run_pods(cluster, NOTEBOOK)
    return [f"It runs on {_describe(_cards_of(take_view(cluster), 'notebook')[0])}."]


async def _train(cluster: DemoCluster) -> list[str]:
    await _run_pods(cluster, TRAINER)
    cards = _cards_of(take_view(cluster), "train-1")
    return [f"It runs on cards {_numbers(cards)} of {cards[0].node}: one NVLink group, away from the notebook."]


async def _isolate(cluster: DemoCluster) -> list[str]:
    await _run_pods(cluster, ISOLATED)
    pod = cluster.plane.pod("default", "scoring")
    (made,) = decode_mig_allocations(annotations_of(pod or {"metadata": {}})[MIG_ALLOCATIONS])
    card = _cards_of(take_view(cluster), "scoring")[0]
    return [f"The node agent created a MIG instance {made.slot.profile} for it on {_describe(card)}."]


async def _ascend(cluster: DemoCluster) -> list[str]:
    await _run_pods(cluster, ASCEND)
    card = _cards_of(take_view(cluster), "ocr")[0]
    size = next(one.memory_mib for one in card.slices if one.pod == "ocr")
    return [f"It got {size} MiB of {_describe(card)}: this chip is only split into fixed sizes."]


async def _greedy(cluster: DemoCluster) -> list[str]:
    await _create_unschedulable(cluster, GREEDY)
    return ["train-2 stays pending. `tessera explain train-2` says why:", *await _why(cluster, "train-2")]


async def _quota(cluster: DemoCluster) -> list[str]:
    await cluster.apply(TEAM_NAMESPACE)
    await cluster.apply(TEAM_QUOTA)
    quotas, counted = cluster.ledger.quotas, cluster.ledger.rules["NVIDIA"].quota_memory
    await cluster.until(lambda: quotas.limit(TEAM, counted) is not None, "the quota to be known")
    first, second = HOMEWORKS
    await _run_pods(cluster, first)
    try:
        await cluster.apply(second)
    except ApiError as refusal:
        return ["homework-1 runs. homework-2 is refused when it is created:", f"  {refusal.message}"]
    raise DemoError(f"{name_of(second)} was admitted despite the quota")


async def _room(cluster: DemoCluster) -> list[str]:
    await cluster.delete_pod("default", "notebook")
    await cluster.until(lambda: cluster.plane.phase("default", "train-2") == "Running", "train-2 to run")
    cards = _cards_of(take_view(cluster), "train-2")
    return [f"train-2 starts by itself, on cards {_numbers(cards)} of {cards[0].node}."]


STORY = (
    Step("Four inference pods each request 5000 MiB and 20 % of the cores of an L4.", _share),
    Step("Another one brings a ResourceClaim for 2000 MiB and 10 % of the cores of an L4.", _claim),
    Step("A notebook requests 20000 MiB of an H100.", _notebook),
    Step("A training pod requests four whole H100s with fast links between them.", _train),
    Step("A pod requests hardware isolation: a MIG instance with at least 9000 MiB.", _isolate),
    Step("Another vendor, the same scheduler: a pod requests 12000 MiB of an Ascend 910B3.", _ascend),
    Step("A second training pod requests four whole H100s, but only three are free.", _greedy, picture=True),
    Step(
        f"Namespace students has a quota of {TEAM_LIMIT_MIB} MiB; two pods request 20000 MiB each.",
        _quota,
    ),
    Step("The notebook is deleted, which frees a fourth H100.", _room),
)


# -- acting and waiting


async def _run_pods(cluster: DemoCluster, *pods: Json) -> None:
    for pod in pods:
        await cluster.apply(pod)
    names = [(namespace_of(pod), name_of(pod)) for pod in pods]
    waited_for = ", ".join(name for _, name in names)
    await cluster.until(lambda: all(cluster.plane.phase(*name) == "Running" for name in names), f"{waited_for} to run")


async def _create_unschedulable(cluster: DemoCluster, pod: Json) -> None:
    """Creates the pod and waits until kube-scheduler has reported that it fits nowhere."""
    await cluster.apply(pod)
    namespace, name = namespace_of(pod), name_of(pod)

    def said() -> bool:
        found = cluster.plane.pod(namespace, name)
        condition = condition_of(found, "PodScheduled") if found is not None else None
        return condition is not None and condition["status"] == "False"

    await cluster.until(said, f"the refusal of {name}")


# -- telling


async def _why(cluster: DemoCluster, name: str) -> list[str]:
    """What comes closest, and what would fit."""
    found = explain(await cluster.offline_cluster(), f"default/{name}")
    if not isinstance(found.verdict, FitsNowhere):
        raise DemoError(f"{name} is pending, but tessera explain says {found.status.value}")
    return [f"  {text}" for text in (found.verdict.near_miss, *(each.text for each in found.verdict.changes)) if text]


def _environment(cluster: DemoCluster, name: str) -> dict[str, str]:
    """The environment of the pod's container."""
    pod = cluster.plane.pod("default", name) or {}
    node = cluster.plane.nodes[pod["spec"]["nodeName"]]
    return node.containers[pod["metadata"]["uid"], "main"].env


def _cards_of(view: ClusterView, pod: str, *, namespace: str = "default") -> list[CardView]:
    name = short_name(namespace, pod)
    return [card for card in view.cards if any(one.pod == name for one in card.slices)]


def _describe(card: CardView) -> str:
    return f"card {card.index} of {card.node} ({card.model})"


def _numbers(cards: list[CardView]) -> str:
    *others, last = [str(card.index) for card in cards]
    return f"{', '.join(others)} and {last}" if others else last
