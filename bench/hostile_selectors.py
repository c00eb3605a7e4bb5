"""The worst selectors of ResourceClaims that an apiserver accepts, for `bench.hostile`.

A ledger of its own, with cards that are for claims. A decision that takes several calls counts with its longest one; so
does reading the claim, which the first of them does.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import UTC
from time import monotonic, thread_time, time
from typing import Any, NamedTuple, cast

import msgspec

from bench.core import make_node
from tessera.scheduler.admission.claim_owners import find_owner
from tessera.scheduler.clock import Clock
from tessera.scheduler.engine import Engine
from tessera.scheduler.features.claims.feature import Claims
from tessera.scheduler.filter import UNFINISHED
from tessera.scheduler.kube_api import KubeApi
from tessera.scheduler.observer import SchedulerObserver
from tessera.scheduler.settings import Settings
from tessera.scheduler.tenure import Tenure
from tessera.wire.cel import compile_selector
from tessera.wire.resource_api import DRIVER, ClaimingPod, ClaimSpec, DeviceClass, ResourceClaim

MAX_CALLS = 200
"""of one decision that are measured"""
FEW_NODES, SOME_NODES = 10, 1_000

G = f"device.attributes['{DRIVER}']"
OWN = f"{G}.uuid.size() > 0"
"""reads what no two cards have in common: the answer of no card serves another one"""
Json = dict[str, Any]


class SelectorCost(NamedTuple):
    """Milliseconds of the event loop."""

    name: str
    filter_ms: float
    calls: int
    admission_ms: float
    answer: str


class Attack(NamedTuple):
    name: str
    selectors: Sequence[Sequence[str]]
    """of each request"""
    nodes: int | None = None
    """of the cluster; None: all that there are"""
    alternatives: bool = False
    """one request, of which each is one way to serve it"""


def bound_lists(sharing: int = 8, depth: int = 20) -> str:
    """Two lists in lists that share their parts, compared: `sharing` ** `depth` pairs."""
    text = "a == b"
    for _ in range(depth // 2):
        text = f"cel.bind(a, [{','.join('a' * sharing)}], cel.bind(b, [{','.join('b' * sharing)}], {text}))"
    return f"cel.bind(a, [{G}.model], cel.bind(b, [{G}.model], {text}))"


def grown(value: str, times: int) -> str:
    """A text or list, put together with itself until it is 4 ** `times` as long."""
    text = value
    for _ in range(times):
        text = f"cel.bind(t, {text}, t + t + t + t)"
    return text


def attacks() -> Iterator[Attack]:
    """By what is wrong with them."""
    many, long = grown(f"[{G}.uuid]", 6), grown(f"{G}.model + {G}.uuid", 3)
    yield Attack("selector: lists that share their parts", [[bound_lists()]])
    yield Attack("selector: `==` of lists of 4096", [[f"cel.bind(x, {many}, x == x && {OWN})"]])
    yield Attack("selector: `in` a list of 4096", [[f"cel.bind(x, {many}, !('a' in x)) && {OWN}"]])
    yield Attack("selector: lowerAscii()", [[f"cel.bind(t, {long}, [1,2,3,4].all(i, t.lowerAscii() != ''))"]])
    pattern = f"{G}.uuid.matches('(a|G|P|U|[0-9]|-)*x') || {OWN}"
    yield Attack("selector: a pattern, 1000 nodes", [[pattern]], SOME_NODES)
    yield Attack("selector: a pattern", [[pattern]])
    yield Attack("selector: a dear one, 80 different cards", [[f"{dear('uuid')} && {OWN}"]], FEW_NODES)
    yield Attack("selector: a dear one, equal cards", [[dear("model")]])
    yield Attack("selector: by uuid, 40,000 different cards", [[f"{G}.uuid.startsWith('GPU-0499')"]])
    yield Attack("selector: 16 dear requests", [[f"{dear('model')} && {i} < 99"] for i in range(16)])
    yield Attack("selector: 16 requests by uuid", [[f"{G}.uuid.endsWith('-{i % 8}')"] for i in range(16)])
    yield Attack("selector: 32 alternatives", [[f"{G}.model.contains('{i}x')"] for i in range(8)], alternatives=True)
    yield Attack("selector: 1000 parts", [["[" + "[],".join([""] * 990) + "] == [1]"]])
    yield Attack("selector: 10 KiB of parts", [["[" + "1<1," * 2_550 + "] == []"]])
    yield Attack("selector: 1.4 MB in one claim", [[f"'{i:04}{'a' * 10_000}' == ''" for i in range(32)]] * 4)


def dear(attribute: str) -> str:
    """As much as one card may cost."""
    return f"[1,2,3,4,5,6,7,8,9].all(i, [1,2,3,4,5,6,7,8].all(j, {G}.{attribute}.contains('{'N' * 40}') || i < 99))"


class SelectorBench:
    """One engine with cards that are for claims."""

    def __init__(self, nodes: int, cards: int) -> None:
        self.engine = Engine(
            Settings(dra=True),
            cast("KubeApi", None),  # nothing is written: no filter reaches the API
            clock=Clock(time, monotonic, UTC),
            spawn=lambda work: work.close(),
            observer=SchedulerObserver(),
            tenure=Tenure.unlimited(),
        )
        self.names = []
        for number in range(nodes):
            facts = make_node(number, cards, claims=True)
            self.engine.ledger.observe_node(facts)
            self.names.append(facts.name)
        selector = {"cel": {"expression": f"device.driver == '{DRIVER}'"}}
        self.engine.feature(Claims).book.put_class(
            msgspec.convert({"metadata": {"name": DRIVER}, "spec": {"selectors": [selector]}}, DeviceClass)
        )
        self._claims = 0

    def cost(self, attack: Attack) -> SelectorCost:
        self._claims += 1
        name = f"c{self._claims}"
        claim = msgspec.convert(_claim(name, attack), ResourceClaim)
        self.engine.feature(Claims).book.observe(claim)
        asked = _pod(name)
        body = b'{"Pod":%b,"NodeNames":%b}' % (msgspec.json.encode(asked), msgspec.json.encode(self.names))
        longest, calls, answer = 0.0, 0, UNFINISHED.encode()
        while UNFINISHED.encode() in answer and calls < MAX_CALLS:
            calls += 1
            began = thread_time()
            answer = self.engine.filter.answer(body)
            longest = max(longest, thread_time() - began)
        self.engine.cycles.observe_gone(asked["metadata"]["uid"])
        self.engine.feature(Claims).book.drop(f"team/{name}")
        return SelectorCost(attack.name, longest * 1_000, calls, self._admit(asked, claim.spec), _summary(answer))

    def _admit(self, asked: Json, spec: ClaimSpec) -> float:
        """What the webhook does with the claims of a pod, whose selectors it has not read before."""
        sources = _Sources(self.engine, spec)
        compile_selector.cache_clear()
        began = thread_time()
        find_owner(msgspec.convert(asked, ClaimingPod), "team", sources)
        return (thread_time() - began) * 1_000


class _Sources:
    def __init__(self, engine: Engine, spec: ClaimSpec) -> None:
        self._engine = engine
        self._spec = spec

    def claim(self, namespace: str, name: str) -> ClaimSpec | None:
        return self._spec

    def template(self, namespace: str, name: str) -> ClaimSpec | None:
        return self._spec

    def device_class(self, name: str) -> DeviceClass | None:
        return self._engine.feature(Claims).book.classes.get(name)


def selector_costs(nodes: int, cards: int) -> Iterator[SelectorCost]:
    benches = {size: SelectorBench(size or nodes, cards) for size in (None, SOME_NODES, FEW_NODES)}
    for attack in attacks():
        yield benches[attack.nodes].cost(attack)


def _claim(name: str, attack: Attack) -> Json:
    exact: list[Json] = [
        {"deviceClassName": DRIVER, "selectors": [{"cel": {"expression": text}} for text in texts]}
        for texts in attack.selectors
    ]
    if attack.alternatives:
        ways = [{"name": f"way{number}", **each} for number, each in enumerate(exact)]
        requests: list[Json] = [
            {"name": f"r{number}", "firstAvailable": ways[:4] if number else ways} for number in range(2)
        ]
    else:
        requests = [{"name": f"r{number}", "exactly": each} for number, each in enumerate(exact)]
    metadata = {"name": name, "namespace": "team", "uid": f"claim-{name}", "resourceVersion": "1"}
    return {"metadata": metadata, "spec": {"devices": {"requests": requests}}}


def _pod(claim: str) -> Json:
    return {
        "metadata": {"name": "hostile", "namespace": "team", "uid": f"hostile-{claim}"},
        "spec": {
            "schedulerName": Settings().scheduler_name,
            "resourceClaims": [{"name": "gpu", "resourceClaimName": claim}],
            "containers": [{"name": "a", "image": "i", "resources": {"claims": [{"name": "gpu"}]}}],
        },
    }


def _summary(answer: bytes) -> str:
    result = json.loads(answer)
    if result["NodeNames"]:
        return "placed"
    reasons = {**(result["FailedNodes"] or {}), **(result["FailedAndUnresolvableNodes"] or {})}
    return str(result["Error"] or next(iter(reasons.values())))[:90]
