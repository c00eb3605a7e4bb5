"""`tessera top`: cards, nodes and pods, and who holds what."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tessera.cli.sources import (
    CONTEXT,
    Source,
    answer,
    ascii_only,
    examples,
    open_state,
    output_option,
    print_document,
    print_lines,
    source_options,
    terminal_width,
)

if TYPE_CHECKING:
    from tessera.inspect.offline_cluster import OfflineCluster
    from tessera.inspect.usage import Wanted


@click.command(
    "top",
    context_settings=CONTEXT,
    epilog=examples(
        [
            ("tessera top", "every card as a bar, with the pods that hold it"),
            ("tessera top nodes --sort free", "the nodes with the most free memory first"),
            ("tessera top pods -n team-a -o json", "what the pods of a namespace hold, for programs"),
            ("tessera top --model h100 --watch", "look again every two seconds"),
        ],
        "  0  printed\n  2  no answer: no access, unreadable file, wrong flags",
    ),
)
@click.argument("what", type=click.Choice(["devices", "nodes", "pods"]), default="devices")
@click.option("-n", "--namespace", default="", help="Only pods of this namespace, and cards that they hold.")
@click.option("--node", "nodes", multiple=True, metavar="NAME", help="Only this node; may be repeated.")
@click.option("--vendor", "vendors", multiple=True, metavar="NAME", help="Only cards of this vendor; may be repeated.")
@click.option("--model", default="", metavar="TEXT", help="Only cards with this in their model's name.")
@click.option(
    "--sort",
    "order",
    type=click.Choice(["name", "memory", "cores", "slots", "free"]),
    default="name",
    show_default=True,
    help="The fullest first, or the one with the most free memory.",
)
@click.option(
    "--watch", is_flag=False, flag_value=2.0, type=click.FloatRange(min=0.5), default=None, metavar="[SECONDS]",
    help="Look again and again, every 2 seconds unless told, until interrupted.",
)  # fmt: skip
@output_option("wide")
@source_options
def command(
    source: Source,
    what: str,
    namespace: str,
    nodes: tuple[str, ...],
    vendors: tuple[str, ...],
    model: str,
    order: str,
    watch: float | None,
    output: str,
) -> None:
    """Show memory, cores and slots granted of every card, and by whom.

    Amounts are what the ledger has granted, not what processes use at this moment.
    """
    from tessera.inspect.offline_cluster import OfflineCluster
    from tessera.inspect.usage import Wanted

    if watch is not None and (source.snapshot or output in ("json", "yaml")):
        raise click.UsageError("--watch needs a cluster and a table: leave out --snapshot and -o json")
    wanted = Wanted(frozenset(nodes), frozenset(name.lower() for name in vendors), model, namespace)

    async def work() -> None:
        import asyncio

        while True:
            world = OfflineCluster(await open_state(source))
            if watch is not None:
                click.clear()
            _show(world, wanted, what=what, order=order, output=output)
            if watch is None:
                return
            await asyncio.sleep(watch)

    answer(work)


def _show(world: OfflineCluster, wanted: Wanted, *, what: str, order: str, output: str) -> None:
    from tessera.inspect import usage
    from tessera.inspect.render.lines import Line, Style
    from tessera.inspect.render.usage import cards_table, nodes_table, pods_table

    width = None if output == "wide" else terminal_width()
    if what == "pods":
        pods = usage.pods_ordered(usage.pods_in_use(world, wanted), order)
        lines = pods_table(pods, width=width)
        found: object = pods
    elif what == "nodes":
        nodes = usage.ordered(usage.nodes_in_use(world, wanted), order)
        lines, found = nodes_table(nodes, width=width, ascii_only=ascii_only()), nodes
    else:
        cards = usage.ordered(usage.cards_in_use(world, wanted), order)
        lines = cards_table(cards, width=width, wide=output == "wide", ascii_only=ascii_only())
        found = cards
    if output in ("json", "yaml"):
        print_document(f"{what.capitalize()}InUse", world.state, found, output)
    elif found:
        print_lines(lines)
    else:
        everything = world.ledger.node_names()
        why = "no node has registered cards (tessera doctor says why)" if not everything else "nothing matches"
        print_lines([Line(why, Style.WARN)])
