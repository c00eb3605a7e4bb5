"""The MIG devices of one card, and whether anybody computes on the card or on one of them."""

from __future__ import annotations

from collections.abc import Iterator

from tessera.node.inventory.cards import CardError
from tessera.node.inventory.nvml_session import Handle, Session, text_of


def mig_uuids(session: Session, device: Handle) -> dict[tuple[int, int], str]:
    """UUIDs by the ids of GPU instance and compute instance."""
    api = session.api
    return {
        (
            int(api.nvmlDeviceGetGpuInstanceId(each)),
            int(api.nvmlDeviceGetComputeInstanceId(each)),
        ): text_of(api.nvmlDeviceGetUUID(each))
        for each in _mig_devices(session, device)
    }


def _mig_devices(session: Session, device: Handle) -> Iterator[Handle]:
    api = session.api
    for index in range(session.optional(api.nvmlDeviceGetMaxMigDeviceCount, device) or 0):
        try:
            yield api.nvmlDeviceGetMigDeviceHandleByIndex(device, index)
        except api.NVMLError as error:
            # Numbers need not be without gaps, and a card that is not in MIG mode has none.
            if not session.is_not_found(error) and not session.is_absence(error):
                raise


def has_processes(session: Session, uuid: str) -> bool:
    """True as well where that cannot be found out."""
    try:
        device = session.card(uuid)
        with session.about(uuid, "listing its processes"):
            return any(_in_use(session, each) for each in (device, *_mig_devices(session, device)))
    except CardError:
        return True


def _in_use(session: Session, device: Handle) -> bool:
    api = session.api
    # Graphics is unknown to many cards and to all MIG devices; compute never is.
    return bool(
        api.nvmlDeviceGetComputeRunningProcesses_v3(device)
        or session.optional(api.nvmlDeviceGetGraphicsRunningProcesses_v3, device)
    )
