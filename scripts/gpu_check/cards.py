"""Compares the cards that the agent finds and registers with nvidia-smi."""

from __future__ import annotations

import subprocess

from scripts.gpu_check.report import Report
from tessera.host.cards import CardFacts
from tessera.host.nvml.hardware import NvmlHardware
from tessera.node.fleet import CardState, Fleet
from tessera.node.registration.devices import registrable
from tessera.node.settings import AgentSettings
from tessera.wire.node_config import NodeSettings
from tessera.wire.registration import encode_registration_json

MIB = 2**20
QUERY = "index,uuid,name,memory.total,pci.bus_id,mig.mode.current,compute_cap"
OVER_S = 60


def told() -> list[dict[str, str]]:
    """The cards as nvidia-smi lists them."""
    command = ["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader,nounits"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True, timeout=OVER_S).stdout.splitlines()
    return [dict(zip(QUERY.split(","), (each.strip() for each in line.split(",")), strict=True)) for line in lines]


def found(card: CardFacts) -> dict[str, str]:
    """The same fields of a card that the agent read."""
    capability = card.compute_capability or (0, 0)
    return {
        "index": str(card.index),
        "uuid": card.uuid,
        "name": card.name,
        "memory.total": str((card.memory_bytes or 0) // MIB),
        "pci.bus_id": card.bus_id.upper(),
        "mig.mode.current": "Enabled" if card.mig_enabled else "Disabled",
        "compute_cap": ".".join(map(str, capability)),
    }


def run(report: Report) -> None:
    hardware = NvmlHardware()
    try:
        cards = [card for card in hardware.scan() if isinstance(card, CardFacts)]
        for mine, theirs in zip(map(found, cards), told(), strict=True):
            report.check("the agent's card is nvidia-smi's", mine == theirs, mine)
        facts = cards[0]
        offers = [f"{each.name} (id {each.profile_id}, {each.instances})" for each in facts.mig_profiles]
        report.check("MIG profiles are known while MIG is off", bool(offers) or facts.mig_enabled, ", ".join(offers))
        fleet = Fleet(tuple(map(CardState, cards)))
        for mode in ("hami-core", "mps", "mig"):
            settings = AgentSettings(node_name="here", node=NodeSettings(mode=mode))
            text = encode_registration_json(registrable(fleet, settings).devices)
            report.check(f"registration in mode {mode}", facts.uuid in text and f'"mode":"{mode}"' in text, text)
        problems = hardware.listen([card.uuid for card in cards])
        report.check("events can be listened to", not problems, problems or "no problem")
        report.check("no event comes by itself", hardware.wait(1.0) is None, "waited 1 s")
    finally:
        hardware.close()
