"""What a journal keeps when it is full, and how large it is."""

from __future__ import annotations

import gc
import tracemalloc
from dataclasses import replace

import pytest

from tessera.wire.journal import (
    NodeRecord,
    Placed,
    Refused,
    Start,
)
from tests.support.builders import gpu_pod
from tests.support.journals import JournalledWorld, assert_same_ledger, machine, only, records_of, replayed
from tests.support.stepwise_scheduler import filter_body

# -- the ring


def test_records_leave_a_full_journal_and_what_they_said_stays_in_its_base() -> None:
    world = JournalledWorld(machine("n1", cards=8), machine("n2"), memory=20_000)
    for number in range(100):
        world.chosen(gpu_pod(f"p{number % 30}", mem=100))
    journal = world.journal
    assert journal.bytes <= 20_000
    assert journal.oldest > 100
    records = records_of(journal)
    assert isinstance(records[0], Start)
    base = [record for record in records if isinstance(record, NodeRecord)]
    assert sorted(record.name for record in base) == ["n1", "n2"]
    replay = replayed(records)
    assert_same_ledger(replay, world.ledger)
    assert replay.counts.checked > 3


def test_the_configuration_of_a_reload_that_has_left_is_that_of_the_base() -> None:
    world = JournalledWorld(machine("n1"), memory=20_000)
    world.reload(replace(world.settings, enable_iluvatar=True))
    reloaded = world.journal.sequence
    while world.journal.oldest <= reloaded:
        world.journal.on_denied("default", "p", "no")
    start, *rest = records_of(world.journal)
    assert isinstance(start, Start)
    assert start.enable_iluvatar
    assert not any(isinstance(record, Start) for record in rest)


@pytest.mark.no_cover
def test_the_size_of_a_journal_is_estimated_from_above_but_not_far() -> None:
    world = JournalledWorld(*(machine(f"n{i}", cards=8) for i in range(20)), memory=8 << 20)
    bodies = [filter_body(gpu_pod(f"pod-{n}", mem=50, cores=1), sorted(world.api.nodes)) for n in range(1_000)]
    world.filter.answer(bodies[0])
    gc.collect()
    tracemalloc.start()
    try:
        before, estimated = tracemalloc.get_traced_memory()[0], world.journal.bytes
        for body in bodies[1:]:
            world.filter.answer(body)
        taken, estimated = tracemalloc.get_traced_memory()[0] - before, world.journal.bytes - estimated
    finally:
        tracemalloc.stop()
    # The ledger and the pods' cycles hold much of the same.
    assert 0.4 * taken < estimated < 2.0 * taken


@pytest.mark.parametrize("cards", [300_000, 20_000_000])
def test_a_pod_that_asks_for_more_cards_than_there_are_neither_fails_nor_empties_the_journal(cards: int) -> None:
    world = JournalledWorld(machine("n1"))
    assert world.filtered(gpu_pod("first"))["NodeNames"] == ["n1"]
    assert world.filtered(gpu_pod("greedy", gpu=cards))["FailedNodes"]
    assert [one.pod.name for one in only(world, Placed)] == ["first"]
    assert [one.pod.name for one in only(world, Refused)] == ["greedy"]


def test_long_annotations_many_containers_and_long_messages_count_with_their_length() -> None:
    world = JournalledWorld(machine("n1"), memory=8 << 20)
    words = "nvidia.com/use-gpuuuid", ",".join(f"GPU-{number:040}" for number in range(200))
    many = gpu_pod("many")
    for _ in range(400):
        many = many.container()
    sizes = []
    for one in (gpu_pod("plain", gpu=2), gpu_pod("long", gpu=2).annotate(words), many):
        before = world.journal.bytes
        world.filtered(one)
        sizes.append(world.journal.bytes - before)
    plain, long, large = sizes
    assert long > plain + 200 * 44
    assert large > plain + 400 * 200
    before = world.journal.bytes
    world.journal.on_denied("default", "p", "x" * 10_000)
    assert world.journal.bytes - before > 10_000
