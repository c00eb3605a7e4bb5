"""Results of many runs as plain data: means and standard deviations, for a table, JSON or a plot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from tessera_lab.simulator import churn
from tessera_lab.simulator.defragmentation import FreedCards
from tessera_lab.simulator.runs import SimulationRun
from tessera_lab.simulator.saturation import STEPS, SaturationResult
from tessera_lab.simulator.traces import Trace

DIGITS = 2

Grouped = dict[str, dict[str, list[Any]]]


def _grouped(runs: Iterable[tuple[SimulationRun, Any]], traces: Sequence[Trace]) -> Grouped:
    """Results by policy and trace."""
    found: Grouped = {}
    for job, result in runs:
        found.setdefault(job.policy, {}).setdefault(traces[job.trace].name, []).append(result)
    return found


def _figure(values: Sequence[float]) -> dict[str, float]:
    spread = stdev(values) if len(values) > 1 else 0.0
    return {"allocation_percent": round(fmean(values), DIGITS), "sd": round(spread, DIGITS)}


def saturation_report(
    runs: Iterable[tuple[SimulationRun, SaturationResult]], traces: Sequence[Trace], arrivals: Sequence[float]
) -> dict[str, Any]:
    """`{policy: {trace: {arrival: {allocation_percent, sd}}}}`; where pods moved, also `moves` and `bound_percent`."""
    return {
        policy: {
            trace: {
                **{str(arrival): _figure([result.at(arrival) for result in results]) for arrival in arrivals},
                **_moves([result.moves for result in results]),
                **_bound([result.bound for result in results if result.moves]),
            }
            for trace, results in by_trace.items()
        }
        for policy, by_trace in _grouped(runs, traces).items()
    }


def _moves(counts: Sequence[int]) -> dict[str, float]:
    return {"moves": round(fmean(counts), DIGITS)} if any(counts) else {}


def _bound(bounds: Sequence[float]) -> dict[str, float]:
    return {"bound_percent": round(fmean(bounds), DIGITS)} if bounds else {}


def curves(
    runs: Iterable[tuple[SimulationRun, SaturationResult]], traces: Sequence[Trace]
) -> dict[str, dict[str, list[float]]]:
    """`{trace: {policy: mean allocation at 0, 1, 2 ... per cent}}`."""
    found: dict[str, dict[str, list[float]]] = {}
    for policy, by_trace in _grouped(runs, traces).items():
        for trace, results in by_trace.items():
            length = min(len(result.curve) for result in results)
            means = [fmean(result.at(step / STEPS) for result in results) for step in range(length)]
            found.setdefault(trace, {})[policy] = means
    return found


def churn_report(runs: Iterable[tuple[SimulationRun, churn.ChurnResult]], traces: Sequence[Trace]) -> dict[str, Any]:
    """`{policy: {trace: {allocation_percent, wait_seconds, waited_percent, backlog}}}`."""
    return {
        policy: {trace: _churn_figures(results) for trace, results in by_trace.items()}
        for policy, by_trace in _grouped(runs, traces).items()
    }


def _churn_figures(results: Sequence[churn.ChurnResult]) -> dict[str, Any]:
    def mean(values: Iterable[float]) -> float:
        return round(fmean(values), DIGITS)

    by_cards: dict[str, list[float]] = {}
    for result in results:
        for cards, wait in result.wait_by_cards:
            by_cards.setdefault(str(cards), []).append(wait)
    return {
        "allocation_percent": mean(r.allocation for r in results),
        "wait_seconds": {
            "mean": mean(r.wait_mean for r in results),
            "p50": mean(r.wait_p50 for r in results),
            "p95": mean(r.wait_p95 for r in results),
        },
        "mean_wait_seconds_by_cards": {cards: mean(waits) for cards, waits in by_cards.items()},
        "waited_percent": mean(r.waited for r in results),
        "backlog": mean(r.backlog for r in results),
        **_moves([r.moves for r in results]),
        **_freed([r.freed for r in results]),
        "allocation_over_time": [mean(points) for points in zip(*(r.over_time for r in results), strict=False)],
    }


def _freed(plans: Sequence[FreedCards]) -> dict[str, Any]:
    """Of plans for whole cards, at some moments: what they free, and what placing all parts anew would."""
    cards, moves = sum(each.cards for each in plans), sum(each.moves for each in plans)
    if not cards:
        return {}
    return {
        "whole_cards_freed": cards,
        "whole_cards_freed_by_repacking": sum(each.repacked for each in plans),
        "whole_cards_bound": sum(each.possible for each in plans),
        "moves_per_freed_card": round(moves / cards, DIGITS),
    }


def saturation_rows(report: Mapping[str, Any], arrivals: Sequence[float]) -> list[tuple[str, ...]]:
    """Trace, policy, and a cell for every arrival."""
    return [
        (trace, policy, *(f"{f[str(a)]['allocation_percent']:.2f} ± {f[str(a)]['sd']:.2f}" for a in arrivals))
        for policy, by_trace in report.items()
        for trace, f in by_trace.items()
    ]


def churn_rows(report: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Trace, policy, allocation, waits, backlog."""
    return [
        (
            trace,
            policy,
            f"{f['allocation_percent']:.2f}",
            *(f"{f['wait_seconds'][key]:.0f}" for key in ("mean", "p50", "p95")),
            f"{f['waited_percent']:.1f}",
            f"{f['backlog']:.0f}",
        )
        for policy, by_trace in report.items()
        for trace, f in by_trace.items()
    ]
