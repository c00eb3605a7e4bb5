"""The arrays behind many nodes: columns that come, go and grow, cards with one name on two nodes, the log."""

from __future__ import annotations

import pytest

from tessera.core import arrays
from tessera.core.audit import audit
from tests.support.builders import cluster, gpu_pod, node


def test_more_nodes_and_wider_nodes_than_the_first_arrays_hold() -> None:
    world = cluster(*(node(f"n{number:03}").gpus(1 + number % 20) for number in range(200)))
    assert world.ledger.arrays.kind.shape == (32, 256)
    for number in (0, 63, 64, 199):
        world.start(gpu_pod(f"p{number}", mem=100), [f"n{number:03}"])
    assert world.chosen(gpu_pod(mem=81920, gpu=20)).placement.node == "n019"
    assert world.refused(gpu_pod(gpu=21, mem=1), ["n019", "n198"]) == dict.fromkeys(
        ["n019", "n198"], "NodeInsufficientDevice"
    )


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
