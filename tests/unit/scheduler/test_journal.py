"""What the journal of a running scheduler holds, and how it is read."""

from __future__ import annotations

import asyncio
import weakref
from contextlib import aclosing
from dataclasses import replace

import pytest

from tessera.core.fit.quota import QuotaFacts
from tessera.core.model.requests import HostRequest
from tessera.core.search.victims import PodTraits
from tessera.inspect.replay import JournalReplay
from tessera.scheduler.decision_log import DecisionLog
from tessera.scheduler.journal_ring import StateEntry
from tessera.scheduler.observer import EvictedEvent
from tessera.wire.journal import (
    Bind,
    Denied,
    Evicted,
    ForecastRecord,
    Gang,
    HostRecord,
    Placed,
    PodRecord,
    Record,
    Refused,
    Released,
    SnapshotEnd,
    Start,
    SteppedDown,
    TookOver,
    Woken,
)
from tests.support.builders import gpu_pod, pod
from tests.support.event_loops import in_fake_time
from tests.support.journals import (
    JournalledWorld,
    assert_same_ledger,
    happened,
    kinds,
    machine,
    named,
    only,
    records_of,
    replayed,
)
from tests.support.logs import captured
from tests.support.stepwise_scheduler import preempt_for, using_downward_api

# -- what is recorded


def test_a_journal_begins_with_what_the_process_is_and_its_state() -> None:
    world = JournalledWorld(machine("n1"))
    start, end, *_ = records_of(world.journal)
    assert isinstance(start, Start)
    assert (start.identity, start.node_policy, start.scheduler_name) == ("process-1", "binpack", "hami-scheduler")
    assert isinstance(end, SnapshotEnd)
    assert kinds(happened(world)) == ["NodeRecord"]


@in_fake_time
async def test_the_whole_way_of_a_pod_is_recorded_each_decision_before_its_change() -> None:
    world = JournalledWorld(machine("n1"))
    one = using_downward_api(gpu_pod(mem=1000))
    await world.run(one)
    world.watch()
    world.api.delete_pod("default/p")
    world.watch()
    records = happened(world)
    assert kinds(records) == [
        "NodeRecord", "Placed", "PodRecord", "PodRecord", "Bind", "PodRecord", "PodRecord", "Released",
    ]  # fmt: skip
    assert [record.sequence for record in records] == list(range(1, 9))
    _, placed, reserved, bound, bind, shown, gone, released = records
    assert isinstance(placed, Placed)
    assert (placed.node, placed.pod.name, placed.ledger_version) == ("n1", "p", 1)
    assert placed.grants["NVIDIA"][0][0].uuid == "n1-0"
    assert isinstance(reserved, PodRecord)
    assert isinstance(bound, PodRecord)
    assert isinstance(shown, PodRecord)
    assert [(r.grants, r.observed) for r in (reserved, bound, shown)] == [
        ("reserved", False),
        ("bound", False),
        ("bound", True),
    ]
    assert isinstance(gone, PodRecord)
    assert gone.state is None
    assert isinstance(bind, Bind)
    assert (bind.node, bind.error) == ("n1", "")
    assert isinstance(released, Released)
    assert (released.why, released.node) == ("deleted", "n1")


def test_a_refusal_is_recorded_with_its_reasons_and_repeats_are_only_counted() -> None:
    world = JournalledWorld(machine("n1", memory=1000), machine("n2", memory=1000))
    huge = gpu_pod(mem=5000)
    for _ in range(3):
        world.filtered(huge)
    [refused] = only(world, Refused)
    assert (refused.reasons, refused.refusals) == ({"1/1 CardInsufficientMemory": 2}, 1)
    assert (refused.candidates.count, refused.candidates.mask) == (2, None)
    # Other candidates: the next one that is recorded says how many there were in all.
    world.filtered(huge, ["n1"])
    assert [one.refusals for one in only(world, Refused)] == [1, 4]


def test_a_refusal_that_has_left_the_journal_is_recorded_again() -> None:
    world = JournalledWorld(machine("n1", memory=1000), memory=20_000)
    huge, sequence = gpu_pod(mem=5000), 0
    world.filtered(huge)
    while world.journal.oldest <= 2:
        sequence += 1
        world.journal.on_denied("default", f"p{sequence}", "no")
    world.filtered(huge)
    assert [one.refusals for one in only(world, Refused)] == [2]


def test_a_pod_that_ends_and_one_that_is_given_up_say_why_they_hold_nothing() -> None:
    world = JournalledWorld(machine("n1"))
    one = gpu_pod(mem=1000)
    world.create(one)
    world.chosen(one)
    world.chosen(one)
    world.api.add_pod(one.ended())
    world.watch()
    assert [record.why for record in only(world, Released)] == ["given up", "ended"]


def test_a_reservation_that_expires_is_released() -> None:
    world = JournalledWorld(machine("n1"))
    world.chosen(gpu_pod(mem=1000))
    world.at += 400.0
    world.engine.tick()
    [released] = only(world, Released)
    assert (released.why, released.pod.uid, released.node) == ("expired", "uid-p", "n1")


@in_fake_time
async def test_a_pod_that_is_placed_by_its_bind_is_recorded_as_such() -> None:
    world = JournalledWorld(machine("n1"), machine("n2"))
    one = using_downward_api(gpu_pod(mem=1000))
    world.create(one)
    assert await world.bound(one, "n2") == ""
    two = using_downward_api(gpu_pod("two", mem=10**6))
    world.create(two)
    assert "no longer fits" in await world.bound(two, "n1")
    three = using_downward_api(gpu_pod("three", mem=10))
    world.create(three)
    assert "no registered devices" in await world.bound(three, "n9")
    [placed], [full, unknown] = only(world, Placed), only(world, Refused)
    assert (placed.at_bind, placed.node) == (True, "n2")
    assert full.at_bind
    assert named(full.candidates, ["n1", "n2"]) == ["n1"]
    assert (unknown.reasons, unknown.candidates.others) == ({"node unregistered": 1}, 1)
    assert_same_ledger(replayed(records_of(world.journal)), world.ledger)


def test_only_what_a_search_did_not_find_is_left_out_of_a_list_that_was_searched() -> None:
    """Nine nodes: the best is not a candidate, the second is. No other name is looked up."""
    world = JournalledWorld(*(machine(f"n{i}") for i in range(9)))
    world.chosen(gpu_pod("first", mem=1000), ["n4"])  # binpack prefers this node from now on
    names = [f"n{i}" for i in range(9) if i != 4]
    assert world.chosen(gpu_pod("second", mem=1000), names) == "n0"
    _, placed = only(world, Placed)
    assert (placed.candidates.searched, placed.candidates.count) == (True, 8)
    assert named(placed.candidates, [f"n{i}" for i in range(9)]) == names
    replayed(records_of(world.journal))


def test_a_decision_that_takes_too_long_is_recorded_as_unfinished(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tessera.scheduler.filter.MAX_WORK", 1)
    world = JournalledWorld(*(machine(f"n{i}", cards=4, numas=(0, 1, 2, 3)) for i in range(4)))
    answer = world.filtered(pod().container(gpu=2, mem=1000).numa_bound())
    assert "takes longer" in answer["Error"]
    assert kinds(happened(world))[4:] == ["Unfinished"]
    assert replayed(records_of(world.journal)).counts.unfinished == 1


def test_denials_wake_ups_evictions_and_tenures_are_recorded() -> None:
    world = JournalledWorld(machine("n1"))
    request = world.engine.request_reader.read(gpu_pod().api())
    journal = world.journal
    journal.on_tenure()
    journal.on_denied("team", "web-", "no")
    journal.on_woken(request.request)  # type: ignore[union-attr]
    victim = PodTraits("uid-v", "team", "v")
    journal.on_evicted(EvictedEvent(victim, request.request, "n1", 100))  # type: ignore[union-attr]
    world.stop_leading()
    found = happened(world)[1:]
    assert kinds(found) == ["TookOver", "Denied", "Woken", "Evicted", "SteppedDown"]
    took_over, denied, woken, evicted, down = found
    assert isinstance(took_over, TookOver)
    assert isinstance(denied, Denied)
    assert (denied.namespace, denied.name, denied.message) == ("team", "web-", "no")
    assert isinstance(woken, Woken)
    assert isinstance(evicted, Evicted)
    assert (evicted.pod.uid, evicted.node) == ("uid-v", "n1")
    assert evicted.message.startswith("Preempted by pod default/p (priority 100)")
    assert isinstance(down, SteppedDown)


@in_fake_time
async def test_gangs_and_the_places_of_their_members_are_recorded_and_replay_equally() -> None:
    world = JournalledWorld(machine("n1", 2, slots=1), machine("n2", 2, slots=1))
    asking = using_downward_api(gpu_pod())
    pods = [asking.called(f"g-{i}").in_gang("g", 4) for i in range(4)]
    world.create(*pods)
    chosen = [world.chosen(each) for each in pods]
    await asyncio.gather(*(world.bound(each, at) for each, at in zip(pods, chosen, strict=True)))
    told = only(world, Gang)
    assert {(one.namespace, one.name) for one in told} == {("default", "g")}
    assert [one.state for one in told] == ["planned", "completing"]
    assert [(one.pod.name, one.node) for one in only(world, Placed)] == [
        (each.name, at) for each, at in zip(pods, chosen, strict=True)
    ]
    again = replayed(records_of(world.journal))
    assert again.counts.checked == 4
    assert_same_ledger(again, world.ledger)


@in_fake_time
async def test_the_first_refusal_of_each_member_of_a_gang_is_recorded_and_logged_and_replays_equally() -> None:
    with captured() as logs:
        world = JournalledWorld(machine("n1", 2, slots=1), log=DecisionLog())
        pods = [using_downward_api(gpu_pod()).called(f"g-{i}").in_gang("g", 3) for i in range(3)]
        world.create(*pods)
        for each in (*pods, *pods, *pods):
            world.filtered(each)
        [told] = only(world, Gang)
        refused = only(world, Refused)
        assert [(one.pod.name, one.of_gang, one.refusals) for one in refused] == [(p.name, True, 1) for p in pods]
        assert {text for one in refused for text in one.reasons} == {f"gang default/g: {told.text}"}
        lines = [(line["pod"], line["reason"]) for line in logs.of("pod refused")]
        assert lines == [(f"default/{p.name}", f"gang default/g: {told.text}") for p in pods]
        world.chosen(using_downward_api(gpu_pod("single")))
        again = replayed(records_of(world.journal))
        assert (again.counts.checked, again.counts.of_gangs) == (1, 3)
        assert_same_ledger(again, world.ledger)


def test_forecasts_and_hosts_are_recorded_and_old_forecasts_leave() -> None:
    cpu = {"cpu": "64", "memory": "256Gi"}
    world = JournalledWorld(
        *(machine(f"n{i}", cards=4).capacity(**cpu) for i in range(3)),
        node_policy="fragmentation",
        device_policy="fragmentation",
        memory=60_000,
    )
    models = ("NVIDIA A100", "NVIDIA H100", "NVIDIA L40")
    for number in range(60):
        world.chosen(gpu_pod(f"p{number}", mem=100 + 7 * number, cores=1))
        if number % 10 == 0:
            world.api.add_node(machine("other", model=models[number // 10 % 3], memory=50_000 + number).capacity(**cpu))
            world.watch()
    records = records_of(world.journal)
    assert any(isinstance(record, HostRecord) for record in records)
    forecasts = [record for record in records if isinstance(record, ForecastRecord)]
    assert 0 < len(forecasts) < 6
    assert_same_ledger(replayed(records), world.ledger)


def test_a_forecast_that_comes_back_has_a_new_number() -> None:
    """Without the second model nothing is expected but what is always expected, as at the beginning."""
    world = JournalledWorld(machine("n1", cards=8), node_policy="fragmentation", device_policy="fragmentation")
    world.chosen(gpu_pod("p0", mem=100))
    world.api.add_node(machine("n2", model="NVIDIA H100"))
    world.watch()
    world.chosen(gpu_pod("p1", mem=200))
    world.api.delete_node("n2")
    world.watch()
    world.chosen(gpu_pod("p2", mem=100))
    assert [record.id for record in only(world, ForecastRecord)] == [1, 2, 3]
    assert [record.ask.forecast for record in only(world, Placed)] == [1, 2, 3]


# -- reading


def test_a_reader_gets_only_what_is_new_or_the_state_where_that_is_too_far_back() -> None:
    world = JournalledWorld(machine("n1", cards=8), memory=20_000)
    journal = world.journal
    world.chosen(gpu_pod(mem=10))
    assert kinds(records_of(journal, 1, snapshot=False)) == ["Placed", "PodRecord"]
    assert kinds(records_of(journal, 3, snapshot=False)) == []
    assert kinds(records_of(journal, 2)) == ["Start", "NodeRecord", "SnapshotEnd", "PodRecord"]
    # From another process, or from the future.
    assert kinds(records_of(journal, 99, snapshot=False))[0] == "Start"
    for number in range(60):
        world.chosen(gpu_pod(f"p{number}", mem=10))
    assert journal.oldest > 2
    late = records_of(journal, 1, snapshot=False)
    assert isinstance(late[0], Start)
    assert late[0].sequence == journal.oldest - 1


def test_the_state_after_any_record_is_the_state_that_a_replay_has_there() -> None:
    world = JournalledWorld(machine("n1", cards=8), machine("n2"), memory=30_000)
    for number in range(40):
        world.chosen(gpu_pod(f"p{number % 7}", mem=100))
        if number == 20:
            world.reload(replace(world.settings, enable_iluvatar=True))
    for since in range(world.journal.oldest - 1, world.journal.sequence + 1):
        assert_same_ledger(replayed(records_of(world.journal, since)), world.ledger)


def test_an_event_that_cannot_be_recorded_takes_no_other_with_it() -> None:
    with captured() as logs:
        world = JournalledWorld(machine("n1", cards=2))
        world.chosen(gpu_pod(mem=10))

        def fail(time: float) -> None:
            raise RuntimeError(str(time))

        world.journal.tell(fail)
        world.journal.tell(fail)
        world.chosen(gpu_pod(mem=10).called("second"))
        assert kinds(happened(world))[1:] == ["Placed", "PodRecord", "Placed", "PodRecord"]
    assert len(logs.of("an event was not recorded; later ones may be missing too")) == 1


@in_fake_time
async def test_an_event_has_the_time_at_which_it_was_told() -> None:
    world = JournalledWorld(machine("n1", cards=2))
    times = []
    for name in ("first", "second"):
        await asyncio.sleep(100.0)
        times.append(world.now())
        world.chosen(gpu_pod(mem=10).called(name))
    await asyncio.sleep(100.0)
    assert [record.time for record in only(world, Placed)] == times


@in_fake_time
async def test_a_follower_gets_records_as_they_come_until_the_journal_closes() -> None:
    world = JournalledWorld(machine("n1", cards=8))
    found: list[Record] = []

    async def follow() -> None:
        async for record in world.journal.read(follow=True):
            found.append(record)

    task = asyncio.create_task(follow())
    await asyncio.sleep(1.0)
    assert kinds(found) == ["Start", "SnapshotEnd", "NodeRecord"]
    world.chosen(gpu_pod(mem=10))
    await asyncio.sleep(1.0)
    assert kinds(found)[3:] == ["Placed", "PodRecord"]
    world.reload(replace(world.settings, enable_iluvatar=True))
    await asyncio.sleep(1.0)
    assert kinds(found)[5:8] == ["Start", "NodeRecord", "PodRecord"]
    world.journal.close()
    await task
    assert_same_ledger(replayed(found), world.ledger)


@in_fake_time
async def test_a_follower_that_is_too_slow_begins_afresh_with_the_state() -> None:
    world = JournalledWorld(machine("n1", cards=8), memory=20_000)
    replay = JournalReplay()
    async with aclosing(world.journal.batches(follow=True)) as batches:
        for batch in [await anext(batches), await anext(batches), await anext(batches)]:
            for record in batch:
                assert replay.check(record) is None
        for number in range(100):
            world.chosen(gpu_pod(f"p{number % 9}", mem=100))
        starts = 0
        while replay.ledger.state() != world.ledger.state():
            for record in await anext(batches):
                starts += isinstance(record, Start)
                assert replay.check(record) is None
    assert starts == 1


@in_fake_time
async def test_quotas_and_hosts_that_went_away_in_a_gap_are_gone_for_its_reader() -> None:
    world = JournalledWorld(machine("n1", cards=8), memory=20_000)
    ledger, replay = world.ledger, JournalReplay()
    ledger.observe_quota(QuotaFacts("default", "q", {"nvidia.com/gpu": 1}))
    ledger.observe_host("n1", HostRequest(1000, 1000))
    async with aclosing(world.journal.batches(follow=True)) as batches:
        for _ in range(3):
            for record in await anext(batches):
                replay.apply(record)
        assert_same_ledger(replay, ledger)
        ledger.forget_quota("default", "q")
        ledger.forget_host("n1")
        for number in range(100):
            world.chosen(gpu_pod(f"p{number % 9}", mem=100))
        is_over = False
        while not is_over:
            for record in await anext(batches):
                replay.apply(record)
                is_over = record.sequence == world.journal.sequence
    assert_same_ledger(replay, ledger)


@in_fake_time
async def test_a_reading_that_is_not_continued_holds_nothing_of_what_comes_later() -> None:
    world = JournalledWorld(machine("n1"), memory=20_000)
    journal = world.journal
    async with aclosing(journal.batches(follow=True)) as batches:
        await anext(batches)
        names = weakref.WeakSet[Name]()
        for number in range(1000):
            name = Name(number)
            names.add(name)
            journal.add(StateEntry(0.0, HostRecord, name))
        del name
        assert len(names) <= journal.sequence - journal.oldest + 1 < 200


class Name(str):
    """Can be referred to weakly."""


@in_fake_time
async def test_reading_lets_other_work_run_all_the_time() -> None:
    world = JournalledWorld(machine("n1", cards=8))
    for number in range(300):
        world.journal.on_denied("default", f"p{number}", "no")
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    records = [record async for record in world.journal.read()]
    task.cancel()
    assert len(records) == 303
    assert turns > 10


@in_fake_time
async def test_a_preemption_is_recorded_and_replays_to_the_same_decisions() -> None:
    world = JournalledWorld(machine("n1"))
    for handler in (world.pods, world.nodes, world.quotas, world.engine.budgets):
        handler.synced()
    card = world.ledger.devices("n1")["n1-0"].memory
    low, high = using_downward_api(gpu_pod("low", mem=card)), using_downward_api(gpu_pod("high", mem=card))
    high, thief = high.with_priority(100), using_downward_api(gpu_pod("thief", mem=card))
    fill = [using_downward_api(gpu_pod(f"fill{i}", mem=card)) for i in range(len(world.ledger.devices("n1")) - 1)]
    for pod_ in (low, *fill):
        await world.run(pod_)
        world.watch()
    world.create(high, thief)
    assert world.filtered(high)["NodeNames"] is None
    refused = world.unschedulable.get("uid-high")
    assert refused is not None
    await preempt_for(world.engine, refused)
    world.watch()
    [nomination] = world.ledger.nominations.all()
    [victim] = nomination.victims
    world.api.delete_pod(f"default/{victim.removeprefix('uid-')}")
    world.watch()
    assert world.filtered(thief)["FailedNodes"]
    assert await world.bound(high, world.chosen(high)) == ""
    found = kinds(happened(world))
    assert found.count("NominationRecord") == 2
    assert "Evicted" in found
    replay = replayed(records_of(world.journal))
    assert_same_ledger(replay, world.ledger)
