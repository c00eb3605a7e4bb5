"""`tessera defrag`: which pods to move so that whole cards, or given pods, fit."""

from __future__ import annotations

import click

from tessera.cli import LazyCommand, LazyGroup, sources
from tessera.cli.drain import Duration
from tessera.cli.sources import ClusterSource

COMMANDS: dict[str, LazyCommand] = {
    "apply": LazyCommand("tessera.cli.defrag:apply", "Have the scheduler make the moves of a plan, one at a time."),
    "plan": LazyCommand("tessera.cli.defrag:plan", "Which pods would have to move where. Changes nothing."),
    "run": LazyCommand("tessera.cli.defrag:run", "Is done by `tessera scheduler --defrag` now."),
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
        ("tessera defrag plan --snapshot cluster.json --plot moves.svg", "on a snapshot, with a picture"),
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
@click.option(
    "--bare-pods",
    is_flag=True,
    help="Plan with bare pods too, after all others. Nothing creates them again, so apply stops before them.",
)
@click.option("--plot", metavar="FILE", help="Draw the cards before and after the moves, as SVG.")
def plan(
    source: ClusterSource,
    file: str | None,
    count: int | None,
    namespace: str,
    max_moves: int,
    bare_pods: bool,
    plot: str | None,
    output: str,
) -> None:
    """Say which pods would have to move where, so that whole cards or given pods fit.

    Every step is checked by the scheduler's own rule and made again on a copy of the cluster, which itself is not
    changed. CPU and memory of hosts count only if the scheduler's policy looks at them; volumes, and affinity between
    pods, are not considered.
    """
    from tessera.inspect.defragmentation import plan_cards, plan_copies
    from tessera.inspect.manifests import read_manifests
    from tessera.inspect.offline_cluster import OfflineCluster
    from tessera.inspect.render.defragmentation import plan_lines, plan_picture
    from tessera.inspect.state import InspectionError

    if count is not None and file is None:
        raise click.UsageError("--count says how many copies of --for FILE: give both")

    async def work() -> bool:
        home = sources.namespace_of(source, namespace)
        manifests = []
        if file is not None:
            text = sources.read_input(file)
            manifests = read_manifests(text, file=file, namespace=home, count=count)
            if len(manifests) > 1:
                raise InspectionError(f"{file}: {len(manifests)} pods or workloads; give one at a time")
        cluster = OfflineCluster(await sources.read_state(source, for_preemption=True))
        if manifests:
            found = plan_copies(cluster, manifests[0], max_moves=max_moves, with_bare=bare_pods)
        else:
            found = plan_cards(cluster, max_moves=max_moves, with_bare=bare_pods)
        if plot is not None:
            sources.write_output(plot, plan_picture(cluster, found))
        lines = plan_lines(found, width=sources.terminal_width())
        sources.print_answer("DefragmentationPlan", cluster.state, found, output=output, lines=lines)
        return found.is_reached

    sources.exit_with(sources.run_async(work))


@sources.cluster_command(
    "apply",
    changes=True,
    examples=[
        ("tessera defrag plan -o json > plan.json", "make a plan, and look at it"),
        ("tessera defrag apply plan.json --dry-run", "compare it with the cluster, and ask about each eviction"),
        ("tessera defrag apply plan.json --interval 1m", "make the moves, with a minute between them"),
        ("tessera defrag apply plan.json --url http://127.0.0.1:8080", "at the end of a port-forward to the scheduler"),
    ],
    codes="  0  all moves are made, or with --dry-run: all could be\n"
    "  1  stopped: the cluster is not as the plan has it. Apply the same plan again to go on\n"
    "  2  not done: unreadable plan, no access, wrong flags",
    more="""
For each move the scheduler holds the target, evicts the pod, and its successor takes what is held. Interrupt the
command at any time: the move under way may still end, and the next ones are not begun. Called again with the same plan,
it shows the moves that are being made, or goes on with those that are left. Needs a token whose user may create
pods/eviction in all namespaces, as the ClusterRole tessera-operator allows.
""",
)
@click.argument("file", metavar="PLAN")
@click.option("--dry-run", is_flag=True, help="Change nothing.")
@click.option("--interval", type=Duration(), default="10s", show_default=True, metavar="DURATION",
              help="Time between two moves.")  # fmt: skip
@click.option("--step-timeout", type=Duration(), default="10m", show_default=True, metavar="DURATION",
              help="Time for one move; its target is held as long.")  # fmt: skip
@click.option("--url", default="", metavar="URL",
              help="The extender's address of the scheduler, such as the end of a port-forward.")  # fmt: skip
@click.option("--token", default="", metavar="TOKEN", envvar="TESSERA_TOKEN", show_envvar=True,
              help="For --url: who you are to the scheduler. `kubectl create token NAME` makes one.")  # fmt: skip
def apply(
    source: ClusterSource,
    file: str,
    dry_run: bool,
    interval: float,
    step_timeout: float,
    url: str,
    token: str,
    output: str,
) -> None:
    """Have the scheduler make the moves of a plan, one at a time, through the Eviction API.

    Each move is compared with the cluster first. If the cluster is not as the plan has it, the command stops; what was
    moved by then stays moved.
    """
    from tessera.inspect.installation import MOVES, at_url, behind_apiserver
    from tessera.inspect.render.lines import StyledLine
    from tessera.inspect.state import InspectionError
    from tessera.kube.access import Access
    from tessera.kube.credentials import FixedHeaders, bearer
    from tessera.maintenance.defrag import make_moves, moves_document, moves_request, read_plan
    from tessera.wire.moves import MoveStage

    async def work() -> bool:
        text = sources.read_input(file)
        plan = read_plan(text, file=file)
        if not plan.moves:
            raise InspectionError(f"{file}: the plan has no moves")

        def report(line: str) -> None:
            sources.print_lines([StyledLine(line)], err=output != "text")

        request = moves_request(plan.moves, interval_s=interval, step_timeout_s=step_timeout, dry_run=dry_run)
        credentials = FixedHeaders(bearer(token, "--token")) if token else None
        access = Access(url, credentials=credentials) if url else None
        async with sources.open_cluster(source, access) as (client, _name):
            find = at_url(url, MOVES) if url else behind_apiserver(client, MOVES)
            found = await make_moves(client, find, plan.moves, request, report)
        if output != "text":
            sources.print_document("DefragmentationRun", None, moves_document(found, dry_run=dry_run), output)
        if dry_run:
            return all(each.stage is not MoveStage.STOPPED for each in found)
        return all(each.stage is MoveStage.MOVED for each in found)

    sources.exit_with(sources.run_async(work))


@click.command(
    "run",
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
)
def run() -> None:
    """Moved into the scheduler."""
    raise sources.CommandError(
        "the scheduler moves pods on a schedule itself: tessera scheduler --defrag, or scheduler.defrag.enabled"
    )
