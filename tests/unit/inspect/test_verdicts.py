"""How a choice is explained: which numbers are shown under which policy, and that looking changes nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tessera.core.ledger.ledger import Ledger
from tessera.inspect.explanation import explain
from tessera.inspect.manifests import Manifest
from tessera.inspect.offline_cluster import OfflineCluster
from tessera.inspect.render.documents import make_document
from tessera.inspect.simulation import simulate
from tessera.inspect.state import Setup
from tessera.wire import keys
from tests.support.builders import NodeBuilder, PodBuilder, gpu_pod, node
from tests.support.cluster_states import plain, state_of
from tests.support.explained import explained, fits, told

FRAGMENTATION = "fragmentation"
BY_FLAG = Setup(flags={"node-scheduler-policy": FRAGMENTATION, "gpu-scheduler-policy": FRAGMENTATION})
LEARN = 32
"""pods that it takes to learn"""


def hosting(made: NodeBuilder, cpu: str = "16", memory: str = "64Gi") -> NodeBuilder:
    return made.capacity(cpu=cpu, memory=memory)


def asking(name: str = "p", *, size: int = 50, cpu: str = "1") -> PodBuilder:
    return gpu_pod(name, percent=size, cores=size, requests={"cpu": cpu, "memory": "1Gi"})


def on(name: str, size: int, card: str, *, cpu: str = "1") -> PodBuilder:
    """A pod that has run long enough to teach."""
    return asking(name, size=size, cpu=cpu).on(card.rpartition("-")[0], f"{card},NVIDIA,{81920 * size // 100},{size}:;")


def tenths(node_name: str, cards: int) -> list[PodBuilder]:
    return [on(f"t{number:02}", 10, f"{node_name}-{number % cards}", cpu="500m") for number in range(LEARN)]


def hosts(ledger: Ledger) -> list[int]:
    return [int(ledger.arrays.free_cpu[ledger.arrays.row(name)]) for name in ledger.node_names()]


async def test_the_winner_comes_first_with_the_least_growth() -> None:
    ended = on("q", 50, "one-0").ended()
    state = state_of([hosting(node("big").gpus(4)), hosting(node("one").gpus(1))], [asking(), ended], setup=BY_FLAG)
    found = explain(OfflineCluster(state), "default/p")
    one, big = fits(found).best
    assert (one.node, one.place, big.node, big.place) == ("one", 1, "big", 2)
    assert one.growth is not None
    assert big.growth is not None
    assert one.growth < big.growth, "four whole cards are worth more than three, and a node with one has less room"
    shown = f"with how much their loss grows, in cards: one ({one.growth:+.4f}), big ({big.growth:+.4f})"
    assert shown in told(found)


async def test_how_much_room_costs_is_what_the_newest_pod_was_placed_by() -> None:
    def growth(*placed: PodBuilder) -> float:
        state = state_of([node("n1").gpus(4)], [*placed, asking()], setup=BY_FLAG)
        found = fits(explain(OfflineCluster(state), "default/p")).best[0].growth
        assert found is not None
        return found

    running = on("q", 50, "n1-0")
    half, whole = (running.annotate((keys.TURNOVER, text)) for text in ("0.5", "1.0"))
    assert 0.0 < growth(half) - growth(running) == pytest.approx((growth(whole) - growth(running)) / 2)


async def test_programs_get_the_same_figures() -> None:
    state = state_of([hosting(node("one").gpus(1))], [asking()], setup=BY_FLAG)
    found = explain(OfflineCluster(state), "default/p")
    shown = make_document("Explanation", state, found)
    growth = fits(found).best[0].growth
    assert shown["verdict"]["best"][0]["growth"] == growth
    assert growth is not None
    assert (shown["expected"]["learnedFrom"], shown["expected"]["needed"]) == (0, LEARN)


async def test_other_policies_show_scores_and_expect_nothing() -> None:
    found = explained([node("n1").gpus(1)], asking())
    assert [one.growth for one in fits(found).best] == [None]
    assert found.expected is None
    assert "with scores: n1 (0.00)" in told(found)


async def test_nodes_that_lose_alike_are_decided_by_name() -> None:
    state = state_of([node("n2").gpus(1), node("n1").gpus(1)], [asking()], setup=BY_FLAG)
    found = explain(OfflineCluster(state), "default/p")
    assert fits(found).node == "n1"
    assert len({one.growth for one in fits(found).best}) == 1


async def test_cards_show_what_the_card_policy_orders_them_by() -> None:
    pods = [on("h", 40, "n1-1"), asking(size=60)]
    found = fits(explained([node("n1").gpus(2)], *pods, setup=BY_FLAG))
    assert found.cards_by_growth
    assert [one.card for one in found.cards] == ["n1-1", "n1-0"]
    assert found.cards[0].score < found.cards[1].score, "the rest of the card would be used up"


async def test_what_the_pods_of_the_cluster_teach_decides() -> None:
    nodes = [node("a").gpus(4), node("b").gpus(1)]
    full = replace(on("full", 45, "b-0"), uid="uid-full")
    few, many = ([*tenths("a", 4)[:number], full, asking(size=45)] for number in (LEARN - 2, LEARN))
    guessed, learned = (explained(nodes, *pods, setup=BY_FLAG) for pods in (few, many))
    assert guessed.expected is not None
    assert learned.expected is not None
    assert (guessed.expected.learned_from, learned.expected.learned_from) == (0, LEARN)
    assert "expected pods (learned from 32 pods of this cluster): slices of 10 %" in told(learned)
    assert "31 of the 32 pods needed to learn from have been seen" in told(guessed)
    first, second = fits(guessed).best[0].growth, fits(learned).best[0].growth
    assert first is not None
    assert second is not None
    assert first != second


@pytest.mark.parametrize(
    ("last", "counts"),
    [
        (on("z", 10, "a-0"), True),
        (on("z", 10, "a-0").ended(), True),
        (asking("z", size=10), False),
        (asking("z", size=10).on("a"), False),
    ],
    ids=["runs", "has ended", "the scheduler was not asked about it yet", "another scheduler placed it"],
)
async def test_pods_teach_once_somebody_was_asked_about_them(last: PodBuilder, counts: bool) -> None:
    pods = [*tenths("a", 4)[: LEARN - 1], last, asking()]
    found = explained([node("a").gpus(4)], *pods, setup=BY_FLAG)
    assert found.expected is not None
    assert found.expected.learned_from == (LEARN if counts else 0)


@pytest.mark.parametrize(("scheduler", "counts"), [("hami-scheduler", True), ("default-scheduler", False)])
async def test_a_pod_that_waits_teaches_where_our_scheduler_refused_it(scheduler: str, counts: bool) -> None:
    state = state_of([node("a").gpus(4)], [*tenths("a", 4)[: LEARN - 1], asking()], setup=BY_FLAG)
    refused = plain(asking("z", size=10))
    refused["spec"]["schedulerName"] = scheduler
    refused["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "message": "no"}]
    found = explain(OfflineCluster(replace(state, pods=(*state.pods, refused))), "default/p")
    assert found.expected is not None
    assert found.expected.learned_from == (LEARN if counts else 0)


async def test_a_node_that_takes_each_container_alone_but_not_both_does_not_count_as_fitting() -> None:
    both = gpu_pod(percent=60, cores=60).container(gpu=1, percent=60, cores=60)
    found = fits(explained([node("n1").gpus(2), node("n2").gpus(1)], both))
    assert (found.fitting, [one.node for one in found.best]) == (1, ["n1"])


async def test_the_node_of_a_placed_pod_is_shown_however_far_from_the_best_it_is() -> None:
    nodes = [node(f"n{number}").gpus(1) for number in range(9)]
    found = explained(nodes, on("p", 50, "n8-0"), setup=BY_FLAG)
    assert [(one.node, one.place) for one in fits(found).best] == [
        *((f"n{number}", number + 1) for number in range(5)),
        ("n8", 9),
    ]
    assert ", 3 more" in told(found)


async def test_a_placed_pod_is_judged_without_what_it_uses_itself_and_looking_changes_nothing() -> None:
    nodes = [hosting(node("n1").gpus(2)), hosting(node("n2").gpus(2))]
    waiting = state_of(nodes, [*tenths("n2", 2)[:4], asking(cpu="9")], setup=BY_FLAG)
    placed = state_of(nodes, [*tenths("n2", 2)[:4], on("p", 50, "n1-1", cpu="9")], setup=BY_FLAG)
    cluster = OfflineCluster(placed)
    before = cluster.ledger.state(), hosts(cluster.ledger)
    assert fits(explain(cluster, "default/p")).best == fits(explain(OfflineCluster(waiting), "default/p")).best
    assert (cluster.ledger.state(), hosts(cluster.ledger)) == before


async def test_simulated_copies_use_their_hosts_and_the_counted_ones_give_them_back() -> None:
    cluster = OfflineCluster(state_of([hosting(node("n1").gpus(4))], setup=BY_FLAG))
    found = simulate(cluster, Manifest("default", "p", plain(asking(cpu="2")), 3))
    assert (len(found.placed), found.fits_in_all) == (3, 8)
    assert hosts(cluster.ledger) == [16_000 - 3 * 2_000]
    assert found.why is not None
    assert found.why.best[0].growth is not None


async def test_simulated_copies_teach_the_next_ones() -> None:
    cluster = OfflineCluster(state_of([node("n1").gpus(8)], setup=BY_FLAG))
    first = simulate(cluster, Manifest("default", "p", plain(asking(size=10)), LEARN))
    second = simulate(cluster, Manifest("default", "q", plain(asking("q", size=10)), 1))
    assert first.expected is not None
    assert second.expected is not None
    assert (first.expected.learned_from, second.expected.learned_from) == (0, LEARN)
