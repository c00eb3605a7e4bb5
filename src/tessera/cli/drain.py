"""`tessera drain`: evict the pods that hold slices of a card."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from tessera.cli import sources
from tessera.cli.cordon import NAMING, cards_argument, find_cards
from tessera.cli.sources import ClusterSource

if TYPE_CHECKING:
    from tessera.inspect.state import ClusterState
    from tessera.kube.client import KubeClient
    from tessera.maintenance.cordon import NamedCard
    from tessera.maintenance.drain import DrainOptions, DrainResult, Holders

RIGHTS = "to read nodes and pods, to patch nodes, and to evict pods"


class Duration(click.ParamType[float]):
    """`90s`, `5m`, or a number of seconds."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        from tessera.services.value_types import parse_span

        text = str(value)
        try:
            return parse_span(f"{text}s" if text.replace(".", "", 1).isdecimal() else text)
        except ValueError as error:
            self.fail(str(error), param, ctx)


@sources.cluster_command(
    "drain",
    changes=True,
    examples=[
        ("tessera drain gpu-1/0 --dry-run", "which pods would be evicted, and which budgets would not allow it now"),
        ("tessera drain gpu-1/0 --timeout 30m", "cordon the card, evict its pods, and wait until they are gone"),
        ("tessera drain gpu-1/0 --force", "also bare pods, which nothing creates again"),
    ],
    codes="  0  no pod holds the cards any more, or with --dry-run: all would be evicted\n"
    "  1  pods are left, or may be\n"
    "  2  not done: no such card, no access, wrong flags",
    more=f"{NAMING}Needs the rights of the ClusterRole tessera-operator: {RIGHTS}.\n",
)
@cards_argument
@click.option("--dry-run", is_flag=True, help="Change nothing: list the pods, and ask whether they could be evicted.")
@click.option("--force", is_flag=True, help="Evict bare pods too, which nothing creates again.")
@click.option("--delete-emptydir-data", is_flag=True, help="Evict pods with an emptyDir too; its content is lost.")
@click.option(
    "--timeout", type=Duration(), default="10m", show_default=True, metavar="DURATION",
    help="Give up after this time; pods that are not gone by then are listed.",
)  # fmt: skip
def command(
    source: ClusterSource,
    cards: tuple[str, ...],
    dry_run: bool,
    force: bool,
    delete_emptydir_data: bool,
    timeout: float,
    output: str,
) -> None:
    """Cordon cards, and evict the pods that hold slices of them.

    Pods leave as with kubectl drain: through the Eviction API, which keeps disruption budgets. A refused eviction is
    tried again until --timeout. If a pod needs an option that was not given, none is evicted. Other pods of the node
    are left alone.
    """
    from tessera.maintenance.drain import DrainOptions, drain_document, result_lines

    options = DrainOptions(force=force, delete_emptydir_data=delete_emptydir_data, timeout_s=timeout)

    async def work() -> bool:
        async with sources.open_cluster(source) as (client, server):
            state, named = await find_cards(source, client, server, cards)
            result = await _drain(client, state, named, options, dry_run=dry_run, output=output)
        if output == "text":
            sources.print_lines(result_lines(named, result, dry_run=dry_run))
        else:
            sources.print_document("CardDrain", state, drain_document(named, result, dry_run=dry_run), output)
        return result.is_drained

    sources.exit_with(sources.run_async(work))


async def _drain(
    client: KubeClient,
    state: ClusterState,
    cards: list[NamedCard],
    options: DrainOptions,
    *,
    dry_run: bool,
    output: str,
) -> DrainResult:
    from tessera.inspect.collector import collect_nodes
    from tessera.inspect.offline_cluster import OfflineCluster
    from tessera.inspect.render.lines import StyledLine
    from tessera.maintenance import cordon
    from tessera.maintenance.drain import Drain, find_holders, holders_table

    nodes = {card.node for card in cards}

    async def look() -> Holders:
        seen, pods = await collect_nodes(client, nodes, source=state.source, now=time.time, setup=state.setup)
        return find_holders(OfflineCluster(seen), pods, cards)

    def show(*lines: StyledLine) -> None:
        # Standard output holds the document, if there is one; people still want to see that something happens.
        sources.print_lines(lines, err=output != "text")

    if dry_run:
        show(StyledLine(f"dry run: {', '.join(card.text for card in cards)} would be cordoned"))
    else:
        for card, is_new in (await cordon.cordon(client, cards)).items():
            show(StyledLine(f"{card.text} ({card.card}): cordoned{'' if is_new else ' already'}"))
    holders = await look()
    show(*holders_table(holders, width=sources.terminal_width()))
    drain = Drain(client, look, options, lambda text: show(StyledLine(text)))
    return await (drain.rehearse(holders) if dry_run else drain.run(holders))
