"""Runs many simulations on all cores, one per process, and keeps each result as soon as it is known.

A run is one policy on one trace with one seed. Runs are independent, so neither the number of processes nor their order
changes a result. After an interrupt the runs under way are finished and kept, if results are kept at all.

A file of results has one line of JSON for each, so that a series that was interrupted goes on with what is missing. Its
first line says what the results belong to: results of other options are refused rather than mixed. A line that was cut
off in the middle of writing is dropped.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from hashlib import sha256
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from tessera.files.documents import read_json
from tessera.files.reader import read_file
from tessera_lab.simulator.simulation import (
    ChurnOptions,
    ChurnResult,
    SaturationOptions,
    SaturationResult,
    replay,
    saturate,
)
from tessera_lab.simulator.traces import Trace

QUIET_S = 5.0
"""between two lines about the progress"""


BEGIN = '{"purpose": '


class ResultsError(Exception):
    """A file that cannot be used as results of these runs."""


class ResultsFile:
    """Results by key; `add` appends to the file, if there is one."""

    def __init__(self, path: Path | None, results: dict[str, Any]) -> None:
        self._path = path
        self.results = results

    @classmethod
    def open(cls, path: Path | None, *, purpose: str) -> ResultsFile:
        """Reads what the file has, or begins it. `purpose` must be the same for all results of a file."""
        if path is None:
            return cls(None, {})
        if path.exists() and not path.is_file():
            raise ResultsError(f"{path} is not a file")
        try:
            text = read_file(path).decode() if path.exists() else ""
        except OSError as error:
            raise ResultsError(f"{path} cannot be read: {error.strerror or error}") from error
        except UnicodeError as error:
            raise ResultsError(f"{path} is not a file of results") from error
        whole, _, _ = text.rpartition("\n")
        lines = whole.splitlines()
        if not lines:
            if not BEGIN.startswith(text[: len(BEGIN)]):
                raise ResultsError(f"{path} is not a file of results")
            path.write_text(json.dumps({"purpose": purpose}) + "\n")
            return cls(path, {})
        try:
            head, *entries = (read_json(line.encode()) for line in lines)
            if head["purpose"] != purpose:
                raise ResultsError(f"{path} has results of other options; name another file or delete it")
            found = {entry["key"]: entry["result"] for entry in entries}
        except (ValueError, KeyError, TypeError) as error:
            raise ResultsError(f"{path} is not a file of results") from error
        if not text.endswith("\n"):
            path.write_text(whole + "\n")
        return cls(path, found)

    @property
    def is_file(self) -> bool:
        return self._path is not None

    def add(self, key: str, result: Any) -> None:
        self.results[key] = result
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps({"key": key, "result": result}) + "\n")


class Progress:
    """Says after each run, but not too often, how many are left and about how long they take."""

    def __init__(self, total: int, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._total, self._say, self._clock = total, say, clock
        self._began = self._said = clock()
        self._done = 0

    def step(self, name: str) -> None:
        """A run of this name has ended."""
        self._done += 1
        now = self._clock()
        if self._done < self._total and now - self._said >= QUIET_S:
            self._said = now
            left = (now - self._began) / self._done * (self._total - self._done)
            self._say(f"{self._done} of {self._total} runs, about {spoken(left)} left ({name})")


def spoken(seconds: float) -> str:
    """`45 s`, `12 min` or `2 h 5 min`."""
    if seconds < 90.0:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60.0)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


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
