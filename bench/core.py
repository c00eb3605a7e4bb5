"""The decision core at scale: what a decision, a refusal and a pod event cost, and whether the budgets hold.

Every decision is a selection among all nodes and the reservation of its answer, so that the cluster keeps changing as
it does in production. Not here: HTTP, JSON and the API border. bench/README.md says what is compared with what.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import resource
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from statistics import median
from time import perf_counter

import msgspec
import numpy as np

from tessera.core.fit import topology
from tessera.core.fit.fit import fit_pod
from tessera.core.ledger.holdings import PodFacts
from tessera.core.ledger.ledger import Ledger
from tessera.core.model.devices import HAMI_CORE, Device, NodeFacts
from tessera.core.model.grants import Grant, Span
from tessera.core.model.requests import Constraint, ContainerRequest, PodRequest, Request, Role
from tessera.core.search.selection import Candidates, Refused, Selected, Selector
from tessera.vendors.base import Switches
from tessera.vendors.claims.asks import ClaimAsk, read_claim, with_claims
from tessera.vendors.drafts import BadPod
from tessera.vendors.registry import build_vendors
from tessera.wire.resource_api import DRIVER, ResourceClaim
from tests.support.claims import CLASSES, publish

NVIDIA = "NVIDIA"
CARD_MEMORY = 81_920
"""MiB"""
SHARERS = 10
HELD_MEMORY, HELD_CORES = 4_000, 3
"""MiB and per cent that each running pod holds: 16 of them leave space on every card of a node with eight"""
SEED = 5
"""seed: the same cluster, and the same pods in the same order, in every run"""

REPEATED_SHAPES = ((2_000, 5), (6_000, 10), (12_000, 20), (20_000, 30))
"""MiB and per cent: a few shapes that repeat, as with deployments"""

MODEL = "H100"
SELECTOR = f"device.attributes['{DRIVER}'].model.contains('{MODEL}')"
"""one of the two models of the cluster"""

SECOND = 1_000_000
"""microseconds"""


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def percentile(seconds: list[float], rank: float, *, per_second: int = 1_000) -> float:
    return round(float(np.percentile(seconds, rank)) * per_second, 4)


def make_pod(uid: str, *, memory: int, cores: int) -> PodRequest:
    request = Request(NVIDIA, count=1, memory=memory, cores=cores)
    return PodRequest(uid, "bench", uid, (ContainerRequest("main", Role.APP, (request,)),))


def make_choosy(uid: str, memory: int, cores: int) -> PodRequest:
    """A pod that accepts one of the two models."""
    accepts = ((NVIDIA, Constraint(use_models=(MODEL.lower(),))),)
    return replace(make_pod(uid, memory=memory, cores=cores), constraints=accepts)


def make_claiming(uid: str, memory: int, cores: int, *, selector: str = SELECTOR) -> PodRequest:
    """The same by a claim."""
    requests = {"memory": f"{memory}Mi", "cores": str(cores)}
    exactly = {
        "deviceClassName": DRIVER,
        "selectors": [{"cel": {"expression": selector}}],
        "capacity": {"requests": requests},
    }
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
    ask = read_claim(msgspec.convert({"metadata": {"name": "claim"}, "spec": spec}, ResourceClaim), CLASSES)
    assert isinstance(ask, ClaimAsk)
    variants = with_claims(PodRequest(uid, "bench", uid, ()), [ask])
    assert not isinstance(variants, BadPod)
    return variants[0]


def make_node(number: int, devices: int, *, claims: bool = False) -> NodeFacts:
    name = f"node-{number:05}"
    model = ("NVIDIA A100-SXM4-80GB", "NVIDIA H100-80GB-HBM3")[number % 2]
    cards = tuple(
        Device(
            f"GPU-{number:05}-{i}", NVIDIA, i, SHARERS, CARD_MEMORY, model=model, numa=i * 2 // devices, mode=HAMI_CORE
        )
        for i in range(devices)
    )
    return NodeFacts(name, tuple(map(publish, cards)) if claims else cards)


def make_held(node: NodeFacts, number: int) -> PodFacts:
    """A running pod of the node; the pods are spread over its cards."""
    card = node.devices[number % len(node.devices)]
    grant = Grant(card.uuid, NVIDIA, HELD_MEMORY, HELD_CORES, card.index)
    uid = f"{node.name}-{number}"
    return PodFacts(uid, "bench", uid, node.name, (Span(Role.APP),), {NVIDIA: ((grant,),)})


@dataclass(slots=True)
class Cluster:
    """A filled ledger, and what is needed to decide on it."""

    ledger: Ledger
    selector: Selector
    candidates: Candidates
    running: list[PodFacts]
    start_s: float
    uids: Iterator[int] = field(default_factory=count)
    dice: random.Random = field(default_factory=lambda: random.Random(SEED))

    def decide(self, memory: int, cores: int) -> float:
        """Seconds for one decision."""
        return self.place(make_pod(f"new-{next(self.uids)}", memory=memory, cores=cores))

    def place(self, pod: PodRequest) -> float:
        """Seconds for one decision."""
        began = perf_counter()
        answer = self.selector.select(pod, self.candidates)
        if not isinstance(answer, Selected):
            sys.exit("the cluster is full: measure fewer decisions, or more nodes with fewer pods")
        self.ledger.reserve(pod, answer.placement, deadline=1.0)
        return perf_counter() - began

    def repeated(self) -> float:
        return self.decide(*self.dice.choice(REPEATED_SHAPES))

    def unseen(self) -> float:
        """An amount of memory that no earlier pod requested, to the MiB."""
        return self.decide(1_000 + next(self.uids), 7)

    def refused(self) -> float:
        pod = make_pod("refused", memory=CARD_MEMORY + 1, cores=0)
        began = perf_counter()
        answer = self.selector.select(pod, self.candidates)
        seconds = perf_counter() - began
        assert isinstance(answer, Refused)
        return seconds

    def event(self) -> float:
        """Seconds for one pod event: the mean of a running pod that ends and one that appears."""
        pod = self.dice.choice(self.running)
        began = perf_counter()
        self.ledger.release(pod.uid)
        self.ledger.observe_pod(pod)
        return (perf_counter() - began) / 2

    def plainly(self) -> float:
        """Seconds for the plain rule, applied to every node: the anchor."""
        memory, cores = REPEATED_SHAPES[0]
        pod = make_pod("plain", memory=memory, cores=cores)
        began = perf_counter()
        for name in self.candidates.names:
            node = self.ledger.node(name)
            assert node is not None
            fit_pod(node, pod, self.ledger.rules, {})
        return perf_counter() - began


def build(nodes: int, devices: int, pods_per_node: int, *, claims: bool = False) -> Cluster:
    progress(f"building {nodes} nodes x {devices} devices with {pods_per_node} pods each")
    facts = [make_node(i, devices, claims=claims) for i in range(nodes)]
    running = [make_held(node, i) for node in facts for i in range(pods_per_node)]
    # Pods request NVIDIA only; the other vendors are configured as in production.
    ledger = Ledger(build_vendors(None, Switches(ascend=True, iluvatar=True)))
    began = perf_counter()
    for node in facts:
        ledger.observe_node(node)
    for pod in running:
        ledger.observe_pod(pod)
    start_s = perf_counter() - began
    selector = Selector(ledger)
    return Cluster(ledger, selector, selector.candidates([node.name for node in facts]), running, round(start_s, 3))


def settle() -> None:
    """Freezes long-lived objects, as the scheduler does after its first sync."""
    gc.collect()
    gc.freeze()


def topology_ms() -> float:
    """Choosing 8 of 16 linked cards, all sets compared; the first choice of a size also lists its sets."""
    dice = random.Random(SEED)
    uuids = [f"GPU-{i}" for i in range(16)]
    cards = [Device(u, NVIDIA, links={v: dice.choice((10, 50, 250)) for v in uuids if v != u}) for u in uuids]
    topology.choose(cards, 8)
    return percentile([timed(lambda: topology.choose(cards, 8)) for _ in range(20)], 50)


def timed(act: Callable[[], object]) -> float:
    began = perf_counter()
    act()
    return perf_counter() - began


def resident_mb() -> float:
    """The largest resident size so far; Linux counts it in KiB."""
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)


def measure(cluster: Cluster, decisions: int) -> dict[str, float]:
    """All figures of one cluster; the names say the unit."""
    progress("measuring refusals")
    first = cluster.refused()
    again = []
    for _ in range(20):
        if cluster.running:
            cluster.event()
        again.append(cluster.refused())
    progress(f"measuring {decisions} repeated decisions, and unseen ones")
    for _ in REPEATED_SHAPES * 4:
        cluster.repeated()
    repeated = [cluster.repeated() for _ in range(decisions)]
    unseen = [cluster.unseen() for _ in range(max(decisions // 4, 1))]
    progress("measuring pod events and the plain rule")
    events = [cluster.event() for _ in range(2_000)] if cluster.running else []
    oracle_ms = percentile([cluster.plainly() for _ in range(3)], 50)
    figures = {
        "repeated_p50_ms": percentile(repeated, 50),
        "repeated_p99_ms": percentile(repeated, 99),
        "unseen_p50_ms": percentile(unseen, 50),
        "unseen_p99_ms": percentile(unseen, 99),
        "refused_first_ms": round(first * 1_000, 4),
        "refused_again_ms": percentile(again, 50),
        "pod_event_us": percentile(events, 50, per_second=SECOND) if events else 0.0,
        "oracle_ms": oracle_ms,
        "topology_16_choose_8_ms": topology_ms(),
        "start_s": cluster.start_s,
        "resident_mb": resident_mb(),
    }
    figures["repeated_per_oracle"] = round(figures["repeated_p50_ms"] / oracle_ms, 6)
    figures["unseen_per_oracle"] = round(figures["unseen_p50_ms"] / oracle_ms, 6)
    return figures


def growth(empty: Cluster, loaded: Cluster, *, rounds: int = 9, batch: int = 60) -> float:
    """How much slower a repeated decision is with running pods than without.

    Batches alternate, so that a busy machine slows both; the median round decides, so that one bad moment does not.
    """
    progress(f"comparing with an empty cluster: {rounds} rounds of {batch} decisions each")
    ratios = []
    for _ in range(rounds):
        without, with_pods = (median(c.repeated() for _ in range(batch)) for c in (empty, loaded))
        ratios.append(with_pods / without)
    return round(median(ratios), 3)


def compare_claims(cluster: Cluster, *, rounds: int = 9, batch: int = 40) -> dict[str, float]:
    """How much slower a decision with a claim and a selector is than one with the same wish in annotations: of shapes
    that repeat, of amounts that no earlier pod requested, and of selectors that are new as well (beside such amounts in
    annotations). Batches alternate, and the median round decides."""
    progress(f"comparing claims with classic requests: {rounds} rounds of {batch} decisions each")

    def repeated(make: Callable[[str, int, int], PodRequest]) -> float:
        return cluster.place(make(f"new-{next(cluster.uids)}", *cluster.dice.choice(REPEATED_SHAPES)))

    def unseen(make: Callable[[str, int, int], PodRequest]) -> float:
        number = next(cluster.uids)
        return cluster.place(make(f"new-{number}", 1_000 + number, 7))

    def unseen_selector(uid: str, memory: int, cores: int) -> PodRequest:
        return make_claiming(uid, memory, cores, selector=f"{SELECTOR} && {memory} > 0")

    def slower(
        kind: Callable[[Callable[[str, int, int], PodRequest]], float],
        one: Callable[[str, int, int], PodRequest],
        other: Callable[[str, int, int], PodRequest],
    ) -> float:
        ratios = []
        for _ in range(rounds):
            classic, claimed = (median(kind(make) for _ in range(batch)) for make in (one, other))
            ratios.append(claimed / classic)
        return round(median(ratios), 3)

    for _ in REPEATED_SHAPES * 4:
        repeated(make_choosy)
        repeated(make_claiming)
    return {
        "repeated": slower(repeated, make_choosy, make_claiming),
        "unseen": slower(unseen, make_choosy, make_claiming),
        "unseen_selector": slower(unseen, make_choosy, unseen_selector),
    }


@dataclass(frozen=True, slots=True)
class Budget:
    name: str
    value: float
    most: float

    @property
    def kept(self) -> bool:
        return self.value <= self.most


def check(decisions: int) -> list[Budget]:
    """The budgets, at the size for which they are defined."""
    empty, loaded = build(5_000, 8, 0), build(5_000, 8, 16, claims=True)
    settle()
    figures = measure(loaded, decisions)
    claims = compare_claims(loaded)
    for _ in REPEATED_SHAPES * 4:
        empty.repeated()
    return [
        Budget("repeated_p50_ms", figures["repeated_p50_ms"], 0.5),
        Budget("unseen_p50_ms", figures["unseen_p50_ms"], 5.0),
        Budget("repeated, 16 pods / 0 pods", growth(empty, loaded), 1.3),
        Budget("repeated, claim / classic", claims["repeated"], 1.3),
        Budget("unseen, claim / classic", claims["unseen"], 1.3),
        Budget("new selector / classic", claims["unseen_selector"], 2.0),
        Budget("pod_event_us", figures["pod_event_us"], 50.0),
        Budget("topology_16_choose_8_ms", figures["topology_16_choose_8_ms"], 10.0),
    ]


def table(budgets: list[Budget]) -> str:
    lines = [f"{'what':<28} {'value':>10} {'budget':>10}"]
    lines += [f"{b.name:<28} {b.value:>10.4g} {b.most:>10.4g}  {'ok' if b.kept else 'BROKEN'}" for b in budgets]
    return "\n".join(lines)


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not 1 or more")
    return value


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.core", description=__doc__.split("\n")[0])
    parser.add_argument("--nodes", type=positive, default=5_000, help="default %(default)s")
    parser.add_argument("--devices", type=positive, default=8, help="cards per node, default %(default)s")
    parser.add_argument("--pods-per-node", type=int, default=16, help="running pods per node, default %(default)s")
    parser.add_argument(
        "--decisions", type=positive, default=400, help="repeated decisions measured, default %(default)s"
    )
    parser.add_argument(
        "--claims", action="store_true", help="compare decisions with claims and selectors to classic ones"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--check", action="store_true", help="compare with the budgets (5000 x 8); exit 1 if one is exceeded"
    )
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    if options.check:
        budgets = check(options.decisions)
        print(json.dumps({b.name: b.value for b in budgets}) if options.json else table(budgets))
        return 0 if all(budget.kept for budget in budgets) else 1
    cluster = build(options.nodes, options.devices, options.pods_per_node, claims=options.claims)
    settle()
    figures = compare_claims(cluster) if options.claims else measure(cluster, options.decisions)
    print(json.dumps(figures) if options.json else "\n".join(f"{name:<26} {value}" for name, value in figures.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
