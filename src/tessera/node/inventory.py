"""The hardware that the configuration asks for, and a command that prints it:

python -m tessera.node.inventory [--simulate FILE] [-o json]
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from tessera.host.cards import CardFacts, Found, Hardware, InventoryError, Links, MigInstance, UnreadableCard
from tessera.host.nvml.hardware import NvmlHardware
from tessera.host.simulated.hardware import no_cards, simulated_hardware
from tessera.node.registration.devices import PairScores, pair_scores
from tessera.node.settings import AgentSettings, Configuration, InventoryKind, Paths
from tessera.services.terminal_json import encode_json
from tessera.wire.config_file import ConfigError

PairLinks = Mapping[tuple[str, str], Links]


def choose_hardware(configuration: Configuration) -> Hardware:
    """Builds the hardware without reading it. Raises ConfigError if the file of simulated cards is wrong."""
    kind, simulated = configuration.inventory, configuration.simulated
    if kind is InventoryKind.NULL:
        return no_cards()
    if kind is InventoryKind.SIMULATED:
        if simulated is None:
            raise ValueError("simulated cards need a file that describes them")
        return simulated_hardware(simulated, node_name=configuration.settings.node_name)
    driver_root = configuration.settings.paths.driver_root_here
    return NvmlHardware(driver_root=driver_root, awaits_driver=kind is InventoryKind.AUTO)


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


def as_json(
    found: Sequence[Found], links: PairLinks, scores: PairScores, instances: Mapping[str, Sequence[MigInstance]]
) -> str:
    """Returns one document with everything."""
    whole: dict[str, Any] = {
        "cards": [msgspec.to_builtins(card) for card in found],
        "links": [
            {
                "from": one,
                "to": other,
                "connection": None if way.connection is None else way.connection.name,
                "direct": way.direct,
                "switched": way.switched,
                "score": scores.scores[one][other],
            }
            for (one, other), way in links.items()
        ],
        "asymmetric": [list(pair) for pair in scores.asymmetric],
        "instances": msgspec.to_builtins([each for several in instances.values() for each in several]),
    }
    return encode_json(whole, indent=2).rstrip("\n")


def as_table(found: Sequence[Found], scores: PairScores, instances: Mapping[str, Sequence[MigInstance]]) -> str:
    """Returns lines that can be compared with the output of nvidia-smi."""
    lines = [line for card in found for line in _card(card, instances)] or ["no cards"]
    for one, row in scores.scores.items():
        lines.append(f"scores of {one}: " + (", ".join(f"{other} {score}" for other, score in row.items()) or "none"))
    lines += [f"asymmetric: {one} and {other}" for one, other in scores.asymmetric]
    return "\n".join(lines)


def _card(card: Found, instances: Mapping[str, Sequence[MigInstance]]) -> list[str]:
    if isinstance(card, UnreadableCard):
        return [f"{card.index}  {card.uuid or 'unknown'}  unreadable: {card.problem}"]
    mig = ("on" if card.mig_enabled else "off") if card.mig_capable else "none"
    memory = "unknown" if card.memory_mib is None else f"{card.memory_mib} MiB"
    numa = "unknown" if card.numa is None else card.numa
    return [
        f"{card.index}  {card.uuid}  {card.name}  {memory}  numa {numa}  {card.bus_id}  mig {mig}",
        *_profiles(card),
        *(
            f"   GI {each.gpu_instance} profile {each.profile_id} at {each.placement.start}:{each.placement.size}"
            f"  {each.mig_uuid or 'no compute instance'}"
            for each in instances.get(card.uuid, ())
        ),
    ]


def _profiles(card: CardFacts) -> list[str]:
    return [
        f"   {each.name:<16} id {each.profile_id:<3} {each.instances} x {each.memory_mib} MiB"
        f"  {each.multiprocessors} SMs  at " + " ".join(f"{place.start}:{place.size}" for place in each.placements)
        for each in card.mig_profiles
    ]


if __name__ == "__main__":
    main()
