"""Takes MPS away from a node that shares its cards in another way now, or that is being cleaned up.

Only what an agent recorded as its own is touched, and a daemon that has clients is left alone: say `keep` for the cards
that containers still have a right to, and come again later for the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from pathlib import Path

from tessera.node.inventory.cards import CardError, ComputeModes
from tessera.node.modes.compute_modes import AskedModes
from tessera.node.modes.mps_control import ControlError, MpsProgram
from tessera.node.modes.mps_daemon import MpsDaemon
from tessera.node.modes.mps_record import folders


async def retire_all(
    root: Path, modes: ComputeModes, *, program: MpsProgram, keep: Collection[str] = ()
) -> dict[str, str]:
    """End the daemons below `root` and give their cards their compute mode back; why one is still there, by uuid.

    Raises OSError where not even the folder can be read.
    """
    asked = AskedModes(modes)
    left: dict[str, str] = {}
    try:
        for folder in await asyncio.to_thread(folders, root):
            uuid = folder.path.name
            if uuid in keep:
                left[uuid] = "a container still has a right to the card"
                continue
            daemon = MpsDaemon(folder, uuid, program=program, modes=asked)
            try:
                await daemon.find()
                await daemon.retire()
            except (ControlError, CardError, OSError) as error:
                left[uuid] = str(error)
            finally:
                daemon.close()
    finally:
        await asked.close()
    return left
