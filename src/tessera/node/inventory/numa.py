"""Which NUMA node a card hangs on, from the kernel's own files. Unknown is None, for whatever reason."""

from __future__ import annotations

import re
from pathlib import Path

SYSFS = Path("/sys")

_ADDRESS = re.compile(r"([0-9A-F]{4,8})(:[0-9A-F]{2}:[0-9A-F]{2}\.[0-7])\Z", re.ASCII | re.IGNORECASE)


def numa_node(bus_id: str, *, sysfs: Path = SYSFS) -> int | None:
    """Of the card at a PCI address as NVML writes it, e.g. `00000000:3B:00.0`."""
    address = _ADDRESS.match(bus_id)
    if address is None:
        return None
    # NVML writes eight digits of domain; the kernel four, and more only where it must.
    device = f"{int(address[1], 16):04x}{address[2].lower()}"
    try:
        node = int((sysfs / "bus/pci/devices" / device / "numa_node").read_text("ascii"))
    except (OSError, ValueError):
        return None
    # The kernel says -1 where the firmware did not tell.
    return node if node >= 0 else None
