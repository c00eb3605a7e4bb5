"""The arrays behind many nodes: columns that come, go and grow, cards with one name on two nodes, the log."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tessera.core.ledger.audit import audit
from tessera.core.model import arrays
from tests.support.builders import A100_40GB, Cluster, cluster, gpu_pod, node


@pytest.mark.no_cover
def test_more_nodes_and_wider_nodes_than_the_first_arrays_hold() -> None:
    world = cluster(*(node(f"n{number:03}").gpus(1 + number % 20) for number in range(200)))
    assert world.ledger.arrays.kind.shape == (32, 256)
    for number in (0, 63, 64, 199):
        world.start(gpu_pod(f"p{number}", mem=100), [f"n{number:03}"])
    assert world.chosen(gpu_pod(mem=81920, gpu=20)).placement.node == "n019"
    assert world.refused(gpu_pod(gpu=21, mem=1), ["n019", "n198"]) == dict.fromkeys(
        ["n019", "n198"], "NodeInsufficientDevice"
    )


def test_cards_in_mig_mode_beside_those_of_another_vendor_are_left_to_the_plain_rule() -> None:
    dcu = ("hami.io/node-dcu-register", "D,10,1000,100,DCU-K100,0,true:")
    world = cluster(
        node("n1").gpu("M", mode="mig", profiles=A100_40GB).annotate(dcu), node("n2").gpu("G").annotate(dcu)
    )
    assert world.ledger.arrays.odd[:2].tolist() == [True, False]


@pytest.mark.parametrize("size", [64, 65, 200])
def test_nodes_of_any_width_are_judged(size: int) -> None:
    world = cluster(node().gpus(size))
    assert bool(world.ledger.arrays.odd[0]) == (size > arrays.MAX_DEVICES)
    assert world.refused(gpu_pod(gpu=size + 1, mem=1)) == {"n1": "NodeInsufficientDevice"}
    assert world.refused(gpu_pod(gpu=size, mem=90000)) == {"n1": f"{size}/{size} CardInsufficientMemory"}
    world.start(gpu_pod(gpu=size, mem=100))
    assert set(world.cards().values()) == {(1, 100, 0)}
    pinned = gpu_pod("pinned", mem=1).annotate(("nvidia.com/use-gpuuuid", f"n1-{size - 1}"))
    assert world.chosen(pinned).placement.node == "n1"


def test_a_node_may_grow_beyond_the_limit_and_shrink_again() -> None:
    world = cluster(node().gpus(2))
    world.start(gpu_pod(mem=100))
    for size in (100, 2, 64, 65, 1, 2):
        world.add(node().gpus(size))
        assert audit(world.ledger) == []
    assert world.cards() == {"n1-0": (0, 0, 0), "n1-1": (1, 100, 0)}


def test_a_freed_column_is_used_again() -> None:
    world = cluster(node("a").gpus(2), node("b").gpus(2))
    world.start(gpu_pod(mem=100), ["a"])
    row = world.ledger.arrays.row("a")
    world.ledger.forget_node("a")
    assert world.ledger.arrays.row("a") == -1
    world.add(node("c").gpus(1))
    assert world.ledger.arrays.row("c") == row
    assert world.refused(gpu_pod("q", gpu=2, mem=81920), ["a", "c"]) == {
        "a": "node unregistered",
        "c": "NodeInsufficientDevice",
    }
    assert audit(world.ledger) == []


def columns(world: Cluster) -> dict[str, list[object]]:
    """Everything that the arrays show, free columns and places included."""
    found = vars(world.ledger.arrays).items()
    return {name: array.tolist() for name, array in found if isinstance(array, np.ndarray)}


def test_a_freed_column_shows_nothing_of_its_node() -> None:
    full = node("old").gpu("G").gpu("sick", healthy=False).gpu("cordoned").cordon("cordoned")
    full = full.gpu("M", memory=40960, mode="mig", slots=7, profiles=A100_40GB)
    world = cluster(full)
    world.ledger.arrays.set_host_free("old", cpu=1_000, memory=100)
    for uuid in ("G", "M"):
        world.start(gpu_pod(uuid, mem=4000, cores=10).annotate(("nvidia.com/use-gpuuuid", uuid)))
    world.observe(gpu_pod("unread").on("old", "G,NVIDIA:;"))
    world.ledger.forget_node("old")
    assert columns(world) == columns(cluster())
    assert world.ledger.arrays.names == [""]
    assert world.ledger.arrays.kind_counts() == [0, 0]
    world.add(node("new").gpu("N"))
    assert columns(world) == columns(cluster(node("new").gpu("N")))


def test_every_column_is_in_the_table_and_keeps_its_numbers_when_the_arrays_grow() -> None:
    world = cluster(node("n0").gpu("G").gpu("sick", healthy=False).cordon("G"), node("n1").gpu("M", memory=100))
    before = world.ledger.arrays
    rng = np.random.default_rng(1)
    for name in arrays.COLUMNS:
        column = getattr(before, name)
        column[...] = rng.integers(0, 100, column.shape)
    assert columns(world).keys() == arrays.COLUMNS.keys()
    old = {name: getattr(before, name).copy() for name in arrays.COLUMNS}
    before._grow(9, 2 * before.kind.shape[1])
    for name, column in arrays.COLUMNS.items():
        grown = getattr(before, name)
        inside = tuple(slice(0, size) for size in old[name].shape)
        assert grown.shape[-1] == 2 * old[name].shape[-1]
        assert (grown[inside] == old[name]).all()
        grown[inside] = column.empty
        assert (grown == column.empty).all()
        assert grown.dtype == old[name].dtype


def test_a_column_that_is_cleared_shows_nothing_in_any_array() -> None:
    world = cluster(node("n0").gpus(2), node("n1").gpus(2))
    for name in arrays.COLUMNS:
        getattr(world.ledger.arrays, name)[..., 0] = 1
    kept = {name: getattr(world.ledger.arrays, name)[..., 1].tolist() for name in arrays.COLUMNS}
    world.ledger.arrays._clear(0)
    for name, column in arrays.COLUMNS.items():
        assert (getattr(world.ledger.arrays, name)[..., 0] == column.empty).all()
        assert getattr(world.ledger.arrays, name)[..., 1].tolist() == kept[name]


def test_a_copy_without_some_pods_differs_in_what_is_in_use_and_nowhere_else() -> None:
    world = cluster(node("n0").gpus(2), node("n1").gpus(2))
    now = world.ledger.arrays
    shape = now.kind[:, 1:2].shape
    left = now.without(np.array([np.full(shape, 1 + i) for i in range(len(arrays.USE_COLUMNS))]), slice(1, 2))
    for name in arrays.COLUMNS:
        less = 1 + arrays.USE_COLUMNS.index(name) if name in arrays.USE_COLUMNS else 0
        difference = getattr(now, name).astype(float) - getattr(left, name)
        assert (difference[..., 1] == less).all()
        assert (np.delete(difference, 1, axis=-1) == 0).all()


def test_a_node_and_its_cards_leave_no_trace() -> None:
    world = cluster(node("kept").gpu("kept-card"), node("gone").gpu("gone-card"))
    world.ledger.arrays.set_host_free("gone", cpu=1_000, memory=100)
    world.start(gpu_pod(mem=100), ["gone"])
    world.ledger.forget_node("gone")
    world.ledger.arrays.forget_host("gone")
    assert world.ledger.arrays.order.names == ("", "kept")
    assert "gone" not in str(vars(world.ledger.arrays))


def test_a_reader_starts_afresh_if_columns_come_go_or_grow_and_only_then() -> None:
    world = cluster(*(node(f"n{number}").gpus(8) for number in range(8)))
    asking = gpu_pod(gpu=9, mem=1)
    assert set(world.refused(asking).values()) == {"NodeInsufficientDevice"}
    seen = world.ledger.arrays.epoch
    world.add(node("n0").gpus(8, memory=1000))
    world.start(gpu_pod("p", mem=1))
    assert world.ledger.arrays.epoch == seen
    world.add(node("n0").gpus(9))
    assert world.ledger.arrays.kind.shape[0] == 16
    assert (grown := world.ledger.arrays.epoch) != seen
    assert world.chosen(asking).placement.node == "n0"
    assert "n0" in world.refused(gpu_pod(gpu=10, mem=1))
    world.ledger.forget_node("n0")
    assert world.ledger.arrays.epoch not in (seen, grown)
    assert set(world.refused(asking).values()) == {"NodeInsufficientDevice"}


def test_a_node_that_is_too_wide_does_not_make_the_arrays_wider() -> None:
    world = cluster(node("wide").gpus(arrays.MAX_DEVICES + 1))
    assert world.ledger.arrays.kind.shape == (8, 64)


def test_unknown_nodes_have_no_column() -> None:
    world = cluster(node("a").gpus(1), node("b").gpus(1))
    assert world.ledger.arrays.rows(["b", "unknown", "a"]).tolist() == [1, -1, 0]


def test_cards_in_mig_mode_are_of_one_kind_if_they_offer_the_same_instances() -> None:
    mig: dict[str, Any] = {"memory": 40960, "mode": "mig", "slots": 7}
    few = A100_40GB[:2]
    nodes = [node("a").gpus(2, profiles=A100_40GB, **mig), node("b").gpus(3, profiles=few, **mig)]
    plain = node("c").gpu("small", memory=40960, profiles=few).gpu("large", memory=81920)
    assert cluster(*nodes, plain).ledger.arrays.kind_counts() == [2, 3, 2]


def test_the_largest_card_of_a_vendor_is_the_largest_that_ever_was() -> None:
    cards = node("a").gpu("G", memory=100).gpu("H", memory=300)
    world = cluster(cards, node("b").capacity(**{"aws.amazon.com/neuron": "1", "aws.amazon.com/neuroncore": "2"}))
    world.ledger.forget_node("a")
    world.add(node("c").gpu("I", memory=200))
    assert world.ledger.arrays.largest_card == {"NVIDIA": 300, "AWSNeuron": 0}


def test_a_change_of_free_cpu_or_memory_is_logged_and_the_same_again_is_not() -> None:
    world = cluster(node("a").gpus(1), node("b").gpus(1))
    log = world.ledger.arrays
    log.set_host_free("a", cpu=1_000, memory=100)
    for cpu, memory in ((2_000, 100), (2_000, 200)):
        start = log.now
        log.set_host_free("a", cpu=cpu, memory=memory)
        assert log.changed_since(start) == [log.row("a")]
        start = log.now
        log.set_host_free("a", cpu=cpu, memory=memory)
        log.set_host_free("unknown", cpu=cpu, memory=memory)
        assert log.changed_since(start) == []
    log.forget_host("a")
    log.forget_host("unknown")
    assert log.changed_since(start) == [log.row("a")]


def test_removing_what_is_not_there_changes_nothing() -> None:
    world = cluster(node().gpus(1))
    epoch = world.ledger.arrays.epoch
    world.ledger.arrays.remove("unknown")
    assert world.ledger.arrays.epoch == epoch


def test_two_nodes_may_register_the_same_card() -> None:
    world = cluster(node("a").gpu("G"), node("b").gpu("G").gpu("H"))
    pinned = gpu_pod(mem=1).annotate(("nvidia.com/use-gpuuuid", "G"))
    assert [name for name, _ in world.chosen(pinned).fits] == ["b", "a"]
    avoiding = gpu_pod(mem=1).annotate(("nvidia.com/nouse-gpuuuid", "G"))
    assert world.chosen(avoiding).placement.node == "b"
    world.start(gpu_pod("on-a", mem=100), ["a"])
    assert (world.cards("a"), world.cards("b")["G"]) == ({"G": (1, 100, 0)}, (0, 0, 0))
    world.ledger.forget_node("a")
    assert [name for name, _ in world.chosen(pinned).fits] == ["b"]
    world.add(node("b").gpu("H"))
    assert world.refused(pinned) == {"b": "1/1 CardUuidMismatch"}


def test_the_log_tells_each_changed_column_once_and_forgets_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "LOG_LIMIT", 6)
    world = cluster(node("a").gpus(1), node("b").gpus(1))
    log = world.ledger.arrays
    start = log.now
    assert log.changed_since(start) == []
    for number in range(3):
        world.place(gpu_pod(f"p{number}", mem=1), ["b"])
    assert log.changed_since(start) == [log.row("b")]
    assert log.changed_since(start + 3) == []
    for number in range(5):
        world.place(gpu_pod(f"q{number}", mem=1), ["a"])
    assert log.changed_since(start) is None
    assert log.changed_since(log.now - 1) == [log.row("a")]
    assert len(log.log) <= 6


def test_the_log_is_trimmed_only_beyond_its_limit_and_to_its_newer_half(monkeypatch: pytest.MonkeyPatch) -> None:
    world = cluster(node("a").gpus(1), node("b").gpus(1))
    log = world.ledger.arrays
    start = log.now
    monkeypatch.setattr(arrays, "LOG_LIMIT", len(log.log) + 4)
    for number in range(4):
        world.place(gpu_pod(f"p{number}", mem=1), ["b"])
    assert log.changed_since(0) is not None
    length, before = len(log.log), log.now
    world.place(gpu_pod("q", mem=1), ["a"])
    assert log.now == before + 1
    assert len(log.log) == length + 1 - (length + 1) // 2
    assert log.changed_since(log.log_start) == [log.row("b"), log.row("a")]
    assert log.changed_since(log.log_start - 1) is None
    assert start <= log.log_start


def test_columns_are_put_in_the_order_of_their_names() -> None:
    world = cluster(node("c").gpus(1), node("a").gpus(1), node("b").gpus(1))
    columns = world.ledger.arrays
    order = columns.order
    assert order.names == ("a", "b", "c")
    assert [columns.row(name) for name in order.names] == order.rows.tolist()
    assert order.places[order.rows].tolist() == [0, 1, 2]
    assert columns.order is order
    world.ledger.forget_node("a")
    world.add(node("d").gpus(1))
    assert columns.order.names == ("b", "c", "d")
    assert order.names == ("a", "b", "c")
