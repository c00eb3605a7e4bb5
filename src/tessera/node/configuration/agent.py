"""Everything that one `tessera device-plugin` was told: the agent's settings, and what only its process needs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from tessera.node.settings import AgentSettings
from tessera.services.addresses import Address


class InventoryKind(Enum):
    """Who is asked for the cards."""

    AUTO = "auto"
    NVML = "nvml"
    SIMULATED = "simulated"
    NULL = "null"


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """One reading of flags, environment and files."""

    settings: AgentSettings
    inventory: InventoryKind = InventoryKind.AUTO
    simulated: Path | None = None
    """what the simulated cards are like; only with that inventory"""
    metrics: Address | None = Address("", 9395)
    kubeconfig: str | None = None
    context: str | None = None
    files: tuple[str, ...] = ()
    """read again when they change"""
    node_config: str | None = None
    """text of the node configuration where it is good: worth keeping for the day when it is not"""
    faults: tuple[str, ...] = ()
    """what is wrong and was worked round; the agent serves all the same"""
    warnings: tuple[str, ...] = ()
    """what has no effect, or not the one that somebody may expect"""
