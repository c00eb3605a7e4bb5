"""Chooses the hardware that the configuration asks for."""

from __future__ import annotations

import ctypes

import structlog

from tessera.host.cards import Hardware
from tessera.host.no_driver import AwaitedHardware, NullHardware
from tessera.host.nvml.hardware import NvmlHardware
from tessera.host.nvml.session import Dlopen, why_not_loadable
from tessera.node.settings import Configuration, InventoryKind

log = structlog.get_logger(__name__)


def choose_hardware(configuration: Configuration, *, dlopen: Dlopen = ctypes.CDLL) -> Hardware:
    """Builds the hardware without reading it. Raises ConfigError if the file of simulated cards is wrong."""
    driver_root = configuration.settings.paths.driver_root_here
    match configuration.inventory:
        case InventoryKind.NULL:
            return NullHardware()
        case InventoryKind.NVML:
            # Even without a driver, which may be installed later.
            return NvmlHardware(driver_root=driver_root)
        case InventoryKind.SIMULATED:
            if configuration.simulated is None:
                raise ValueError("simulated cards need a file that describes them")
            # Imported here because a node with cards does not need it.
            from tessera.host.simulated.hardware import simulated_hardware

            return simulated_hardware(configuration.simulated, node_name=configuration.settings.node_name)
        case InventoryKind.AUTO:
            why_not = why_not_loadable(driver_root, dlopen=dlopen)
    if not why_not:
        return NvmlHardware(driver_root=driver_root)
    log.warning("no cards so far: NVIDIA's management library cannot be loaded", problem=why_not)
    return AwaitedHardware(
        lambda: not why_not_loadable(driver_root, dlopen=dlopen), lambda: NvmlHardware(driver_root=driver_root)
    )
