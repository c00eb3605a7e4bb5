"""`tessera top`: cards, nodes and pods, and what each pod holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from tessera.cli import sources
from tessera.cli.sources import ClusterSource

if TYPE_CHECKING:
    from tessera.inspect.offline_cluster import OfflineCluster
    from tessera.inspect.usage import UsageFilter


@sources.cluster_command(
    "top",
    forms=("text", "wide", "json", "yaml"),
    examples=[
        ("tessera top", "every card as a bar, with the pods that hold it"),
        ("tessera top nodes --sort free", "the nodes with the most free memory first"),
        ("tessera top pods -n team-a -o json", "what the pods of a namespace hold, as JSON"),
        ("tessera top --model h100 --watch", "refresh every two seconds"),
    ],
    codes="  0  printed\n  2  no answer: no access, unreadable file, wrong flags",
)
@click.argument("what", type=click.Choice(["devices", "nodes", "pods"]), default="devices")
@click.option("-n", "--namespace", default="", help="Only pods of this namespace, and the cards that they hold.")
@click.option("--node", "nodes", multiple=True, metavar="NAME", help="Only this node; may be repeated.")
@click.option("--vendor", "vendors", multiple=True, metavar="NAME", help="Only cards of this vendor; may be repeated.")
@click.option("--model", default="", metavar="TEXT", help="Only cards whose model contains this text.")
@click.option(
    "--sort",
    "order",
    type=click.Choice(["name", "memory", "cores", "slots", "free"]),
    default="name",
    show_default=True,
    help="The fullest first, or (free) the most free memory first.",
)
@click.option(
    "--watch", is_flag=False, flag_value=2.0, type=click.FloatRange(min=0.5), default=None, metavar="[SECONDS]",
    help="Refresh until interrupted, every 2 seconds by default.",
)  # fmt: skip
def command(
    source: ClusterSource,
    what: str,
    namespace: str,
    nodes: tuple[str, ...],
    vendors: tuple[str, ...],
    model: str,
    order: str,
    watch: float | None,
    output: str,
) -> None:
    """Show how much memory, cores and slots of each card are granted, and to which pods.

    Amounts are what the ledger has granted, not what processes use at this moment.
    """
    from tessera.inspect.offline_cluster import OfflineCluster
    from tessera.inspect.usage import UsageFilter

    if watch is not None and (source.snapshot or output in ("json", "yaml")):
        raise click.UsageError("--watch needs a live cluster and a table: leave out --snapshot and -o json")
    wanted = UsageFilter(frozenset(nodes), frozenset(name.lower() for name in vendors), model, namespace)

    async def work() -> None:
        import asyncio

        home = sources.namespace_of(source, namespace)
        while True:
            cluster = OfflineCluster(await sources.read_state(source, namespace=home))
            if watch is not None:
                click.clear()
            _show(cluster, wanted, what=what, order=order, output=output)
            if watch is None:
                return
            await asyncio.sleep(watch)

    sources.run_async(work)


def _show(cluster: OfflineCluster, wanted: UsageFilter, *, what: str, order: str, output: str) -> None:
    from tessera.inspect import usage
    from tessera.inspect.render.explanation import unseen_lines
    from tessera.inspect.render.lines import Style, StyledLine
    from tessera.inspect.render.usage import cards_table, nodes_table, pods_table

    width, ascii_only = None if output == "wide" else sources.terminal_width(), sources.ascii_only()
    found: Sequence[object]
    if what == "pods":
        found = pods = usage.sort_usage(usage.pod_usage(cluster, wanted), order)
        lines = pods_table(pods, width=width)
    elif what == "nodes":
        found = nodes = usage.sort_usage(usage.node_usage(cluster, wanted), order)
        lines = nodes_table(nodes, width=width, ascii_only=ascii_only)
    else:
        found = cards = usage.sort_usage(usage.card_usage(cluster, wanted), order)
        lines = cards_table(cards, width=width, wide=output == "wide", ascii_only=ascii_only)
    if not found:
        everything = cluster.ledger.node_names()
        why = "no node has registered cards; tessera doctor says why" if not everything else "nothing matches"
        lines = [StyledLine(why, Style.WARN)]
    if output in ("json", "yaml"):
        sources.print_document(f"{what.capitalize()}InUse", cluster.state, found, output)
    else:
        sources.print_lines([*lines, *unseen_lines(cluster.state)])
