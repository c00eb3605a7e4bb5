"""`tessera explain`: why a pod waits, or why it is where it is."""

from __future__ import annotations

import click

from tessera.cli.sources import (
    CONTEXT,
    Source,
    answer,
    examples,
    finish,
    namespace_of,
    open_state,
    output_option,
    print_document,
    print_lines,
    source_options,
    terminal_width,
)


@click.command(
    "explain",
    context_settings=CONTEXT,
    epilog=examples(
        [
            ("tessera explain default/trainer", "why it is pending, what comes nearest, what would fit"),
            ("tessera explain -n team-a trainer --cards", "the same, card by card, with who holds them"),
            ("tessera explain team-a/trainer --snapshot cluster.json -o json", "from a file, for programs"),
            (
                "tessera explain trainer --scheduler-flag node-scheduler-policy=fragmentation",
                "the choice as another policy would make it, with the parts of each node's loss",
            ),
        ],
        "  0  the pod is placed, fits, has ended or asks for no devices\n"
        "  1  it fits nowhere, its request cannot be honoured, or it runs without an allocation\n"
        "  2  no answer: no such pod, no access, wrong flags",
    ),
)
@click.argument("pod", metavar="[NAMESPACE/]POD")
@click.option("-n", "--namespace", default="", help="Of the pod. Default: that of the kubeconfig's context.")
@click.option("--cards", is_flag=True, help="List every card that refuses, with the numbers and who holds it.")
@output_option()
@source_options
def command(source: Source, pod: str, namespace: str, cards: bool, output: str) -> None:
    """Say why a pod is pending, or why it is on its node and card.

    The verdict is that of the scheduler's own engine on what the cluster shows now. It does not know what only
    kube-scheduler looks at: cpu, memory, volumes and affinity between pods.
    """
    from tessera.inspect.explanation import explain, find
    from tessera.inspect.offline_cluster import OfflineCluster
    from tessera.inspect.render.explanation import explained, made_from

    async def work() -> bool:
        world = OfflineCluster(await open_state(source))
        found = explain(world, find(world, pod, namespace_of(source, namespace)), cards=cards)
        if output == "text":
            print_lines(explained(found, width=terminal_width()))
            print_lines(made_from(world.state))
        else:
            print_document("Explanation", world.state, found, output)
        return found.is_good

    finish(answer(work))
