"""`tessera explain`: why a pod waits, or why it is where it is."""

from __future__ import annotations

import click

from tessera.cli import sources
from tessera.cli.journal_sources import JournalChoice, choose_journal, journal_options, open_journal
from tessera.cli.sources import ClusterSource


@journal_options("journal-")
@sources.cluster_command(
    "explain",
    examples=[
        ("tessera explain default/trainer", "why it is pending, what comes closest, what would fit"),
        ("tessera explain -n team-a trainer --cards", "the same, card by card, with the pods that hold them"),
        ("tessera explain team-a/trainer --snapshot cluster.json -o json", "from a file, as JSON"),
        ("tessera explain team-a/trainer --history", "its story, also if it is gone: refused, woken, placed, released"),
        (
            "tessera explain trainer --scheduler-flag node-scheduler-policy=fragmentation",
            "what another policy would choose, and why",
        ),
    ],
    codes="  0  the pod is placed, fits, has ended or requests no devices\n"
    "  1  it fits nowhere, its request is invalid, or it runs without an allocation;\n"
    "     with --history: it was refused, denied or evicted last\n"
    "  2  no answer: no such pod, no access, wrong flags",
)
@click.argument("pod", metavar="[NAMESPACE/]POD")
@click.option("-n", "--namespace", default="", help="Namespace of the pod. Default: that of the kubeconfig's context.")
@click.option(
    "--cards", is_flag=True, help="List every card that does not fit, with the numbers and the pods that hold it."
)
@click.option("--history", is_flag=True, help="Tell what the scheduler's journal says about the pod instead.")
def command(
    source: ClusterSource,
    journal_files: tuple[str, ...],
    journal_url: str,
    pod: str,
    namespace: str,
    cards: bool,
    history: bool,
    output: str,
) -> None:
    """Say why a pod is pending, or why it is on its node and card.

    The scheduler's own engine decides, on the cluster as it is now. What only kube-scheduler looks at is not
    considered: cpu, memory, volumes and affinity between pods. With --history the decision journal of the running
    scheduler (or of a file) tells what happened to the pod, also if it is gone.
    """
    if history:
        if cards:
            raise click.UsageError("--cards is about the cluster as it is now: leave out --history")
        _tell_history(source, choose_journal(source, journal_files, journal_url), pod, namespace, output)
        return
    if journal_files or journal_url:
        raise click.UsageError("--journal-file and --journal-url need --history")
    from tessera.inspect.explanation import Explanation, PodVerdict, explain, find_pod
    from tessera.inspect.offline_cluster import OfflineCluster
    from tessera.inspect.render.explanation import explanation_lines

    async def work() -> Explanation:
        home = pod.rpartition("/")[0] or sources.namespace_of(source, namespace)
        cluster = OfflineCluster(await sources.read_state(source, namespace=home, for_preemption=True))
        key = find_pod(cluster, pod, home)
        found = explain(cluster, key, cards=cards)
        lines = explanation_lines(found, width=sources.terminal_width())
        sources.print_answer("Explanation", cluster.state, found, output=output, lines=lines)
        return found

    found = sources.run_async(work)
    if found.status is PodVerdict.UNJUDGED:
        click.get_current_context().exit(sources.NO_ANSWER)
    sources.exit_with(found.is_good)


def _tell_history(source: ClusterSource, chosen: JournalChoice, pod: str, namespace: str, output: str) -> None:
    from contextlib import aclosing

    from tessera.inspect.pod_history import PodHistory, read_history
    from tessera.inspect.render.journal import history_document, history_lines, time_text
    from tessera.inspect.state import InspectionError

    home, _, name = pod.rpartition("/")
    if not home:
        home = namespace or ("default" if chosen.is_given else sources.namespace_of(source, ""))

    async def work() -> PodHistory:
        async with open_journal(source, chosen) as journal, aclosing(journal.records()) as records:
            found = await read_history(records, home, name)
        found.notes += journal.notes
        if not found.stories:
            since = f" since {time_text(found.begin)}" if found.begin else ""
            raise InspectionError(f"{journal.name} says nothing about a pod {home}/{name}{since}")
        return found

    found = sources.run_async(work)
    if output == "text":
        sources.print_lines(history_lines(found))
    else:
        sources.print_document("PodHistory", None, history_document(found), output)
    sources.exit_with(found.is_good)
