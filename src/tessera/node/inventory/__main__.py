"""Prints the cards of this machine, or of a file: `python -m tessera.node.inventory [--simulate FILE] [-o json]`."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import click

from tessera.node.inventory.cards import CardFacts, Hardware, InventoryError
from tessera.node.inventory.factory import choose_hardware
from tessera.node.inventory.links import pair_scores
from tessera.node.inventory.render import as_json, as_table
from tessera.node.settings import AgentSettings, Configuration, InventoryKind, Paths
from tessera.wire.documents import ConfigError


@click.command()
@click.option("--simulate", type=click.Path(path_type=Path), help="File that describes simulated cards.")
@click.option("--node-name", default=platform.node, help="Makes the uuids of simulated cards.")
@click.option("--driver-root", type=click.Path(path_type=Path), default=Path("/"), show_default=True)
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def main(simulate: Path | None, node_name: str, driver_root: Path, output: str) -> None:
    """What the agent would find here: cards, links, MIG profiles and instances."""
    configuration = Configuration(
        settings=AgentSettings(node_name=node_name, paths=Paths(driver_root_here=driver_root)),
        inventory=InventoryKind.NVML if simulate is None else InventoryKind.SIMULATED,
        simulated=simulate,
    )
    try:
        hardware = choose_hardware(configuration)
        try:
            click.echo(_shown(hardware, output))
        finally:
            hardware.close()
    except (ConfigError, InventoryError) as error:
        click.echo(str(error), err=True)
        sys.exit(1)


def _shown(hardware: Hardware, output: str) -> str:
    found = hardware.scan()
    cards = [card for card in found if isinstance(card, CardFacts)]
    uuids = [card.uuid for card in cards]
    links = hardware.links(uuids)
    scores = pair_scores(uuids, links)
    instances = {card.uuid: hardware.instances(card.uuid) for card in cards if card.mig_enabled}
    return as_json(found, links, scores, instances) if output == "json" else as_table(found, scores, instances)


if __name__ == "__main__":
    main()
