"""Who waits and whose limit counts: golden cases 33 and 34, and limits that stay where HAMi's go off for good."""

from __future__ import annotations

from typing import Any

import pytest

from tessera.monitor.feedback import Orders, steer
from tessera.monitor.regions import Region
from tests.unit.monitor.builders import GPU_A, GPU_B, good, region

NOW = 1_700_000_000
FREE, LIMITED, WAITING = Orders(1, 0), Orders(1, 1), Orders(-1, 1)
IDLE = NOW - 60


def container(priority: int, *cards: str, last: int = NOW, recent: int = 2, layout: str = "v1") -> Region:
    more: dict[str, Any] = {} if layout == "v0" else {"last_kernel_time": last}
    return good(region(layout, uuids=cards or (GPU_A,), priority=priority, recent_kernel=recent, **more))


def steered(*regions: Region) -> list[Orders]:
    return list(steer(dict(enumerate(regions)), now=NOW).values())


@pytest.mark.parametrize("layout", ["v0", "v1", "v1 with two locks"])
def test_case_33_a_lower_priority_waits_while_a_higher_one_is_active(layout: str) -> None:
    assert steered(container(0, layout=layout), container(1, layout=layout)) == [FREE, WAITING]


@pytest.mark.parametrize("layout", ["v0", "v1", "v1 with two locks"])
def test_case_34_two_of_equal_priority_are_both_limited(layout: str) -> None:
    assert steered(container(1, layout=layout), container(1, layout=layout)) == [LIMITED, LIMITED]


@pytest.mark.parametrize(
    ("regions", "expected"),
    [
        ([container(1)], [FREE]),
        ([container(0, GPU_A), container(1, GPU_B)], [FREE, FREE]),
        ([container(0, GPU_A), container(1, GPU_B, GPU_A)], [FREE, WAITING]),
        ([container(0, last=IDLE), container(1)], [FREE, FREE]),
        ([container(0, last=IDLE), container(1, recent=-1)], [FREE, Orders(0, 0)]),
        ([container(0), container(1, recent=-1)], [FREE, WAITING]),
        ([container(1, GPU_A, GPU_A)], [FREE]),
        ([container(-3), container(-3)], [FREE, FREE]),
        ([container(2**31 - 1), container(0)], [WAITING, FREE]),
        ([container(0, last=NOW + 86_400), container(1)], [FREE, FREE]),
        ([container(0, ""), container(1, "")], [FREE, FREE]),
        ([container(1, last=IDLE, recent=0), container(1), container(1)], [Orders(0, 1), LIMITED, LIMITED]),
    ],
    ids=[
        "alone",
        "other cards",
        "one card in common",
        "the higher one is idle",
        "the higher one became idle",
        "still waiting",
        "a card named twice counts once",
        "negative priorities count for nobody",
        "huge priority",
        "a kernel in the future is none",
        "no card",
        "an idle one beside two active ones",
    ],
)
def test_orders_follow_from_who_is_active_where(regions: list[Region], expected: list[Orders]) -> None:
    assert steered(*regions) == expected


@pytest.mark.parametrize(
    ("granted", "expected"),
    [
        ({}, WAITING),
        ({0: None, 1: None}, WAITING),
        ({0: {GPU_A}, 1: {GPU_A}}, WAITING),
        ({0: {GPU_B}, 1: {GPU_A}}, FREE),
        ({0: set(), 1: {GPU_A}}, FREE),
    ],
)
def test_a_container_counts_only_on_cards_that_it_was_given(granted: dict[int, Any], expected: Orders) -> None:
    found = steer({0: container(0), 1: container(1)}, now=NOW, granted=granted)
    assert found[1] == expected


@pytest.mark.parametrize(("recent", "expected"), [(2, FREE), (1, Orders(0, 0)), (0, Orders(0, 0)), (-1, Orders(0, 0))])
def test_recent_kernel_counts_down_as_old_cores_expect_it(recent: int, expected: Orders) -> None:
    assert steered(container(1, recent=recent)) == [expected]


@pytest.mark.parametrize("last", [0, None])
def test_without_a_last_kernel_recent_kernel_tells_who_is_active(last: int | None) -> None:
    layout, last = ("v0", 0) if last is None else ("v1", last)
    busy, quiet = (container(0, last=last, recent=recent, layout=layout) for recent in (2, 1))
    low = container(1, last=last, layout=layout)
    assert steered(busy, low)[1] == WAITING
    assert steered(quiet, low)[1] == FREE


class Core:
    """HAMi-core of one busy container: it notes a launch in `recent_kernel` only while its limit counts."""

    def __init__(self, priority: int) -> None:
        self.priority, self.orders, self.last = priority, Orders(2, 1), 0

    def launch(self, now: int) -> None:
        if self.orders.recent_kernel >= 0:
            self.last = now
            if self.orders.utilization_switch:
                self.orders = self.orders._replace(recent_kernel=2)

    def region(self) -> Region:
        return good(
            region(
                priority=self.priority,
                recent_kernel=self.orders.recent_kernel,
                utilization_switch=self.orders.utilization_switch,
                last_kernel_time=self.last,
            )
        )


@pytest.mark.parametrize(("second", "expected"), [(1, [1, 1]), (2, [0, 1])])
def test_bug_10_limits_and_waiting_last_as_long_as_both_are_busy(second: int, expected: list[int]) -> None:
    running = [Core(1)]
    for now in range(NOW, NOW + 120, 5):
        if now == NOW + 30:
            running.append(Core(second))
        for core in running:
            core.launch(now)
        orders = steer({core: core.region() for core in running}, now=now)
        for core in running:
            core.orders = orders[core]
    assert [core.orders.utilization_switch for core in running] == expected
    assert (running[1].orders.recent_kernel == -1) is (second == 2)
