from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import pytest

from bench.variants import by_kind, demand, variants, with_cpu_pods, with_models, with_several, with_shared
from tessera_lab.simulator.traces import TracePod, make_trace

TRACE = make_trace(nodes=60, seed=5)
CONSTRAINED = [pod for pod in TRACE.pods if pod.ask.models]


def cpu_part(pods: Sequence[TracePod]) -> float:
    return len(by_kind(pods)["none"]) / len(pods)


def shared_part(pods: Sequence[TracePod]) -> float:
    return demand(by_kind(pods)["part"]) / demand(pods)


def several_part(pods: Sequence[TracePod]) -> float:
    return demand(by_kind(pods)["several"]) / demand(pods)


def constrained_part(pods: Sequence[TracePod]) -> float:
    carded = [pod for pod in pods if pod.ask.cards]
    return sum(bool(pod.ask.models) for pod in carded) / len(carded)


@pytest.mark.parametrize("part", [0.1, 0.35, 0.7])
@pytest.mark.parametrize(
    ("made", "measured"),
    [
        (with_cpu_pods, cpu_part),
        (with_shared, shared_part),
        (with_several, several_part),
        (lambda pods, part, dice: with_models(pods, CONSTRAINED, part, dice), constrained_part),
    ],
)
def test_a_variant_has_the_part_it_is_named_after(
    made: Callable[[Sequence[TracePod], float, Random], list[TracePod]],
    measured: Callable[[Sequence[TracePod]], float],
    part: float,
) -> None:
    assert measured(made(TRACE.pods, part, Random(3))) == pytest.approx(part, abs=0.03)


def test_variants_are_the_same_every_time_and_have_names_of_their_own() -> None:
    first, second = (list(variants(TRACE, TRACE)) for _ in range(2))
    assert first == second
    assert len({trace.name for trace in first}) == len(first)
    assert all(len({pod.name for pod in trace.pods}) == len(trace.pods) for trace in first)
