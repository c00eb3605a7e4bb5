"""`tessera explain`: why a pod waits, or why it is where it is."""

from __future__ import annotations

import click

from tessera.cli import sources
from tessera.cli.sources import ClusterSource


@sources.cluster_command(
    "explain",
    examples=[
        ("tessera explain default/trainer", "why it is pending, what comes closest, what would fit"),
        ("tessera explain -n team-a trainer --cards", "the same, card by card, with the pods that hold them"),
        ("tessera explain team-a/trainer --snapshot cluster.json -o json", "from a file, as JSON"),
        (
            "tessera explain trainer --scheduler-flag node-scheduler-policy=fragmentation",
            "what another policy would choose, and why",
        ),
    ],
    codes="  0  the pod is placed, fits, has ended or requests no devices\n"
    "  1  it fits nowhere, its request is invalid, or it runs without an allocation\n"
    "  2  no answer: no such pod, no access, wrong flags",
)
@click.argument("pod", metavar="[NAMESPACE/]POD")
@click.option("-n", "--namespace", default="", help="Namespace of the pod. Default: that of the kubeconfig's context.")
@click.option(
    "--cards", is_flag=True, help="List every card that does not fit, with the numbers and the pods that hold it."
)
def command(source: ClusterSource, pod: str, namespace: str, cards: bool, output: str) -> None:
    """Say why a pod is pending, or why it is on its node and card.

    The scheduler's own engine decides, on the cluster as it is now. What only kube-scheduler looks at is not
    considered: cpu, memory, volumes and affinity between pods.
    """
    from tessera.inspect.explanation import Explanation, PodVerdict, explain, find_pod
    from tessera.inspect.offline_cluster import OfflineCluster
    from tessera.inspect.render.explanation import explanation_lines

    async def work() -> Explanation:
        home = pod.rpartition("/")[0] or sources.namespace_of(source, namespace)
        cluster = OfflineCluster(await sources.read_state(source, namespace=home))
        key = find_pod(cluster, pod, home)
        found = explain(cluster, key, cards=cards)
        lines = explanation_lines(found, width=sources.terminal_width())
        sources.print_answer("Explanation", cluster.state, found, output=output, lines=lines)
        return found

    found = sources.run_async(work)
    if found.status is PodVerdict.UNJUDGED:
        click.get_current_context().exit(sources.NO_ANSWER)
    sources.exit_with(found.is_good)
