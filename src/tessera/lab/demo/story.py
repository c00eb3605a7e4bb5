"""The demo's story: small steps on the running cluster, each narrated in a line or two of what really came of it.

Steps wait for what they tell about, and a step that does not happen in time is a fault (`DemoError`). What they say of
a pod that waits is said by the functions behind `tessera explain`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tessera.inspect.explanation import explain
from tessera.inspect.verdicts import FitsNowhere
from tessera.kube.errors import ApiError
from tessera.lab.demo import manifests
from tessera.lab.demo.cluster import DemoCluster, DemoError
from tessera.lab.demo.view import CardView, View, look, short_name
from tessera.lab.sandbox.api.kinds import Json
from tessera.lab.sandbox.objects import annotations_of, condition_of, name_of, namespace_of
from tessera.wire.keys import MIG_ALLOCATIONS
from tessera.wire.mig import decode_mig_allocations


@dataclass(frozen=True, slots=True)
class Step:
    """`act` does it and says what came of it."""

    title: str
    act: Callable[[DemoCluster], Awaitable[list[str]]]
    picture: bool = False
    """whether a picture of the demo shows the end of this step"""


async def _share(cluster: DemoCluster) -> list[str]:
    await _running(cluster, *manifests.CHATS)
    cards = _cards_of(look(cluster), "chat-1")
    one = cards[0]
    return [
        f"All four share {_named(one)}: {one.used_mib} of {one.memory_mib} MiB, {one.used_cores} % of the cores.",
        f"chat-1 sees CUDA_DEVICE_MEMORY_LIMIT_0={_environment(cluster, 'chat-1')['CUDA_DEVICE_MEMORY_LIMIT_0']},"
        " from the real Allocate and its own annotations.",
    ]


async def _notebook(cluster: DemoCluster) -> list[str]:
    await _running(cluster, manifests.NOTEBOOK)
    return [f"It got {_named(_cards_of(look(cluster), 'notebook')[0])}."]


async def _train(cluster: DemoCluster) -> list[str]:
    await _running(cluster, manifests.TRAINER)
    cards = _cards_of(look(cluster), "train-1")
    return [f"Cards {_numbers(cards)} of {cards[0].node}: one NVLink group, not the one that the notebook sits in."]


async def _isolate(cluster: DemoCluster) -> list[str]:
    await _running(cluster, manifests.ISOLATED)
    pod = cluster.plane.pod("default", "scoring")
    (made,) = decode_mig_allocations(annotations_of(pod or {"metadata": {}})[MIG_ALLOCATIONS])
    card = _cards_of(look(cluster), "scoring")[0]
    return [f"The node's agent made a MIG instance {made.slot.profile} on {_named(card)} for it."]


async def _ascend(cluster: DemoCluster) -> list[str]:
    await _running(cluster, manifests.ASCEND)
    card = _cards_of(look(cluster), "ocr")[0]
    size = next(one.memory_mib for one in card.slices if one.pod == "ocr")
    return [f"It got {size} MiB of {_named(card)}: these chips are cut along templates."]


async def _greedy(cluster: DemoCluster) -> list[str]:
    await _refused(cluster, manifests.GREEDY)
    return ["train-2 waits, and `tessera explain train-2` says why; in short:", *await _why(cluster, "train-2")]


async def _quota(cluster: DemoCluster) -> list[str]:
    await cluster.apply(manifests.TEAM_NAMESPACE)
    await cluster.apply(manifests.TEAM_QUOTA)
    quotas, counted = cluster.ledger.quotas, cluster.ledger.rules["NVIDIA"].quota_memory
    await cluster.until(lambda: quotas.limit(manifests.TEAM, counted) is not None, "the quota to be known")
    first, second = manifests.HOMEWORKS
    await _running(cluster, first)
    try:
        await cluster.apply(second)
    except ApiError as refusal:
        return ["homework-1 runs. homework-2 is refused where it is created:", f"  {refusal.message}"]
    raise DemoError(f"{name_of(second)} was taken in spite of the quota")


async def _room(cluster: DemoCluster) -> list[str]:
    await cluster.delete_pod("default", "notebook")
    await cluster.until(lambda: cluster.plane.phase("default", "train-2") == "Running", "train-2 to run")
    cards = _cards_of(look(cluster), "train-2")
    return [f"train-2 went in without anybody's help: it runs on cards {_numbers(cards)} of {cards[0].node}."]


STORY = (
    Step("Four inference pods ask for 5000 MiB and 20 % of the cores of an L4 each.", _share),
    Step("A notebook asks for 20000 MiB of an H100.", _notebook),
    Step("A training pod asks for four whole H100s, as close together as they can be.", _train),
    Step("A pod wants its part isolated by the hardware: at least 9000 MiB, mode mig.", _isolate),
    Step("Another maker's cards, the same scheduler: 12000 MiB of an Ascend 910B3.", _ascend),
    Step("A second training pod wants four whole H100s. Only three are free.", _greedy, picture=True),
    Step(f"Namespace students may have {manifests.TEAM_LIMIT_MIB} MiB; two of its pods ask for 20000 each.", _quota),
    Step("The notebook is deleted, which frees the fourth H100.", _room),
)


# -- doing and waiting


async def _running(cluster: DemoCluster, *pods: Json) -> None:
    for pod in pods:
        await cluster.apply(pod)
    names = [(namespace_of(pod), name_of(pod)) for pod in pods]
    waited_for = ", ".join(name for _, name in names)
    await cluster.until(lambda: all(cluster.plane.phase(*name) == "Running" for name in names), f"{waited_for} to run")


async def _refused(cluster: DemoCluster, pod: Json) -> None:
    """Create it and wait until kube-scheduler has said that it fits nowhere."""
    await cluster.apply(pod)
    namespace, name = namespace_of(pod), name_of(pod)

    def said() -> bool:
        found = cluster.plane.pod(namespace, name)
        condition = condition_of(found, "PodScheduled") if found is not None else None
        return condition is not None and condition["status"] == "False"

    await cluster.until(said, f"the refusal of {name}")


# -- telling


async def _why(cluster: DemoCluster, name: str) -> list[str]:
    """What comes nearest, and what would fit."""
    found = explain(await cluster.offline_cluster(), f"default/{name}")
    if not isinstance(found.verdict, FitsNowhere):
        raise DemoError(f"{name} waits, but {found.status.value}")
    return [f"  {text}" for text in (found.verdict.near_miss, *(each.text for each in found.verdict.changes)) if text]


def _environment(cluster: DemoCluster, name: str) -> dict[str, str]:
    """What the pod's container sees."""
    pod = cluster.plane.pod("default", name) or {}
    node = cluster.plane.nodes[pod["spec"]["nodeName"]]
    return node.containers[pod["metadata"]["uid"], "main"].env


def _cards_of(view: View, pod: str, *, namespace: str = "default") -> list[CardView]:
    name = short_name(namespace, pod)
    return [card for card in view.cards if any(one.pod == name for one in card.slices)]


def _named(card: CardView) -> str:
    return f"card {card.index} of {card.node} ({card.model})"


def _numbers(cards: list[CardView]) -> str:
    *others, last = [str(card.index) for card in cards]
    return f"{', '.join(others)} and {last}" if others else last
