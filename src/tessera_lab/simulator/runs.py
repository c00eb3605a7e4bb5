"""Runs many simulations on all cores, one per process, and keeps each result as soon as it is known.

A run is one policy on one trace with one seed. Runs are independent, so neither the number of processes nor their order
changes a result. After an interrupt the runs under way are finished and kept, if results are kept at all.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from hashlib import sha256
from multiprocessing import get_context
from typing import Any, TypeVar

import msgspec

from tessera_lab.simulator.churn import ChurnOptions, ChurnResult, replay
from tessera_lab.simulator.results import ResultsFile
from tessera_lab.simulator.saturation import SaturationOptions, SaturationResult, saturate
from tessera_lab.simulator.traces import Trace

Options = SaturationOptions | ChurnOptions
Job = TypeVar("Job")
Json = dict[str, Any]
OnDone = Callable[[str], None]
"""called with the key of a run that has ended"""


@dataclass(frozen=True, slots=True)
class SimulationRun:
    policy: str
    trace: int
    """index in the list of traces"""
    seed: int


def run_all(
    traces: Sequence[Trace],
    jobs: Sequence[SimulationRun],
    options: Options,
    *,
    processes: int,
    kept: ResultsFile,
    on_done: OnDone,
) -> list[tuple[SimulationRun, Any]]:
    """Every run with its result, in order: a `SaturationResult` or `ChurnResult`, by the type of the options."""
    keys = {job: f"{traces[job.trace].name} {job.policy} {job.seed}" for job in jobs}
    work = {key: (traces[job.trace], job, options) for job, key in keys.items()}
    run_in_processes(work, _simulate, processes=processes, kept=kept, on_done=on_done)
    result = SaturationResult if isinstance(options, SaturationOptions) else ChurnResult
    return [(job, msgspec.convert(kept.results[key], result)) for job, key in keys.items()]


def purpose_of(traces: Sequence[Trace], options: Options) -> str:
    """What results depend on besides policy and seed."""
    contents = sha256(repr([(trace.name, trace.nodes, trace.pods) for trace in traces]).encode()).hexdigest()
    return f"traces {contents[:16]}, {options}"


def run_in_processes(
    work: Mapping[str, Job], simulate: Callable[[Job], Json], *, processes: int, kept: ResultsFile, on_done: OnDone
) -> None:
    """Runs what `kept` does not have yet, by key."""
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=_ignore_interrupts) as pool:
        # Spawned, not forked: NumPy's threads do not survive a fork.
        running = {pool.submit(simulate, job): key for key, job in work.items() if key not in kept.results}
        try:
            for done in as_completed(running):
                _keep(done, running, kept, on_done)
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            if kept.is_file:
                for done in as_completed(future for future in running if not future.cancelled()):
                    _keep(done, running, kept, on_done)
            raise


def _keep(done: Future[Json], running: Mapping[Future[Json], str], kept: ResultsFile, on_done: OnDone) -> None:
    if running[done] not in kept.results:
        kept.add(running[done], done.result())
        on_done(running[done])


def _simulate(work: tuple[Trace, SimulationRun, Options]) -> Json:
    trace, job, options = work
    if isinstance(options, SaturationOptions):
        return asdict(saturate(trace, job.policy, job.seed, options))
    return asdict(replay(trace, job.policy, job.seed, options))


def _ignore_interrupts() -> None:
    """Ctrl-C reaches the whole group of processes; only the one that collects results reacts."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
