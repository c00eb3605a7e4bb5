"""What the monitor is told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tessera.services.addresses import Address

RESYNC_S = 300.0
"""HAMi's HAMI_RESYNC_INTERVAL"""
DRIVER_ROOT = Path("/driver-root")
"""as the agent sees it; without such a folder the linker looks for the driver"""
DEFAULT_ADDRESS = Address("", 9394)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    node_name: str
    base: Path
    """`<hook>/vgpu`, with the folder of containers in it"""
    metrics: Address = DEFAULT_ADDRESS
    legacy_metrics: bool = False
    resync: float = RESYNC_S
    """seconds that the folder of an unknown pod stays"""
    driver_root: Path = DRIVER_ROOT
    kubeconfig: str | None = None
    context: str | None = None
    warnings: tuple[str, ...] = ()
