"""Takes dynamic MIG away from a node that shares its cards in another way now.

    a record's pod is gone --> its instance goes --> no instance and no process is left on the card --> MIG mode is off

Only instances with a record, and only cards that the agent itself switched. What a live pod holds or a process uses
stays, and so does the rest of that card: come again later.
"""

from __future__ import annotations

from pathlib import Path

from tessera.node.health.call_thread import CallThread, NoAnswer
from tessera.node.inventory.cards import InventoryError, MigHardware
from tessera.node.modes.mig_mode_switch import Switching
from tessera.node.modes.mig_records import FILE, Records, boot_id
from tessera.node.modes.mig_release import Holders, let_go

ROUND_S = 60.0
"""seconds; an instance takes about one, a card that hangs takes for ever"""
HELD = "a pod still holds instances of it"
IN_USE = "it stays in MIG mode: it is in use, or cannot be switched"


async def retire_mig(state: Path, hardware: MigHardware, holders: Holders) -> dict[str, str]:
    """One round; why cards are not given back yet, by uuid. Raises OSError where the records cannot be read."""
    thread = CallThread("mig-retiring")
    try:
        return await thread.call(lambda: _retired(state, hardware, holders), deadline=ROUND_S)
    except NoAnswer as error:
        return {str(state / FILE): f"the driver gives {error}"}
    finally:
        await thread.close(patience=0.0)


def _retired(state: Path, hardware: MigHardware, holders: Holders) -> dict[str, str]:
    records = Records(state, boot=boot_id())
    records.load()
    left: dict[str, str] = {}
    for record in records.all():
        if not holders.have_let_go(record):
            left[record.card] = HELD
            continue
        try:
            let_go(record, hardware, records)
        except InventoryError as error:
            left.setdefault(record.card, str(error))
    Switching(hardware, records).restore(records.switched - left.keys())
    return {**dict.fromkeys(records.switched, IN_USE), **left}
