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
from tessera.lab.simulator.saturation import Options, Result, saturate
from tessera.lab.simulator.traces import Trace


@dataclass(frozen=True, slots=True)
class Job:
    policy: str
    trace: int
    """place in the list of traces"""
    seed: int


def _saturate(trace: Trace, job: Job, options: Options) -> Result:
    return saturate(trace, job.policy, job.seed, options)


def _churn(trace: Trace, job: Job, options: churn.Options) -> churn.Result:
    return churn.replay(trace, job.policy, job.seed, options)


def _pool(processes: int) -> ProcessPoolExecutor:
    # Spawned, not forked: NumPy's threads do not survive a fork.
    return ProcessPoolExecutor(processes, mp_context=get_context("spawn"))


def saturations(
    traces: Sequence[Trace], jobs: Sequence[Job], options: Options, *, processes: int
) -> Iterator[tuple[Job, Result]]:
    """Every job with its result, as they are ready, in order."""
    with _pool(processes) as pool:
        found = pool.map(_saturate, [traces[job.trace] for job in jobs], jobs, [options] * len(jobs))
        yield from zip(jobs, found, strict=True)


def churns(
    traces: Sequence[Trace], jobs: Sequence[Job], options: churn.Options, *, processes: int
) -> Iterator[tuple[Job, churn.Result]]:
    """The same for replays with departures."""
    with _pool(processes) as pool:
        found = pool.map(_churn, [traces[job.trace] for job in jobs], jobs, [options] * len(jobs))
        yield from zip(jobs, found, strict=True)
