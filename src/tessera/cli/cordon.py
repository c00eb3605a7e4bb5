"""`tessera cordon` and `tessera uncordon`: close cards to new pods, and open them again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from tessera.cli import sources
from tessera.cli.sources import ClusterSource

if TYPE_CHECKING:
    from tessera.inspect.state import ClusterState
    from tessera.kube.client import KubeClient
    from tessera.maintenance.cordon import NamedCard

CODES = "  0  done, or it was so already\n  2  not done: no such card, no access, wrong flags"
NAMING = """
A card is named as NODE/CARD, with the index that tessera top shows or the uuid. Several of one node: NODE/0,1.
"""
MORE = f"{NAMING}Needs the rights of the ClusterRole tessera-operator: to read nodes and pods, and to patch nodes.\n"

cards_argument = click.argument("cards", nargs=-1, required=True, metavar="NODE/CARD...")


@sources.cluster_command(
    "cordon",
    changes=True,
    examples=[
        ("tessera cordon gpu-1/0", "card 0 of node gpu-1 takes no new pods; its pods keep running"),
        ("tessera cordon gpu-1/0,1 gpu-2/GPU-64640099-2fcc-530d-901b-b72bd5020fc5", "several cards, one by its uuid"),
    ],
    codes=CODES,
    more=MORE,
)
@cards_argument
def command(source: ClusterSource, cards: tuple[str, ...], output: str) -> None:
    """Close cards to new pods. The pods that hold slices of them keep running: tessera drain evicts them.

    The cards are listed in the node's annotation hami.io/device-cordon, which HAMi's scheduler honours too.
    """
    _run(source, cards, output=output, close=True)


@sources.cluster_command(
    "uncordon",
    changes=True,
    examples=[
        ("tessera uncordon gpu-1/0", "card 0 of node gpu-1 takes new pods again"),
        ("tessera uncordon gpu-1/GPU-64640099-2fcc-530d-901b-b72bd5020fc5", "also a card that is not there any more"),
    ],
    codes=CODES,
    more=MORE,
)
@cards_argument
def uncordon(source: ClusterSource, cards: tuple[str, ...], output: str) -> None:
    """Open cordoned cards to new pods again."""
    _run(source, cards, output=output, close=False)


def _run(source: ClusterSource, names: Sequence[str], *, output: str, close: bool) -> None:
    async def work() -> None:
        from tessera.inspect.render.lines import Style, StyledLine
        from tessera.maintenance import cordon

        async with sources.open_cluster(source) as (client, server):
            state, cards = await find_cards(source, client, server, names, opening=not close)
            changed = await (cordon.cordon if close else cordon.uncordon)(client, cards)
        if output == "text":
            word = "cordoned" if close else "uncordoned"
            lines = [f"{card.text} ({card.card}): {word}{'' if new else ' already'}" for card, new in changed.items()]
            sources.print_lines(StyledLine(line, Style.GOOD) for line in lines)
        else:
            items = [
                {"node": card.node, "index": card.index, "card": card.card, "cordoned": close, "changed": new}
                for card, new in changed.items()
            ]
            sources.print_document("CardCordons", state, items, output)

    sources.run_async(work)


async def find_cards(
    source: ClusterSource, client: KubeClient, server: str, names: Sequence[str], *, opening: bool = False
) -> tuple[ClusterState, list[NamedCard]]:
    """The cards that the command line names, and the state of their nodes."""
    import time

    from tessera.inspect.collector import collect_nodes
    from tessera.inspect.installation import find_installation
    from tessera.inspect.offline_cluster import OfflineCluster
    from tessera.maintenance import cordon

    by_node = cordon.parse_names(names)
    setup = source.override((await find_installation(client)).setup)
    state, _ = await collect_nodes(client, by_node, source=server, now=time.time, setup=setup)
    return state, cordon.find_cards(OfflineCluster(state), by_node, opening=opening)
