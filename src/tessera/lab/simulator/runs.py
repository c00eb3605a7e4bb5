"""Runs many simulations on all cores, one per process, and returns results in order.

A run is one policy on one trace with one seed. Runs are independent, so neither the number of processes nor their order
changes a result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

from tessera.lab.simulator import churn
from tessera.lab.simulator.saturation import SaturationOptions, SaturationResult, saturate
from tessera.lab.simulator.traces import Trace


@dataclass(frozen=True, slots=True)
class SimulationRun:
    policy: str
    trace: int
    """index in the list of traces"""
    seed: int


def _saturate(trace: Trace, job: SimulationRun, options: SaturationOptions) -> SaturationResult:
    return saturate(trace, job.policy, job.seed, options)


def _churn(trace: Trace, job: SimulationRun, options: churn.ChurnOptions) -> churn.ChurnResult:
    return churn.replay(trace, job.policy, job.seed, options)


def _pool(processes: int) -> ProcessPoolExecutor:
    # Spawned, not forked: NumPy's threads do not survive a fork.
    return ProcessPoolExecutor(processes, mp_context=get_context("spawn"))


def run_saturations(
    traces: Sequence[Trace], jobs: Sequence[SimulationRun], options: SaturationOptions, *, processes: int
) -> Iterator[tuple[SimulationRun, SaturationResult]]:
    """Every run with its result, in order, as they finish."""
    with _pool(processes) as pool:
        found = pool.map(_saturate, [traces[job.trace] for job in jobs], jobs, [options] * len(jobs))
        yield from zip(jobs, found, strict=True)


def run_churns(
    traces: Sequence[Trace], jobs: Sequence[SimulationRun], options: churn.ChurnOptions, *, processes: int
) -> Iterator[tuple[SimulationRun, churn.ChurnResult]]:
    """The same for churn replays."""
    with _pool(processes) as pool:
        found = pool.map(_churn, [traces[job.trace] for job in jobs], jobs, [options] * len(jobs))
        yield from zip(jobs, found, strict=True)
