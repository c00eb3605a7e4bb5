"""Small cases of what the random ones once found, so that they are tried in every run."""

from __future__ import annotations

from tessera.core.fit.quota import QuotaFacts
from tessera.core.ledger.audit import audit
from tessera.core.ledger.holdings import PodFacts
from tessera.core.ledger.ledger import Ledger
from tessera.core.model.devices import HAMI_CORE, MIG, Device, MigPlacement, MigSlot, NodeFacts
from tessera.core.model.grants import Grant, Span
from tessera.core.model.misfits import Misfit, Reason
from tessera.core.model.requests import ContainerRequest, PodRequest, Request, Role
from tessera.core.search.selection import Refused, Selected, Selector
from tests.support import strategies as some
from tests.support.oracles import select_and_check

PLAIN = Device("plain", "NVIDIA", slots=10, memory=8192, mode=HAMI_CORE)
CUT = Device(
    "cut", "NVIDIA", slots=7, memory=8 * some.SLICE, numa=1, mode=MIG, mig_profiles=some.MIG_PROFILES, model="A100"
)


def ledger_of(*nodes: NodeFacts) -> Ledger:
    ledger = Ledger(some.VENDORS)
    for node in nodes:
        ledger.observe_node(node)
    return ledger


def quota(**limits: int) -> QuotaFacts:
    names = {"memory": "nvidia.com/gpumem", "cores": "nvidia.com/gpucores", "ascend": "huawei.com/Ascend910B2-memory"}
    return QuotaFacts("team-a", "quota", {names[name]: limit for name, limit in limits.items()})


def pod(*requests: Request, roles: tuple[Role, ...] = (), numa_bind: bool = False) -> PodRequest:
    """One container for every request, all apps unless `roles` say otherwise."""
    asks = zip(requests, roles or [Role.APP] * len(requests), strict=True)
    containers = tuple(ContainerRequest(f"c{i}", role, (request,)) for i, (request, role) in enumerate(asks))
    return PodRequest("pod", "team-a", "pod", containers, numa_bind=numa_bind)


def decided(ledger: Ledger, asked: PodRequest) -> Selected | Refused:
    selector = Selector(ledger)
    return select_and_check(selector, asked, selector.candidates(ledger.node_names()))


def running(uid: str, grant: Grant, *more: Grant) -> PodFacts:
    grants = tuple((g,) for g in (grant, *more))
    return PodFacts(uid, "team-b", uid, "a", tuple(Span(Role.APP) for _ in grants), {grant.vendor: grants})


def test_an_instance_beside_what_an_init_container_uses_must_both_be_paid_by_the_quota() -> None:
    ledger = ledger_of(NodeFacts("a", (PLAIN, CUT)))
    ledger.observe_quota(quota(memory=15_000))
    first = MigSlot("1g.5gb", MigPlacement(6, 1))
    ledger.observe_pod(running("other", Grant("cut", "NVIDIA", memory=some.SLICE, cores=14, mig=first)))
    whole_card = Request("NVIDIA", count=1, memory=8_000, cores=100)
    instance = Request("NVIDIA", count=1, memory=10_000)

    answer = decided(ledger, pod(whole_card, instance, roles=(Role.INIT, Role.APP)))

    assert isinstance(answer, Refused)
    assert answer.misfits["a"].text == "2/2 ResourceQuotaNotFit"


def test_more_than_all_cores_count_as_one_card_against_a_quota() -> None:
    ledger = ledger_of(NodeFacts("a", (PLAIN,)))
    ledger.observe_quota(quota(cores=120))

    assert isinstance(decided(ledger, pod(Request("NVIDIA", count=1, memory=1_000, cores=150))), Selected)


def test_a_vendor_that_rounds_up_does_not_exceed_a_quota() -> None:
    chip = Device("chip", "Ascend910B2", slots=4, memory=65_536)
    ledger = ledger_of(NodeFacts("a", (chip,)))
    ledger.observe_quota(quota(ascend=4_000))

    assert isinstance(decided(ledger, pod(Request("Ascend910B2", count=1, memory=1_000))), Refused)


def test_the_vendors_score_is_that_of_the_cards_that_the_quota_pays_for() -> None:
    def chips(node: str, *kinds: tuple[int, int]) -> NodeFacts:
        devices = (
            Device(f"{node}-{i}", "Ascend910B2", i, 4, memory, custom={"NetworkID": network})
            for i, (memory, network) in enumerate(kinds)
        )
        return NodeFacts(node, tuple(devices))

    ledger = ledger_of(
        # Without the quota both nodes give two chips of one network; with it the first one gives two small ones.
        chips("a", (65_536, 0), (65_536, 0), (32_768, 0), (32_768, 1)),
        chips("b", (32_768, 0), (32_768, 0)),
    )
    ledger.observe_quota(quota(ascend=66_000))

    answer = decided(ledger, pod(Request("Ascend910B2", count=2, percent=100)))

    assert isinstance(answer, Selected)
    assert answer.placement.node == "b"


def test_a_request_that_numa_refuses_comes_before_later_requests() -> None:
    ledger = ledger_of(NodeFacts("a", (PLAIN, Device("far", "NVIDIA", memory=8192, numa=1))))
    pair, too_large = Request("NVIDIA", count=2, memory=1), Request("NVIDIA", count=1, memory=9_000)

    answer = decided(ledger, pod(pair, too_large, numa_bind=True))

    assert isinstance(answer, Refused)
    assert answer.misfits["a"].container == 0


def test_an_unknown_vendor_is_the_reason_even_on_a_node_with_a_problem() -> None:
    ledger = ledger_of(NodeFacts("a", (PLAIN,), problem="its registration cannot be read"))

    answer = decided(ledger, pod(Request("nobody", count=1)))

    assert isinstance(answer, Refused)
    assert reasons(answer.misfits["a"]) == {Reason.VENDOR_UNKNOWN}


def reasons(misfit: Misfit) -> set[Reason]:
    return {reason for reason, _ in misfit.counts}


def test_a_pod_on_a_node_without_cards_is_remembered() -> None:
    ledger = ledger_of(NodeFacts("a"))

    ledger.observe_pod(running("early", Grant("plain", "NVIDIA", memory=1_000, cores=0)))
    ledger.observe_node(NodeFacts("a", (PLAIN,)))

    assert ledger.state()["nodes"]["a"]["cards"]["plain"][:2] == (1, 1_000)
    assert audit(ledger) == []


def test_containers_that_have_all_cores_only_together_may_share_their_card() -> None:
    ledger = ledger_of(NodeFacts("a", (PLAIN,)))
    ledger.observe_pod(running("small", Grant("plain", "NVIDIA", memory=1_000, cores=0)))
    half = Grant("plain", "NVIDIA", memory=1_000, cores=50)
    ledger.observe_pod(running("halves", half, half))

    assert audit(ledger) == []


def test_a_whole_card_that_is_shared_is_found() -> None:
    ledger = ledger_of(NodeFacts("a", (PLAIN,)))
    ledger.observe_pod(running("small", Grant("plain", "NVIDIA", memory=1_000, cores=0)))
    ledger.observe_pod(running("whole", Grant("plain", "NVIDIA", memory=1_000, cores=100)))

    assert [finding.text for finding in audit(ledger)] == ["a container that has the whole card shares it"]


def test_a_card_that_registers_no_slots_is_not_overcommitted() -> None:
    ledger = ledger_of(NodeFacts("a", (Device("xpu", "XPU", slots=0, memory=98_304, cores=0),)))
    answer = decided(ledger, pod(Request("XPU", count=1, memory=24_576, cores=25)))
    assert isinstance(answer, Selected)

    ledger.reserve(pod(Request("XPU", count=1, memory=24_576, cores=25)), answer.placement, deadline=1)

    assert audit(ledger) == []
