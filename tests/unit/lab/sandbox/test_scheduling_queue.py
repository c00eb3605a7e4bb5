"""Who is tried when, with exact times."""

from __future__ import annotations

import pytest

from tessera_lab.sandbox.scheduling.queue import ASLEEP_S, QueuePosition, SchedulingQueue, backoff_s


def refused(queue: SchedulingQueue, uid: str, now: float) -> None:
    assert queue.pop(now) == uid
    queue.refused(uid, now)


def test_pods_are_served_by_priority_and_then_in_order() -> None:
    queue = SchedulingQueue()
    for uid, priority in (("a", 0), ("b", 5), ("c", 0), ("d", 5)):
        queue.add(uid, priority=priority)
    assert [queue.pop(0) for _ in range(5)] == ["b", "d", "a", "c", None]


def test_a_pod_that_is_added_twice_is_served_once() -> None:
    queue = SchedulingQueue()
    queue.add("a")
    queue.add("a")
    assert [queue.pop(0), queue.pop(0)] == ["a", None]


def test_a_refused_pod_sleeps_five_minutes_when_nothing_happens() -> None:
    queue = SchedulingQueue()
    queue.add("a")
    refused(queue, "a", 7.0)
    assert queue.place("a") is QueuePosition.ASLEEP
    assert queue.next_at(7.0) == 7.0 + ASLEEP_S
    assert queue.pop(7.0 + ASLEEP_S - 0.001) is None
    assert queue.pop(7.0 + ASLEEP_S) == "a"


def test_an_event_wakes_every_refused_pod_at_once() -> None:
    queue = SchedulingQueue()
    for uid in "ab":
        queue.add(uid)
    refused(queue, "a", 0)
    refused(queue, "b", 0)
    queue.happened(0.1)
    assert queue.next_at(0.1) == 0.1
    assert [queue.pop(0.1) for _ in range(3)] == ["a", "b", None]


def test_a_new_pod_goes_before_one_in_backoff() -> None:
    queue = SchedulingQueue()
    queue.add("old")
    refused(queue, "old", 0)
    queue.happened(0)
    queue.add("new")
    assert [queue.pop(0), queue.pop(0)] == ["new", "old"]


def test_a_pod_that_slept_longer_than_its_backoff_is_active_when_woken() -> None:
    queue = SchedulingQueue()
    queue.add("a")
    refused(queue, "a", 0)
    queue.happened(1.0)
    assert queue.place("a") is QueuePosition.ACTIVE


def test_an_event_while_a_pod_is_in_flight_spares_it_the_sleep() -> None:
    queue = SchedulingQueue()
    queue.add("a")
    assert queue.pop(0) == "a"
    queue.happened(0)
    queue.refused("a", 0)
    assert queue.place("a") is QueuePosition.BACKOFF
    assert queue.next_at(0) == 0


def test_an_error_is_served_in_full_whatever_happens() -> None:
    queue = SchedulingQueue()
    queue.add("a")
    now, waits = 0.0, []
    for _ in range(5):
        assert queue.pop(now) == "a"
        queue.failed("a", now)
        queue.happened(now)
        assert queue.pop(now) is None
        at = queue.next_at(now)
        assert at is not None
        waits.append(at - now)
        now = at
    assert waits == [1, 2, 4, 8, 10]


def test_a_refusal_ends_a_row_of_errors() -> None:
    queue = SchedulingQueue()
    queue.add("a")
    assert queue.pop(0) == "a"
    queue.failed("a", 0)
    refused(queue, "a", 1)
    queue.changed("a", 1)
    assert queue.pop(1) == "a"
    queue.failed("a", 1)
    assert queue.next_at(1) == 2.0


def test_a_change_of_the_pod_itself_wakes_it_and_nobody_else() -> None:
    queue = SchedulingQueue()
    for uid in "ab":
        queue.add(uid)
    refused(queue, "a", 0)
    refused(queue, "b", 0)
    queue.changed("b", 0)
    assert [queue.pop(0), queue.pop(0)] == ["b", None]
    queue.changed("nobody", 0)


def test_a_change_while_in_flight_counts_too() -> None:
    queue = SchedulingQueue()
    queue.add("a")
    assert queue.pop(0) == "a"
    queue.changed("a", 0)
    queue.refused("a", 0)
    assert queue.pop(0) == "a"


@pytest.mark.parametrize("place", list(QueuePosition))
def test_a_forgotten_pod_is_never_served(place: QueuePosition) -> None:
    queue = SchedulingQueue()
    queue.add("a")
    if place is not QueuePosition.ACTIVE:
        assert queue.pop(0) == "a"
    if place is QueuePosition.BACKOFF:
        queue.changed("a", 0)
    if place in (QueuePosition.BACKOFF, QueuePosition.ASLEEP):
        queue.refused("a", 0)
    if place is QueuePosition.ERROR_BACKOFF:
        queue.failed("a", 0)
    assert queue.place("a") is place
    queue.forget("a")
    queue.refused("a", 0)
    queue.failed("a", 0)
    assert "a" not in queue
    assert len(queue) == 0
    assert queue.place("a") is None
    assert queue.next_at(0) is None
    assert queue.pop(1000) is None


def test_a_pod_that_comes_back_under_the_same_uid_starts_afresh() -> None:
    queue = SchedulingQueue()
    queue.add("a")
    queue.forget("a")
    queue.add("a", priority=3)
    assert [queue.pop(0), queue.pop(0)] == ["a", None]


def test_the_backoff_never_grows_beyond_its_cap() -> None:
    assert [backoff_s(n) for n in (1, 2, 3, 4, 5, 1000)] == [1, 2, 4, 8, 10, 10]
