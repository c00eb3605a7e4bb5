"""`tessera defrag`: which pods to move so that whole cards, or given pods, fit."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from tessera.cli import sources
from tessera.cli.lazy import LazyCommand, LazyGroup
from tessera.cli.sources import ClusterSource

COMMANDS: dict[str, LazyCommand] = {
    "plan": LazyCommand("tessera.cli.defrag:plan", "Which pods would have to move where. Changes nothing."),
}
"""by name"""


@click.group("defrag", cls=LazyGroup, lazy=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Move pods so that whole cards, or given pods, fit."""


MORE = """
A pod is moved by evicting it: its controller creates another one, which goes to the target. The same pods are left
alone as in preemption: those with the annotation tessera.io/preemptible: "false", mirror pods, and those whose
disruption budget allows no eviction. Gangs move whole. Bare pods move only with --bare-pods.
"""


@sources.cluster_command(
    "plan",
    examples=[
        ("tessera defrag plan", "as many whole cards as possible, by the fewest moves"),
        ("tessera defrag plan --for pod.yaml --count 4", "room for four copies of a pod"),
        ("tessera defrag plan --max-moves 5 -o json > plan.json", "at most five moves, as a file"),
        ("tessera defrag plan --snapshot cluster.json", "on a snapshot"),
    ],
    codes="  0  the moves reach the goal, or it needs none\n"
    "  1  no moves help, or not enough of them\n"
    "  2  no answer: no access, unreadable file, wrong flags",
    more=MORE,
)
@click.option("--for", "file", metavar="FILE", help="Make room for this pod or workload; - reads standard input.")
@click.option(
    "--count", type=click.IntRange(min=1), help="How many copies. Default: 1, or the workload's replicas."
)  # fmt: skip
@click.option("-n", "--namespace", default="", help="For a manifest without one. Default: that of the context.")
@click.option(
    "--max-moves", type=click.IntRange(min=1), default=50, show_default=True, help="Move at most this many pods."
)
@click.option("--bare-pods", is_flag=True, help="Move bare pods too, which nothing creates again.")
def plan(
    source: ClusterSource,
    file: str | None,
    count: int | None,
    namespace: str,
    max_moves: int,
    bare_pods: bool,
    output: str,
) -> None:
    """Say which pods would have to move where, so that whole cards or given pods fit.

    Every step is checked by the scheduler's own rule and made again on a copy of the cluster. Nothing is written
    anywhere. CPU and memory of hosts count only if the scheduler's policy looks at them; volumes, and affinity between
    pods, are not considered.
    """
    from tessera.inspect.defragmentation import plan_cards, plan_copies
    from tessera.inspect.manifests import read_manifests
    from tessera.inspect.offline_cluster import OfflineCluster
    from tessera.inspect.render.defragmentation import plan_lines
    from tessera.inspect.state import InspectionError

    if count is not None and file is None:
        raise click.UsageError("--count says how many copies of --for FILE: give both")

    async def work() -> bool:
        home = sources.namespace_of(source, namespace)
        manifests = []
        if file is not None:
            try:
                text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
            except (OSError, UnicodeError) as error:
                raise InspectionError(f"cannot read {file}: {error}") from error
            manifests = read_manifests(text, file=file, namespace=home, count=count)
            if len(manifests) > 1:
                raise InspectionError(f"{file}: {len(manifests)} pods or workloads; give one at a time")
        cluster = OfflineCluster(await sources.read_state(source))
        if manifests:
            found = plan_copies(cluster, manifests[0], most_moves=max_moves, with_bare=bare_pods)
        else:
            found = plan_cards(cluster, most_moves=max_moves, with_bare=bare_pods)
        lines = plan_lines(found, width=sources.terminal_width())
        sources.print_answer("DefragmentationPlan", cluster.state, found, output=output, lines=lines)
        return found.is_reached

    sources.exit_with(sources.run_async(work))
