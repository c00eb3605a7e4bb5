from __future__ import annotations

from dataclasses import replace

import pytest

from tessera_lab.simulator.churn import ChurnOptions, replay
from tessera_lab.simulator.traces import Trace, TraceError, TracePod
from tests.unit.lab.simulator.made_up import nodes, pod, trace


def timed(name: str, created: float, lasts: float, *, cards: int = 1) -> TracePod:
    return replace(pod(name, cards=cards), created=created, deleted=created + lasts)


def world(*pods: TracePod) -> Trace:
    return trace(nodes(1), *pods)


def test_a_pod_waits_until_the_card_is_free() -> None:
    result = replay(world(timed("a", 0.0, 100.0), timed("b", 40.0, 10.0)), "best-fit", 1)
    assert (result.wait_mean, result.waited, result.backlog) == (30.0, 50.0, 0)


def test_those_who_came_first_start_first() -> None:
    result = replay(world(timed("a", 0.0, 10.0), timed("b", 1.0, 10.0), timed("c", 2.0, 10.0)), "best-fit", 1)
    assert result.wait_mean == pytest.approx((0.0 + 9.0 + 18.0) / 3)


def test_a_pod_that_never_fits_is_backlog() -> None:
    result = replay(world(timed("a", 0.0, 10.0), timed("big", 1.0, 10.0, cards=2)), "fragmentation", 1)
    assert result.backlog == 1


def test_allocation_is_counted_while_pods_arrive() -> None:
    result = replay(world(timed("a", 0.0, 50.0), timed("b", 100.0, 50.0)), "best-fit", 1)
    assert result.allocation == pytest.approx(50.0)
    assert result.over_time[0] == 100.0
    assert result.over_time[-1] == 0.0


def test_faster_arrivals_wait_longer() -> None:
    pods = [timed(f"p{i}", 10.0 * i, 8.0) for i in range(6)]
    assert replay(world(*pods), "best-fit", 1).wait_mean == 0.0
    assert replay(world(*pods), "best-fit", 1, ChurnOptions(speed=5.0)).wait_mean > 0.0


def test_a_smaller_cluster_keeps_every_model() -> None:
    mixed = (*nodes(1, 1), *(replace(n, name=f"m{n.name}", model="A10") for n in nodes(1, 1)))
    pods = [timed("a", 0.0, 10.0), timed("b", 0.0, 10.0), timed("c", 0.0, 10.0)]
    assert replay(trace(mixed, *pods), "best-fit", 1, ChurnOptions(shrink=2)).waited == pytest.approx(100.0 / 3)


def test_each_part_of_a_cluster_has_other_nodes() -> None:
    large_first = (*nodes(2), *nodes(1))
    mixed = tuple(replace(n, name=f"n{i}") for i, n in enumerate(large_first))
    pods = [timed("a", 0.0, 10.0), timed("b", 0.0, 10.0)]
    waited = [
        replay(trace(mixed, *pods), "best-fit", 1, ChurnOptions(shrink=2, first=first)).waited for first in (0, 1)
    ]
    assert waited == [pytest.approx(50.0), 0.0]


def test_a_trace_without_times_cannot_be_replayed() -> None:
    with pytest.raises(TraceError, match="creation_time"):
        replay(world(pod("a")), "best-fit", 1)
