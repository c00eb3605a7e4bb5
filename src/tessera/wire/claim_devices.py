"""The `tessera.io/claim-devices` annotation of a bound pod: what its ResourceClaims held when it was bound.

The Binding writes it. A claim, its status and its finalizer can be edited or deleted while the pod runs; the pod's own
record says what it uses all the same, also to a scheduler that starts later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec

from tessera.core.devices import MigPlacement, MigSlot
from tessera.wire.errors import WireError
from tessera.wire.integers import INT32_MAX
from tessera.wire.quotes import quoted

MAX_ENTRIES = 5_000
"""devices of one pod, as for allocations of pods (`vendors.pod_reader`)"""

Amount = Annotated[int, msgspec.Meta(ge=0, le=INT32_MAX)]


class ClaimDevice(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A part of one card."""

    uuid: Annotated[str, msgspec.Meta(min_length=1)]
    memory: Amount
    """MiB"""
    cores: Amount
    profile: str = ""
    """of a MIG instance; then the next two say where it is"""
    start: Amount = 0
    size: Amount = 0

    @property
    def slot(self) -> MigSlot | None:
        return MigSlot(self.profile, MigPlacement(self.start, self.size)) if self.profile else None


_decoder = msgspec.json.Decoder(dict[str, tuple[ClaimDevice, ...]])


def encode_claim_devices(devices: Mapping[str, Sequence[ClaimDevice]]) -> str:
    """Encodes the devices of claims, by their uids."""
    return msgspec.json.encode({uid: devices[uid] for uid in sorted(devices)}).decode()


def decode_claim_devices(text: str) -> dict[str, tuple[ClaimDevice, ...]]:
    """Raises WireError: what cannot be read must not count as nothing."""
    if (count := text.count("{")) > MAX_ENTRIES:
        raise WireError(f"the devices of its claims have {count} entries; at most {MAX_ENTRIES}")
    try:
        return _decoder.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise WireError(f"the devices of its claims, {quoted(text)}, cannot be read: {error}") from error
