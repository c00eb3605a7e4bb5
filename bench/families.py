"""Compares the policy `fragmentation` with simple ones on families of clusters and workloads, and under churn.

Saturation: cards allocated at arrivals of 80 to 130 %, means of the seeds. Churn: mean and p95 wait of all pods, and
the mean wait by the number of cards asked for, against best-fit. Each result is kept in a file as soon as it is known:
a run that was interrupted goes on from there, and one with more seeds adds to it.

A seed gives every policy the same cluster and pods, so policies are compared seed by seed. With `SEEDS` seeds or more a
difference is only taken for a loss if it is larger than chance explains (`T95` standard errors of the paired
differences). With fewer seeds the means alone decide. In a replay of an openb trace, the seed says which tenth of the
nodes there is. Each simple policy is compared with: the best of them may differ so much from seed to seed that nothing
can be said, where the second best is clearly ahead. Shown is the best one that wins, otherwise the best one.

    python -m bench.families --check                   all generated families
    python -m bench.families --data FOLDER --check     the openb traces as well
    python -m bench.families --family mig,small --seeds 1-20 --no-churn --plot families.svg
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from bench.measurement import progress
from tessera_lab.simulator.families import FAMILIES
from tessera_lab.simulator.report import line_plot, plot_grid
from tessera_lab.simulator.runs import Progress, ResultsError, ResultsFile, run_in_processes
from tessera_lab.simulator.simulation import ChurnOptions, SaturationOptions, replay, saturate
from tessera_lab.simulator.traces import Trace, TraceError, read_trace

OURS = "fragmentation"
SIMPLE = ("first-fit", "best-fit", "fgd", "binpack-binpack", "binpack-spread")
WAITING = "best-fit"
"""what waits are compared with"""
ARRIVALS = (0.8, 0.9, 1.0, 1.1, 1.3)
MARGIN = 0.1
"""percentage points of allocation that a simple policy may be ahead"""
SEEDS = 10
"""from so many on, the differences between seeds say how large chance is"""
T95 = 1.833
"""95 % of Student's t for ten seeds lie below; for more seeds a little more than 95 %"""
OPENB = ("default", "gpuspec20", "multigpu20", "gpushare40", "cpu100")
OPENB_SPEED, OPENB_SHRINK = 300.0, 10
"""of replays: arrivals so many times faster, on one of so many parts of the nodes"""
UNTIMED = ("multigpu20",)
"""published without times"""
FEWEST = 20
"""pods of a size in all replays; of fewer, one pod decides the mean"""


@dataclass(frozen=True, slots=True)
class FamilyRun:
    family: str
    policy: str
    seed: int
    churn: bool
    data: Path | None = None
    """folder with the openb traces"""

    @property
    def key(self) -> str:
        return f"{'churn' if self.churn else 'saturation'} {self.family} {self.policy} {self.seed}"

    def trace(self) -> Trace:
        if self.data is not None:
            nodes = self.data / "openb_node_list_gpu_node.csv"
            return read_trace(nodes, self.data / f"openb_pod_list_{self.family}.csv")
        family = FAMILIES[self.family]
        return family.churn_trace(self.seed) if self.churn else family.trace(self.seed)

    def result(self) -> dict[str, Any]:
        trace = self.trace()
        if self.churn:
            options = ChurnOptions()
            if self.data is not None:
                options = ChurnOptions(OPENB_SPEED, OPENB_SHRINK, first=self.seed % OPENB_SHRINK)
            found = replay(trace, self.policy, self.seed, options)
            waits = {str(cards): wait for cards, wait in found.wait_by_cards}
            return {
                "mean": found.wait_mean, "p95": found.wait_p95, "allocation": found.allocation, "by_cards": waits,
                "pods": {str(cards): number for cards, number in found.pods_by_cards},
            }  # fmt: skip
        ordered = self.data is None and FAMILIES[self.family].is_ordered
        outcome = saturate(trace, self.policy, self.seed, SaturationOptions(keep_order=ordered))
        return {str(arrival): outcome.at(arrival) for arrival in ARRIVALS}


def runs_of(options: argparse.Namespace) -> Iterator[FamilyRun]:
    for name in options.family:
        openb = options.data if name in OPENB else None
        for seed in options.seeds:
            for policy in (OURS, *SIMPLE) if options.saturation else ():
                yield FamilyRun(name, policy, seed, churn=False, data=openb)
            if options.churn and name not in UNTIMED:
                for policy in (OURS, WAITING):
                    yield FamilyRun(name, policy, seed, churn=True, data=openb)


def simulate(runs: Sequence[FamilyRun], kept: ResultsFile, *, jobs: int) -> None:
    """Runs what is not in the file yet."""
    shown = Progress(sum(run.key not in kept.results for run in runs), progress)
    work = {run.key: run for run in runs}
    run_in_processes(work, FamilyRun.result, processes=jobs, kept=kept, on_done=shown.step)


@dataclass(frozen=True, slots=True)
class Verdict:
    family: str
    what: str
    ours: float
    other: float
    """the best simple policy, of those that win if any does; or best-fit's wait"""
    is_behind: bool
    error: float | None = None
    """standard error of the difference; None if there are too few seeds"""

    @property
    def kept(self) -> bool:
        return not self.is_behind or (self.error is not None and abs(self.ours - self.other) <= T95 * self.error)

    def __str__(self) -> str:
        kept = "LOST" if not self.kept else "even" if self.is_behind else "ok  "
        error = "" if self.error is None else f" ± {self.error:.2f}"
        return f"{kept} {self.family:<12} {self.what:<34} {self.ours:>10.2f} {self.other:>10.2f}{error}"


def verdicts(family: str, runs: Iterable[FamilyRun], kept: ResultsFile) -> Iterator[Verdict]:
    found: dict[tuple[bool, str], list[dict[str, Any]]] = {}
    for run in runs:
        if run.family == family:
            found.setdefault((run.churn, run.policy), []).append(kept.results[run.key])
    for arrival in map(str, ARRIVALS if (False, OURS) in found else ()):
        by_policy = {policy: [each[arrival] for each in found[False, policy]] for policy in (OURS, *SIMPLE)}
        what, ours = f"allocated at {float(arrival):.0%}", by_policy[OURS]
        compared = [
            _verdict(family, what, ours, by_policy[policy], is_behind=lambda d: d < -MARGIN) for policy in SIMPLE
        ]
        yield max(compared, key=lambda each: (not each.kept, each.other))
        if family in OPENB and float(arrival) >= 1.0:
            ahead, fgd = fmean(ours), fmean(by_policy["fgd"])
            yield Verdict(family, f"above FGD at {float(arrival):.0%}", ahead, fgd, ahead <= fgd)
    if (True, OURS) not in found:
        return
    ours_all, simple_all = found[True, OURS], found[True, WAITING]
    for what in ("mean", "p95"):
        ours, other = ([each[what] for each in all_of] for all_of in (ours_all, simple_all))
        yield _verdict(family, f"{what} wait, s", ours, other, is_behind=lambda d: d > 0.0)
    for cards in sorted({int(cards) for each in ours_all for cards in each["pods"]}):
        pods = [each["pods"].get(str(cards), 0) for each in ours_all]
        if sum(pods) >= FEWEST:
            ours, other = (_waits(all_of, str(cards), fmean(pods)) for all_of in (ours_all, simple_all))
            yield _verdict(
                family, f"mean wait, {cards} cards, {sum(pods)} pods, s", ours, other, is_behind=lambda d: d > 0.0
            )


def _verdict(
    family: str, what: str, ours: Sequence[float], other: Sequence[float], *, is_behind: Callable[[float], bool]
) -> Verdict:
    """Compares two policies seed by seed."""
    differences = [mine - theirs for mine, theirs in zip(ours, other, strict=True)]
    error = stdev(differences) / sqrt(len(differences)) if len(differences) >= SEEDS else None
    return Verdict(family, what, fmean(ours), fmean(other), is_behind(fmean(differences)), error)


def plotted(families: Sequence[str], runs: Iterable[FamilyRun], kept: ResultsFile) -> str:
    """Allocation by arrival, one panel per family."""
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    for run in runs:
        if not run.churn:
            found.setdefault((run.family, run.policy), []).append(kept.results[run.key])
    plots = []
    for family in families:
        lines = {
            policy: [
                (100.0 * arrival, fmean(each[str(arrival)] for each in found[family, policy])) for arrival in ARRIVALS
            ]
            for policy in (OURS, *SIMPLE)
        }
        lowest = min(allocated for line in lines.values() for _, allocated in line)
        plots.append(
            line_plot(
                lines,
                title=f"{family}: {FAMILIES[family].summary if family in FAMILIES else 'openb'}",
                x_label="requested cards, % of capacity",
                y_label="allocated cards, %",
                y_from=float(int(lowest)),
            )
        )
    return plot_grid(plots, title="Allocated cards by requested cards, one panel per family")


def _waits(replays: Sequence[dict[str, Any]], cards: str, pods: float) -> list[float]:
    """By replay: the wait of all its pods with so many cards, per pod of a replay with `pods` of them.

    So the mean of the replays is the mean of all pods.
    """
    return [each["pods"].get(cards, 0) * each["by_cards"].get(cards, 0.0) / pods for each in replays]


def _seeds(text: str) -> list[int]:
    first, _, last = text.partition("-")
    try:
        return list(range(int(first), int(last or first) + 1))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a number or a range such as 1-4, found {text!r}") from None


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.families", description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, help="folder with the openb traces; without it they are left out")
    parser.add_argument("--family", default="", help=f"families, separated by commas: {', '.join([*FAMILIES, *OPENB])}")
    parser.add_argument("--seeds", type=_seeds, default=_seeds("1-4"), help="such as 1-4, the default")
    parser.add_argument("--jobs", type=int, default=2, help="processes, default %(default)s")
    parser.add_argument("--no-churn", dest="churn", action="store_false", help="leave out the replays")
    parser.add_argument(
        "--no-saturation", dest="saturation", action="store_false", help="leave out all but the replays"
    )
    parser.add_argument(
        "--results", type=Path, default=Path("families.jsonl"), help="file of results, default %(default)s"
    )
    parser.add_argument("--plot", type=Path, help="write allocation by arrival of every family as SVG")
    parser.add_argument("--check", action="store_true", help="exit 1 if fragmentation loses anywhere")
    options = parser.parse_args(arguments)
    options.family = options.family.split(",") if options.family else [*FAMILIES, *(OPENB if options.data else ())]
    if not options.saturation and (options.plot or not options.churn):
        parser.error("--no-saturation leaves nothing for --plot or --no-churn to show")
    unknown = [name for name in options.family if name not in FAMILIES and (name not in OPENB or options.data is None)]
    if unknown:
        parser.error(f"unknown family {', '.join(unknown)}; the openb traces need --data")
    runs = list(runs_of(options))
    try:
        kept = ResultsFile.open(options.results, purpose="bench.families")
        simulate(runs, kept, jobs=options.jobs)
    except (TraceError, ResultsError, OSError) as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        progress(f"interrupted; the same command goes on with what {options.results} has")
        return 130
    if options.plot is not None:
        options.plot.write_text(plotted(options.family, runs, kept))
    lost = 0
    for name in options.family:
        for verdict in verdicts(name, runs, kept):
            print(verdict)
            lost += not verdict.kept
    progress(f"{lost} lost")
    return 1 if options.check and lost else 0


if __name__ == "__main__":
    sys.exit(main())
