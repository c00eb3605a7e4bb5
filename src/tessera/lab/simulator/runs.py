"""Many runs on all cores: one process a run, results in the order they were asked for.

A run is a policy on a trace under a seed, and knows nothing of the others; so neither the number of processes nor their
order changes a figure.
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
    """place in the list of traces"""
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
    """Every job with its result, as they are ready, in order."""
    with _pool(processes) as pool:
        found = pool.map(_saturate, [traces[job.trace] for job in jobs], jobs, [options] * len(jobs))
        yield from zip(jobs, found, strict=True)


def run_churns(
    traces: Sequence[Trace], jobs: Sequence[SimulationRun], options: churn.ChurnOptions, *, processes: int
) -> Iterator[tuple[SimulationRun, churn.ChurnResult]]:
    """The same for replays with departures."""
    with _pool(processes) as pool:
        found = pool.map(_churn, [traces[job.trace] for job in jobs], jobs, [options] * len(jobs))
        yield from zip(jobs, found, strict=True)
