"""Switching a card into MIG mode and out of it.

    off --enable--> on          at once
    off --enable--> pending     the card is in use or would need a reset: refused, and the wish is taken back

A wish that somebody else left pending is theirs, and is refused without being touched.
"""

from __future__ import annotations

from contextlib import suppress

from tessera.node.inventory.cards import CardError
from tessera.node.inventory.nvml_mig import read_instances
from tessera.node.inventory.nvml_session import Session


def read_mode(session: Session, uuid: str) -> bool:
    with session.about(uuid, "reading its MIG mode"):
        current, _pending = session.api.nvmlDeviceGetMigMode(session.card(uuid))
    return bool(current == session.api.NVML_DEVICE_MIG_ENABLE)


def switch_mode(session: Session, uuid: str, *, on: bool) -> bool:
    """Whether anything had to be done. Raises CardError."""
    api = session.api
    word = "enable" if on else "disable"
    wanted = api.NVML_DEVICE_MIG_ENABLE if on else api.NVML_DEVICE_MIG_DISABLE
    device = session.card(uuid)
    with session.about(uuid, "reading its MIG mode"):
        current, pending = api.nvmlDeviceGetMigMode(device)
    if current != pending:
        wish = "enable" if pending == api.NVML_DEVICE_MIG_ENABLE else "disable"
        raise CardError(uuid, f"mig mode {wish} is pending; GPU reset required")
    if current == wanted:
        return False
    if not on and read_instances(session, uuid):
        raise CardError(uuid, "mig mode cannot be disabled while GPU instances exist")
    with session.about(uuid, f"mig mode {word}"):
        status = api.nvmlDeviceSetMigMode(device, wanted)
    # The switch may have reset the card: its handle has to be found again.
    if read_mode(session, uuid) == on:
        return True
    with suppress(api.NVMLError, CardError):
        api.nvmlDeviceSetMigMode(session.card(uuid), current)
    why = f" ({api.NVMLError(status)})" if status else ""
    raise CardError(uuid, f"mig mode {word} would need a GPU reset{why}")
