"""A pod's life in the ledger, and nodes that come, change and go under it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable

import pytest

from tessera.core.ledger.audit import audit
from tessera.core.ledger.holders import GrantState, IllegalHolderTransition
from tessera.core.ledger.holdings import PodFacts
from tessera.core.ledger.ledger import Ledger, replay
from tessera.core.model.devices import Device, NodeFacts
from tessera.core.model.grants import Grant, Placement
from tessera.core.search.selection import Refused, Selected, Selector
from tessera.vendors.node_reader import node_facts
from tests.support.builders import (
    A100_40GB,
    MIG_ALLOCATIONS,
    Cluster,
    PodBuilder,
    cluster,
    expire,
    gpu_pod,
    node,
    pod,
    vendors,
)

UID = "uid-p"


def world() -> Cluster:
    return cluster(node().gpu("G"), node("n2").gpu("H"))


def state_of(one: Cluster, uid: str = UID) -> GrantState | None:
    entry = one.ledger.pod(uid)
    return entry.state if entry else None


# -- the state machine


def test_a_pod_goes_from_reserved_to_bound_to_gone() -> None:
    one = world()
    one.place(gpu_pod(mem=100, cores=10))
    assert (state_of(one), one.cards()) == (GrantState.RESERVED, {"G": (1, 100, 10)})
    one.ledger.bind(UID)
    assert (state_of(one), one.cards()) == (GrantState.BOUND, {"G": (1, 100, 10)})
    assert one.ledger.release(UID)
    assert (state_of(one), one.cards()) == (None, {"G": (0, 0, 0)})


def test_a_reservation_expires_at_its_deadline_and_not_before() -> None:
    one = world()
    one.place(gpu_pod(mem=100), deadline=60.0)
    assert expire(one.ledger, 59.9) == []
    assert expire(one.ledger, 60.0) == [UID]
    assert one.cards() == {"G": (0, 0, 0)}
    assert expire(one.ledger, 61.0) == []


def test_reservations_expire_in_order_of_uid() -> None:
    one = world()
    for name in ("b", "c", "a"):
        one.place(gpu_pod(name, mem=1), deadline=5.0)
    one.place(gpu_pod("late", mem=1), deadline=50.0)
    assert expire(one.ledger, 10.0) == ["uid-a", "uid-b", "uid-c"]


def test_a_pod_that_is_being_bound_does_not_expire() -> None:
    one = world()
    one.place(gpu_pod(mem=100), deadline=60.0)
    one.ledger.bind(UID)
    assert expire(one.ledger, 1e9) == []
    assert one.cards() == {"G": (1, 100, 0)}


def test_a_bind_that_failed_is_a_reservation_again() -> None:
    one = world()
    one.place(gpu_pod(mem=100), deadline=60.0)
    one.ledger.bind(UID)
    one.ledger.unbind(UID, deadline=90.0)
    assert state_of(one) is GrantState.RESERVED
    assert expire(one.ledger, 89.0) == []
    assert expire(one.ledger, 90.0) == [UID]


def test_what_the_api_shows_cannot_be_taken_back() -> None:
    one = world()
    running = one.start(gpu_pod(mem=100))
    for step in ("unbind", "give_up"):
        with pytest.raises(IllegalHolderTransition, match="shown by the API"):
            STEPS[step](one.ledger)
    assert expire(one.ledger, 1e9) == []
    assert one.cards() == {"G": (1, 100, 0)}
    one.observe(running.ended())
    assert state_of(one) is None


def test_a_decision_that_the_api_does_not_show_is_given_up() -> None:
    one = world()
    one.place(gpu_pod(mem=100))
    one.ledger.give_up(UID)
    assert one.cards() == {"G": (0, 0, 0)}


FACTS = gpu_pod().on("n1", "G,NVIDIA,100,0:;").facts()
STEPS: dict[str, Callable[[Ledger], object]] = {
    "bind": lambda ledger: ledger.bind(UID),
    "unbind": lambda ledger: ledger.unbind(UID, deadline=1.0),
    "give_up": lambda ledger: ledger.give_up(UID),
    "nominate": lambda ledger: ledger.nominate(FACTS, frozenset()),
    "reserve": lambda ledger: ledger.reserve(gpu_pod(mem=100).request(), Placement("n1", {}), deadline=1.0),
}
STATES: dict[str, Callable[[Ledger], object]] = {
    "absent": lambda ledger: None,
    "nominated": lambda ledger: ledger.nominate(FACTS, frozenset()),
    "reserved": lambda ledger: ledger.put_pod(FACTS, GrantState.RESERVED),
    "bound": lambda ledger: ledger.put_pod(FACTS, GrantState.BOUND),
    "shown by the API": lambda ledger: ledger.observe_pod(FACTS),
}
ILLEGAL = [
    *(("absent", step) for step in ("bind", "unbind", "give_up")),
    *(("nominated", step) for step in ("bind", "unbind", "give_up")),
    *(("reserved", step) for step in ("unbind", "nominate")),
    *(("bound", step) for step in ("reserve", "nominate")),
    *(("shown by the API", step) for step in STEPS),
]


@pytest.mark.parametrize(("state", "step"), [(state, step) for state in STATES for step in STEPS])
def test_a_step_that_is_not_drawn_raises_and_changes_nothing(state: str, step: str) -> None:
    ledger = world().ledger
    STATES[state](ledger)
    before = ledger.state()
    if (state, step) not in ILLEGAL:
        STEPS[step](ledger)
        return
    with pytest.raises(IllegalHolderTransition, match=f"is {state}"):
        STEPS[step](ledger)
    assert ledger.state() == before


def test_a_pod_that_is_filtered_again_holds_its_new_place_only() -> None:
    one = world()
    one.place(gpu_pod(mem=100), ["n1"])
    one.place(gpu_pod(mem=100), ["n2"])
    assert (one.cards("n1"), one.cards("n2")) == ({"G": (0, 0, 0)}, {"H": (1, 100, 0)})
    assert [entry.facts.node for entry in one.ledger.pods()] == ["n2"]
    assert one.ledger.pods_on("n1") == []
    assert [entry.facts.uid for entry in one.ledger.pods_on("n2")] == [UID]
    assert one.ledger.pods_on("n3") == []


def test_the_api_wins_over_a_reservation() -> None:
    one = world()
    one.place(gpu_pod(mem=100), ["n1"], deadline=60.0)
    one.observe(gpu_pod(mem=100).on("n2", "H,NVIDIA,300,30:;"))
    assert (one.cards("n1"), one.cards("n2")) == ({"G": (0, 0, 0)}, {"H": (1, 300, 30)})
    assert expire(one.ledger, 1e9) == []


def test_seeing_the_same_pod_twice_counts_it_once() -> None:
    one = world()
    running = gpu_pod().on("n1", "G,NVIDIA,100,0:;")
    one.observe(running, running, running.terminating())
    assert one.cards() == {"G": (1, 100, 0)}


def test_only_a_pod_that_holds_something_else_than_before_is_news() -> None:
    one = world()
    held = gpu_pod().on("n1", "G,NVIDIA,100,0:;").facts()
    assert one.ledger.observe_pod(held)
    assert not one.ledger.observe_pod(held)
    assert one.ledger.observe_pod(gpu_pod().on("n1", "G,NVIDIA,250,0:;").facts())


def test_a_reservation_that_the_api_shows_unchanged_no_longer_expires() -> None:
    one = world()
    asking = gpu_pod(mem=100)
    placement = one.place(asking, deadline=60.0)
    one.observe(asking.annotate(*one.written(asking, placement).items()).on("n1"))
    assert expire(one.ledger, 1e9) == []
    assert state_of(one) is GrantState.BOUND


def test_a_changed_allocation_is_read_again() -> None:
    one = world()
    one.observe(gpu_pod().on("n1", "G,NVIDIA,100,0:;"), gpu_pod().on("n1", "G,NVIDIA,250,5:;"))
    assert one.cards() == {"G": (1, 250, 5)}


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_ended_frees_its_card_and_one_that_ends_does_not(phase: str) -> None:
    one = world()
    running = one.start(gpu_pod(mem=100))
    one.observe(running.terminating())
    assert one.cards() == {"G": (1, 100, 0)}
    one.observe(running.terminating().ended(phase))
    assert one.cards() == {"G": (0, 0, 0)}


def test_a_finished_init_container_gives_back_what_only_it_needed() -> None:
    one = world()
    running = one.start(pod().init(gpu=1, mem=500).container(gpu=1, mem=200))
    assert one.cards() == {"G": (1, 500, 0)}
    one.observe(running.after_init("init0", exit_code=1))
    assert one.cards() == {"G": (1, 500, 0)}
    one.observe(running.after_init("init0"))
    assert one.cards() == {"G": (1, 200, 0)}


# -- nodes


def test_pods_seen_before_their_node_are_charged_when_it_registers() -> None:
    one = cluster().observe(gpu_pod("a").on("n1", "G,NVIDIA,100,10:;"), gpu_pod("b").on("n1", "G,NVIDIA,200,20:;"))
    assert one.ledger.node("n1") is None
    assert one.ledger.node_names() == ()
    one.add(node().gpu("G"))
    assert one.cards() == {"G": (2, 300, 30)}


def test_a_pod_that_ended_before_its_node_registered_leaves_nothing() -> None:
    one = cluster().observe(gpu_pod("a").on("n1", "G,NVIDIA,100,10:;"), gpu_pod("a").on("n1").ended())
    assert one.ledger.state() == cluster().ledger.state()


def test_the_names_follow_nodes_that_come_and_go() -> None:
    one = world()
    assert one.ledger.node_names() == ("n1", "n2")
    one.add(node("n0").gpu("I"))
    assert one.ledger.node_names() == ("n0", "n1", "n2")
    one.ledger.forget_node("n1")
    assert one.ledger.node_names() == ("n0", "n2")


def test_a_node_that_leaves_without_pods_leaves_nothing() -> None:
    one = world()
    assert list(one.ledger.devices("n1")) == ["G"]
    one.ledger.forget_node("n1")
    assert one.ledger.state() == cluster(node("n2").gpu("H")).ledger.state()
    assert one.ledger.devices("n1") == {}
    assert one.ledger.arrays.row("n1") == -1


def test_a_node_that_is_forgotten_and_back_has_its_pods_again() -> None:
    one = world()
    one.start(gpu_pod(mem=100))
    before = one.ledger.state()
    one.ledger.forget_node("n1")
    assert one.ledger.node("n1") is None
    assert one.refused(gpu_pod("q", mem=1), ["n1"]) == {"n1": "node unregistered"}
    assert one.ledger.node_names() == ("n2",)
    one.add(node().gpu("G"))
    assert one.ledger.state() == before
    assert audit(one.ledger) == []


def test_a_pod_that_ended_while_its_node_was_forgotten_leaves_nothing() -> None:
    one = world()
    running = one.start(gpu_pod(mem=100), ["n1"])
    one.ledger.forget_node("n1")
    one.ledger.forget_node("n1")
    one.ledger.forget_node("never seen")
    one.observe(running.ended())
    assert one.ledger.state() == cluster(node("n2").gpu("H")).ledger.state()


def test_registering_the_same_again_changes_nothing() -> None:
    one = world()
    epoch, now = one.ledger.arrays.epoch, one.ledger.arrays.now
    one.add(node().gpu("G"))
    assert (one.ledger.arrays.epoch, one.ledger.arrays.now) == (epoch, now)


def test_a_changed_registration_keeps_what_pods_hold() -> None:
    one = world()
    one.start(gpu_pod(mem=100, cores=100))
    one.add(node().gpu("new").gpu("G", memory=50, cores=200))
    assert one.cards() == {"new": (0, 0, 0), "G": (1, 100, 200)}
    assert [finding.text for finding in audit(one.ledger)] == ["100 of 50 MiB granted"]


def test_a_card_that_disappears_and_returns_is_still_taken() -> None:
    one = cluster(node().gpu("G").gpu("H"))
    one.start(gpu_pod(mem=100).annotate(("nvidia.com/use-gpuuuid", "G")))
    one.add(node().gpu("H"))
    assert one.cards() == {"H": (0, 0, 0)}
    one.add(node().gpu("G").gpu("H"))
    assert one.cards() == {"G": (1, 100, 0), "H": (0, 0, 0)}


def test_a_node_whose_cards_are_all_gone_is_unregistered_and_its_pods_may_come_and_go() -> None:
    one = world()
    running = one.start(gpu_pod(mem=100), ["n1"])
    one.add(node())
    assert one.ledger.node("n1") is None
    assert one.ledger.arrays.row("n1") == -1
    assert one.refused(gpu_pod("q", mem=1), ["n1"]) == {"n1": "node unregistered"}
    one.observe(gpu_pod("other").on("n1", "G,NVIDIA,5,0:;"), running.ended())
    one.add(node().gpu("G"))
    assert one.cards() == {"G": (1, 5, 0)}


def test_grants_on_unknown_cards_are_left_out() -> None:
    one = world().observe(gpu_pod().on("n1", "G,NVIDIA,100,0:stranger,NVIDIA,900,0:;"))
    assert one.cards() == {"G": (1, 100, 0)}
    assert audit(one.ledger) == []


def test_a_node_with_an_unreadable_registration_keeps_its_pods_and_takes_none() -> None:
    broken = node().gpu("G").annotate(("hami.io/node-dcu-register", "nonsense"))
    one = cluster(broken).observe(gpu_pod().on("n1", "G,NVIDIA,100,0:;"))
    assert one.cards() == {"G": (1, 100, 0)}
    assert one.refused(gpu_pod("q", mem=1)) == {"n1": "node usage unavailable"}
    one.add(node().gpu("G"))
    assert one.chosen(gpu_pod("q", mem=1)).placement.node == "n1"


def test_a_node_with_nothing_but_a_problem_is_unavailable() -> None:
    one = cluster(node().annotate(("hami.io/node-nvidia-register", "[{")))
    view = one.ledger.node("n1")
    assert view is not None
    assert "NVIDIA: hami.io/node-nvidia-register" in view.facts.problem
    assert one.refused(gpu_pod(mem=1)) == {"n1": "node usage unavailable"}


# -- replay


def lives() -> list[PodBuilder]:
    mig = '[{"containerIndex":0,"gpuUUID":"M","profile":"1g.5gb","placement":{"start":6,"size":1}}]'
    return [
        pod("a").init(gpu=1).container(gpu=1).on("n1", "G,NVIDIA,100,10:;G,NVIDIA,50,5:;").after_init("init0"),
        pod("b").sidecar(gpu=1).container(gpu=1).on("n1", "G,NVIDIA,100,10:;G,NVIDIA,50,5:;").terminating(),
        gpu_pod("c").on("n2", "M,NVIDIA,4864,14:;").annotate(("hami.io/vgpu-mig-allocations", mig)),
        gpu_pod("d").on("n2", "G,NVIDIA,oops,10:;"),
    ]


@pytest.mark.parametrize("order", list(itertools.permutations(range(4)))[::5])
def test_events_in_any_order_give_the_ledger_that_a_replay_gives(order: tuple[int, ...]) -> None:
    nodes = [node().gpu("G"), node("n2").gpu("M", memory=40960, mode="mig", profiles=A100_40GB)]
    expected = replay(
        vendors(),
        nodes=[node_facts(one.api(), vendors()) for one in nodes],
        pods=[one.facts() for one in lives()],
    )
    one = cluster()
    running = lives()
    for number, position in enumerate(order):
        one.observe(running[position])
        if number < len(nodes):
            one.add(nodes[number])
    one.observe(gpu_pod("gone").on("n1", "G,NVIDIA,1,1:;"), gpu_pod("gone").on("n1").ended())
    assert one.ledger.state() == expected.state()
    assert [finding for finding in audit(one.ledger) if finding.kind == "broken"] == []


def test_ledgers_that_hold_different_things_have_different_states() -> None:
    mig = '[{"containerIndex":0,"gpuUUID":"M","profile":"1g.5gb","placement":{"start":%d,"size":1}}]'
    held = gpu_pod().on("n1", "M,NVIDIA,4864,14:;")
    pods = [[], [held], *([held.annotate((MIG_ALLOCATIONS, mig % start))] for start in (5, 6))]
    nodes = node().gpu("M", memory=40960, mode="mig", profiles=A100_40GB)
    states = [cluster(nodes).observe(*each).ledger.state() for each in pods]
    assert all(one != other for one, other in itertools.combinations(states, 2))
    instances = [state["nodes"]["n1"]["cards"]["M"][-1] for state in states]
    assert instances == [[], [], [("1g.5gb", 5, 1)], [("1g.5gb", 6, 1)]]


def test_quotas_are_replayed_too() -> None:
    one = cluster().quota(memory=5)
    objects, _ = one.ledger.quotas.state()
    assert isinstance(objects, dict)
    again = replay(vendors(), quotas=objects.values())
    assert again.state() == one.ledger.state()


METAX_CARD = {"uuid": "M", "totalDevCount": 4, "totalCompute": 100, "totalVRam": 4096, "healthy": True}
METAX_LIMITS = {"metax-tech.com/sgpu": 1, "metax-tech.com/vmemory": 1, "metax-tech.com/vcore": 10}


@pytest.mark.parametrize(
    "asking",
    [
        pod().init(gpu=1, mem=10).container(gpu=1, mem=20, cores=3),
        gpu_pod(mem=20).annotate(("nvidia.com/use-gpuuuid", "G")),
        pod().container(limits=METAX_LIMITS).annotate(("metax-tech.com/sgpu-qos-policy", "fixed-share")),
    ],
    ids=["with an init container", "with a card of its choice", "with settings of its vendor"],
)
def test_a_placement_is_what_the_api_will_show(asking: PodBuilder) -> None:
    one = cluster(node().gpu("G").annotate(("metax-tech.com/node-gpu-devices", json.dumps([METAX_CARD]))))
    placement = one.place(asking)
    assert isinstance(placement, Placement)
    entry = one.ledger.pod(UID)
    assert entry is not None
    assert asking.annotate(*one.written(asking, placement).items()).on("n1").facts() == entry.facts


def test_a_core_that_two_pods_hold_is_one_core_and_stays_taken_until_both_are_gone() -> None:
    """Masks do not add up: 1 + 1 would show core 1 taken and core 0 free."""
    one = cluster(node("inf").capacity(**{"aws.amazon.com/neuron": "1", "aws.amazon.com/neuroncore": "2"}))
    allocated = ("hami.io/aws-neuron-devices-allocated", "inf-AWSNeuron-0,AWSNeuron,0,1:;")
    for name in ("a", "b"):
        holder = pod(name).container(limits={"aws.amazon.com/neuroncore": "1"})
        one.observe(holder.on("inf").annotate(allocated))

    def used() -> int:
        (card,) = one.cards("inf").values()
        return card[2]

    assert used() == 1
    assert [finding.text for finding in audit(one.ledger)] == ["two pods hold the same core"]
    one.ledger.release("uid-a")
    assert used() == 1
    one.ledger.release("uid-b")
    assert used() == 0
    assert not audit(one.ledger)


def test_a_copied_node_decides_as_the_node_does_and_changes_nothing_there() -> None:
    nodes = [node("n1").gpus(2), node("n2").gpus(1).cordon("n2-0"), node("n3").gpus(1, memory=4_000)]
    here = cluster(*nodes).quota(memory=100_000)
    for number in range(3):
        here.observe(here.start(gpu_pod(f"p{number}", mem=20_000, cores=30), ["n1", "n3"]))
    ledger = here.ledger
    copied = Ledger(ledger.rules)
    for name in ("n1", "n2", "n3", "missing"):
        copied.copy_node(name, ledger)
    copied.quotas = ledger.quotas.copy()
    before = ledger.state()
    asked = [gpu_pod("new", mem=mem, cores=cores) for mem in (1_000, 30_000, 60_000) for cores in (0, 30, 100)]
    for one in asked:
        mine, theirs = (Selector(each).select(one.request(), ["n1", "n2", "n3"]) for each in (copied, ledger))
        assert type(mine) is type(theirs)
        if isinstance(mine, Selected) and isinstance(theirs, Selected):
            assert mine.placement == theirs.placement
            copied.reserve(one.request(), mine.placement, deadline=0.0)
            copied.release(one.request().uid)
        elif isinstance(mine, Refused) and isinstance(theirs, Refused):
            assert mine.misfits == theirs.misfits
    placed = Selector(copied).select(asked[0].request(), ["n1"])
    assert isinstance(placed, Selected)
    copied.reserve(asked[0].request(), placed.placement, deadline=0.0)
    assert ledger.state() == before
    assert ledger.quotas.used("default", "NVIDIA") != copied.quotas.used("default", "NVIDIA")


def test_a_copied_node_still_knows_which_core_ids_are_taken() -> None:
    """They are counted again from all pods of the node whenever one comes."""
    (key,) = [name for name, vendor in vendors().items() if vendor.core_masks]

    def holder(uid: str, mask: int) -> PodFacts:
        return PodFacts(uid, "default", uid, "n", grants={key: ((Grant("d", key, 0, mask),),)})

    ledger, copied = Ledger(vendors()), Ledger(vendors())
    ledger.observe_node(NodeFacts("n", (Device(uuid="d", vendor=key, cores=0b1111, slots=4),)))
    ledger.put_pod(holder("old", 0b0011), GrantState.BOUND)
    copied.copy_node("n", ledger)
    copied.put_pod(holder("new", 0b0100), GrantState.BOUND)
    view = copied.node("n")
    assert view is not None
    assert view.cards[0].used_cores == 0b0111
