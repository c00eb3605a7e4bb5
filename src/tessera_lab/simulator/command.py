"""`tessera simulate trace`: places the pods of a trace under one or several policies and compares the results.

It reads arguments and prints results; progress goes to standard error.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import yaml

from tessera.cli.sources import CommandError, as_ascii, ascii_only
from tessera.services.terminal_json import encode_json

if TYPE_CHECKING:
    from tessera_lab.simulator.report import SimulationReport
    from tessera_lab.simulator.runs import SimulationRun
    from tessera_lab.simulator.simulation import ChurnOptions, SaturationOptions
    from tessera_lab.simulator.traces import Trace

FILE = click.Path(dir_okay=False, path_type=Path)


class Numbers(click.ParamType[list[int]]):
    """`42-51` or `1,2,5`."""

    name = "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[int]:
        if isinstance(value, list):
            return value
        found: list[int] = []
        for part in str(value).split(","):
            first, _, last = part.partition("-")
            if not first.isdigit() or (last and not last.isdigit()):
                self.fail(f"{value!r} is not a list of seeds such as 42-51 or 1,2,5", param, ctx)
            found += range(int(first), int(last or first) + 1)
        return found


class Parts(click.ParamType[list[float]]):
    """`1.0,1.3`."""

    name = "parts"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[float]:
        if isinstance(value, list):
            return value
        try:
            found = [float(part) for part in str(value).split(",")]
        except ValueError:
            found = []
        if not found or min(found) <= 0:
            self.fail(f"{value!r} is not a list of arrivals such as 1.0,1.3", param, ctx)
        return found


def _policies(_ctx: click.Context, _param: click.Parameter, value: str) -> list[str]:
    from tessera_lab.simulator.simulation import STRATEGIES

    names = list(STRATEGIES) if value == "all" else [word.strip() for word in value.split(",")]
    unknown = [name for name in names if name not in STRATEGIES]
    if unknown:
        raise click.BadParameter(f"unknown {', '.join(unknown)}; choose from {', '.join(STRATEGIES)}, or all")
    return names


@click.command(
    "trace",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    epilog="""\b
    Examples:
      tessera simulate trace --nodes nodes.csv --pods pods.csv --policy fragmentation,fgd,best-fit --seeds 42-51
          the published saturation protocol: mean allocation at 100 % and 130 % arrival
      tessera simulate trace --nodes nodes.csv --pods pods.csv --policy fragmentation --shuffle-nodes
          whether the result depends on names
      tessera simulate trace --nodes nodes.csv --pods pods.csv --policy fragmentation,best-fit --churn --speed 1.5
          pods arrive and leave: waiting times and backlog
      tessera simulate trace --nodes nodes.csv --pods pods.csv --policy fragmentation --seeds 42 --defrag
          running pods move for one that does not fit: allocation, and how many moves it takes
      tessera simulate trace --synthetic 100 --policy all --plot allocation.svg --html allocation.html
          all policies on a generated trace; the page has the tables and a plot of each trace
      tessera simulate trace --nodes nodes.csv --pods pods.csv --policy all --seeds 1-50 --resume runs.jsonl
          a long series: after an interrupt the same command goes on with what is missing
    """,
)
@click.option("--nodes", type=FILE, help="The cluster, as CSV (sn, cpu_milli, memory_mib, gpu, model) or YAML.")
@click.option("--pods", type=FILE, multiple=True, help="The pods, as CSV or YAML; may be repeated for several traces.")
@click.option("--synthetic", type=click.IntRange(1), metavar="NODES", help="Generate a cluster and a trace instead.")
@click.option(
    "--write",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="With --synthetic: write nodes.csv and pods.csv to this folder and exit.",
)
@click.option(
    "--policy",
    "names",
    default="fragmentation",
    callback=_policies,
    show_default=True,
    help="One policy, several separated by commas, or all.",
)
@click.option(
    "--arrival",
    "arrivals",
    type=Parts(),
    default="1.0,1.3",
    show_default=True,
    help="Requested cards, as shares of the capacity.",
)
@click.option("--seeds", type=Numbers(), default="42-51", show_default=True, help="Seeds for the order of arrival.")
@click.option("--shuffle-nodes", is_flag=True, help="Give nodes random names: ties are decided by name.")
@click.option("--churn", is_flag=True, help="Replay the trace with its times: pods wait, run and leave.")
@click.option(
    "--speed",
    type=click.FloatRange(0.01),
    default=1.0,
    show_default=True,
    help="With --churn: pods arrive this many times faster.",
)
@click.option(
    "--shrink", type=click.IntRange(1), default=1, show_default=True, help="With --churn: keep only every n-th node."
)
@click.option("--defrag", is_flag=True, help="Move running pods for one that does not fit.")
@click.option(
    "--compare-plans", is_flag=True, help="With --churn: compare plans for whole cards with what is possible (-o json)."
)
@click.option(
    "--jobs", type=click.IntRange(1), default=os.cpu_count() or 1, help="Number of processes. Default: all cores."
)
@click.option("--plot", "plot", type=FILE, help="Write the curves of the first trace as SVG.")
@click.option("--html", "html", type=FILE, help="Write a page with the table and the curves of all traces.")
@click.option(
    "--resume",
    "results",
    type=FILE,
    help="Keep the result of each run in this file, and skip the runs that it has.",
)
@click.option(
    "-o", "--output", type=click.Choice(["text", "table", "json", "yaml"]), default="text", show_default=True,
    help="How to print the result; table is another word for text.",
)  # fmt: skip
def command(
    nodes: Path | None,
    pods: tuple[Path, ...],
    synthetic: int | None,
    folder: Path | None,
    names: list[str],
    arrivals: list[float],
    seeds: list[int],
    shuffle_nodes: bool,
    churn: bool,
    speed: float,
    shrink: int,
    defrag: bool,
    compare_plans: bool,
    jobs: int,
    plot: Path | None,
    html: Path | None,
    results: Path | None,
    output: str,
) -> None:
    """Place the pods of a trace on a cluster under one or several policies.

    Pods arrive in a random order, none leaves, none is tried again; CPU and host memory count as in kube-scheduler. The
    result is the share of all cards that is allocated. docs/packing.md explains the protocol and the policies.
    """
    from tessera_lab.simulator.report import churn_report, results_page, saturation_report
    from tessera_lab.simulator.runs import ResultsError, SimulationRun
    from tessera_lab.simulator.simulation import ChurnOptions, SaturationOptions
    from tessera_lab.simulator.traces import TraceError

    try:
        traces = _traces(nodes, pods, synthetic)
        if folder is not None:
            _write(traces[0], folder)
            return
        work = [SimulationRun(name, place, seed) for name in names for place in range(len(traces)) for seed in seeds]
        options: SaturationOptions | ChurnOptions
        if churn:
            options = ChurnOptions(speed, shrink, defragment=defrag, compare_plans=compare_plans)
        else:
            options = SaturationOptions(until=max(arrivals), shuffle_nodes=shuffle_nodes, defragment=defrag)
        runs = _run(traces, work, options, jobs, results)
    except (TraceError, ResultsError, OSError) as error:
        raise CommandError(str(error)) from error
    except KeyboardInterrupt:
        if results is not None:
            click.echo(f"interrupted; the same command goes on with the results in {results}", err=True)
        raise
    report = churn_report(runs, traces) if churn else saturation_report(runs, traces, arrivals)
    if output == "json":
        click.echo(encode_json(report.figures, indent=2), nl=False)
    elif output == "yaml":
        click.echo(yaml.safe_dump(report.figures, sort_keys=False, width=120), nl=False)
    else:
        _print(report)
    # After the results: minutes of work must not be lost because a folder is missing.
    try:
        if plot is not None:
            plot.write_text(report.plot(traces[0].name))
        if html is not None:
            plots = [(trace.name, report.plot(trace.name)) for trace in traces]
            html.write_text(results_page(heads=report.heads, rows=report.rows, pictures=plots))
    except OSError as error:
        raise CommandError(f"cannot write {error.filename}: {error.strerror}") from error


def _traces(nodes: Path | None, pods: Sequence[Path], synthetic: int | None) -> list[Trace]:
    from tessera_lab.simulator.traces import make_trace, read_trace

    if synthetic is not None:
        return [make_trace(nodes=synthetic)]
    if nodes is None or not pods:
        raise click.UsageError("give a cluster with --nodes and a trace with --pods, or use --synthetic")
    return [read_trace(nodes, path) for path in pods]


def _write(trace: Trace, folder: Path) -> None:
    from tessera_lab.simulator.traces import write_trace

    folder.mkdir(parents=True, exist_ok=True)
    write_trace(trace, folder / "nodes.csv", folder / "pods.csv")


def _run(
    traces: list[Trace],
    work: list[SimulationRun],
    options: SaturationOptions | ChurnOptions,
    jobs: int,
    results: Path | None,
) -> list[tuple[SimulationRun, Any]]:
    from tessera_lab.simulator.runs import Progress, ResultsFile, purpose_of, run_all

    kept = ResultsFile.open(results, purpose=purpose_of(traces, options))
    progress = Progress(len(work) - len(kept.results), lambda text: click.echo(text, err=True))
    return run_all(traces, work, options, processes=jobs, kept=kept, on_done=progress.step)


def _print(report: SimulationReport) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    plain = ascii_only()
    table = Table(box=box.ASCII if plain else box.HEAVY_HEAD)
    for place, head in enumerate(report.heads):
        table.add_column(head, justify="left" if place < 2 else "right")
    for row in report.rows:
        table.add_row(*map(as_ascii, row) if plain else row)
    Console().print(table)
