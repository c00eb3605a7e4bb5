"""The worst AdmissionReviews and questions to the page, for `bench.hostile`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from time import thread_time
from typing import Any, NamedTuple

import msgspec

from tessera.inspect.dashboard.questions import try_manifests
from tessera.inspect.dashboard.source import FixedSource
from tessera.inspect.offline_cluster import OfflineCluster
from tessera.inspect.state import InspectionError
from tests.support.cluster_states import large_state

Json = dict[str, Any]

NODES = 1_000
"""of the cluster that the page shows"""
LONGEST = 4_000_000
"""characters of one text: less than the largest pod that is read"""


class QuestionCost(NamedTuple):
    name: str
    longest_ms: float
    stretches: int
    answer: str


def large_pods(pod: Callable[..., Json], container: Callable[..., Json]) -> Iterator[tuple[str, Json]]:
    """Pods that no apiserver stores, but that a review may hold. `pod` and `container` make manifests."""
    one = container("a", gpu=1, gpumem=1_000)
    variables = [{"name": f"V{number:06}", "value": ""} for number in range(80_000)]
    yield "review with 70,000 containers", pod(*(container(f"container-{i:05}") for i in range(70_000)))
    yield "review with 80,000 variables", pod(one | {"env": variables})
    yield "review with 9000 variables", pod(one | {"env": variables[:9_000]})
    amounts = {f"a{number}": "1" for number in range(14_000)}
    limits = one["resources"]["limits"]
    yield "review with 28,000 resources", pod(one | {"resources": {"limits": amounts | limits, "requests": amounts}})
    yield "review with a container name of 4 MB", pod(one | {"name": "x" * LONGEST})
    yield "review with a resource name of 4 MB", pod(one | {"resources": {"limits": limits | {"x" * LONGEST: "1"}}})
    yield (
        "review with 25,000 reserved annotations",
        pod(one, annotations={f"tessera.io/{number}": "" for number in range(25_000)}),
    )


def question_costs() -> Iterator[QuestionCost]:
    """What-if: the longest time of the event loop between two pauses."""
    source = FixedSource(OfflineCluster(large_state(nodes=NODES)))
    for name, text in questions().items():
        spent: list[float] = []

        async def pause(seconds: float, spent: list[float] = spent) -> None:
            spent.append(seconds)

        began = thread_time()
        try:
            asyncio.run(try_manifests(source, text, pause))
            answer = "answered"
        except InspectionError as error:
            answer = str(error)
        answer = f"{thread_time() - began:.1f} s in all: {answer}"
        yield QuestionCost(f"what-if: {name}", max(spent, default=0.0) * 1_000, len(spent), answer[:80])


def questions() -> dict[str, str]:
    containers = [_asking(f"c{number}", gpu=1, gpumem=45_000 + number) for number in range(16)]
    terms = [{"matchExpressions": [{"key": f"k{number}", "operator": "Exists"}]} for number in range(700)]
    required = {"nodeSelectorTerms": [*terms, {"matchExpressions": [{"key": "k", "operator": "DoesNotExist"}]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    small, large = [_asking("a", gpu=1, gpumem=1_000)], [_asking("a", gpu=8, gpumem=70_000)]
    return {
        "a gang of 1000": _job("g", 1_000, small),
        "a gang of 1000 that does not fit": _job("g", 1_000, large),
        "20 gangs of 50": "".join(_job(f"g{number}", 50, small) for number in range(20)),
        "20 gangs of 1000": "".join(_job(f"g{number}", 1_000, small) for number in range(20)),
        "16 containers that do not fit together": _job("g", 1, containers),
        "a gang of 1000 with 700 terms": _job("g", 1_000, small, affinity=affinity),
    }


def _asking(name: str, **amounts: int) -> Json:
    limits = {f"nvidia.com/{key}": str(value) for key, value in amounts.items()}
    return {"name": name, "image": "i", "resources": {"limits": limits}}


def _job(name: str, members: int, containers: list[Json], **spec: Json) -> str:
    annotations = {"tessera.io/gang": name, "tessera.io/gang-size": str(members)} if members > 1 else {}
    template = {"metadata": {"annotations": annotations}, "spec": {"containers": containers, **spec}}
    counts = {"parallelism": members, "completions": members, "template": template}
    document = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": counts}
    return f"---\n{msgspec.json.encode(document).decode()}\n"
