"""`tessera top`: cards, nodes and pods, and what each pod holds."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from tessera.cli import sources
from tessera.cli.sources import ClusterSource

if TYPE_CHECKING:
    from tessera.inspect.offline_cluster import OfflineCluster
    from tessera.inspect.render.lines import StyledLine
    from tessera.inspect.state import ClusterState
    from tessera.inspect.usage import UsageFilter
    from tessera.inspect.utilization import MeasuredUse
    from tessera.kube.client import KubeClient


@sources.cluster_command(
    "top",
    forms=("text", "wide", "json", "yaml"),
    examples=[
        ("tessera top", "every card as a bar, with the pods that hold it"),
        ("tessera top nodes --sort free", "the nodes with the most free memory first"),
        ("tessera top pods -n team-a -o json", "what the pods of a namespace hold, as JSON"),
        ("tessera top --model h100 --watch", "refresh every two seconds"),
        ("tessera top --watch 10 -o json", "one JSON document per line, whenever something has changed"),
    ],
    codes="  0  printed\n  2  no answer: no such node, no access, unreadable file, wrong flags",
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

    Amounts are what the ledger has granted. Where the monitors of the nodes can be read, what processes use at this
    moment stands beside it: USED in MiB, BUSY in per cent. Nodes that cannot be read and pods that wait are listed
    below the table.
    """
    from tessera.inspect.usage import UsageFilter

    if watch is not None and source.snapshot:
        raise click.UsageError("--watch needs a live cluster: leave out --snapshot")
    wanted = UsageFilter(frozenset(nodes), frozenset(name.lower() for name in vendors), model, namespace)
    screen = Screen(what, order, output, wanted, is_watched=watch is not None)

    async def work() -> None:
        from tessera.inspect.offline_cluster import OfflineCluster
        from tessera.inspect.utilization import NOTHING_MEASURED

        home = sources.namespace_of(source, namespace)
        if source.is_live:
            async with sources.open_cluster(source) as (client, name):
                await _follow(source, client, name, screen, home, watch)
        else:
            screen.show(OfflineCluster(await sources.read_state(source, namespace=home)), NOTHING_MEASURED)

    sources.run_async(work)


async def _follow(
    source: ClusterSource, client: KubeClient, server: str, screen: Screen, home: str, watch: float | None
) -> None:
    """Shows the cluster, once or every so many seconds."""
    import asyncio

    from tessera.inspect.collector import collect
    from tessera.inspect.installation import find_installation
    from tessera.inspect.offline_cluster import OfflineCluster
    from tessera.inspect.utilization import read_use

    installation = await find_installation(client)
    while True:
        state = await collect(
            client,
            source=server,
            now=time.time,
            installation=installation,
            override=source.override,
            namespace=home,
        )
        cluster = OfflineCluster(state)
        shown = [name for name in cluster.ledger.node_names() if not screen.wanted.nodes or name in screen.wanted.nodes]
        use = await read_use(client, cluster.pods, nodes=shown, namespace=installation.namespace)
        screen.show(cluster, use)
        if watch is None:
            return
        await asyncio.sleep(watch)


@dataclass(slots=True)
class Screen:
    """What the command line asks to see, and what was shown last."""

    what: str
    order: str
    output: str
    wanted: UsageFilter
    is_watched: bool
    _last: Any = None

    def show(self, cluster: OfflineCluster, use: MeasuredUse) -> None:
        from tessera.inspect import usage
        from tessera.inspect.render.explanation import unseen_lines
        from tessera.inspect.render.usage import cards_table, nodes_table, overview_lines, pods_table

        usage.require_known(cluster, self.wanted)
        needs_nodes = self.what != "pods" or cluster.state.nodes_seen
        cards = usage.card_usage(cluster, self.wanted, use) if needs_nodes else []
        totals = usage.sum_usage(cards) if needs_nodes else None
        unreadable = usage.unread_nodes(cluster, self.wanted)
        pending = usage.pending_pods(cluster, self.wanted)
        width, ascii_only = None if self.output == "wide" else sources.terminal_width(), sources.ascii_only()
        found: Sequence[object]
        if self.what == "pods":
            found = pods = usage.sort_usage(usage.pod_usage(cluster, self.wanted, use), self.order)
            lines = pods_table(pods, width=width)
        elif self.what == "nodes":
            found = nodes = usage.sort_usage(usage.node_usage(cluster, cards), self.order)
            lines = nodes_table(nodes, width=width, ascii_only=ascii_only)
        else:
            found = cards = usage.sort_usage(cards, self.order)
            lines = cards_table(cards, width=width, wide=self.output == "wide", ascii_only=ascii_only)
        if self.output in ("json", "yaml"):
            content = {"items": found, "totals": totals, "unreadable": unreadable, "pending": pending}
            self._print_document(cluster.state, content | {"use_unknown": use.note})
            return
        if not found:
            lines = [self._nothing(cluster)]
        if self.is_watched:
            click.clear()
        below = overview_lines(totals, unreadable, pending, note=use.note, now=cluster.state.taken)
        sources.print_lines([*lines, *below, *unseen_lines(cluster.state)])

    def _nothing(self, cluster: OfflineCluster) -> StyledLine:
        from tessera.inspect.render.lines import Style, StyledLine

        everything = cluster.ledger.node_names()
        why = "no node has registered cards; tessera doctor says why" if not everything else "nothing matches"
        return StyledLine(why, Style.WARN)

    def _print_document(self, state: ClusterState, content: dict[str, Any]) -> None:
        """Once; or, if it is watched, whenever something has changed: one line of JSON, or one document of YAML."""
        kind = f"{self.what.capitalize()}InUse"
        if not self.is_watched:
            sources.print_document(kind, state, content, self.output)
        elif content != self._last:
            self._last = content
            sources.print_stream_document(kind, state, content, self.output)
