"""Snapshot files: a `ClusterState` as one versioned document of JSON or YAML, small enough to attach to a bug report.

A snapshot holds everything that decides placement: it gives the same answers as the cluster did. A file of a newer
version is refused, because it may hold something that matters and is unknown here.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import yaml

from tessera import __version__
from tessera.core.requests import HostRequest
from tessera.inspect.state import ClaimObjects, ClusterState, InspectionError, Setup

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
"""with libyaml where PyYAML has it, which is much faster"""

KIND = "TesseraSnapshot"
VERSION = 3
READ = (1, 2, VERSION)
WITHOUT_OTHERS = "pods without devices (a snapshot of version 1): hosts look emptier than they were"
"""matters only to policies that look at hosts"""


class _Snapshot(msgspec.Struct, frozen=True, rename="camel"):
    kind: str
    version: int
    taken: str
    made_by: str = ""
    source: str = ""
    hashed: bool = False
    setup: Setup = Setup()
    unseen: tuple[str, ...] = ()
    nodes: tuple[dict[str, Any], ...] = ()
    pods: tuple[dict[str, Any], ...] = ()
    quotas: tuple[dict[str, Any], ...] = ()
    others: dict[str, HostRequest] = {}
    dra: ClaimObjects = ClaimObjects()


class _Head(msgspec.Struct, frozen=True):
    kind: str = ""
    version: int = 0


def encode_snapshot(state: ClusterState, *, hashed: bool = False, form: str = "json") -> bytes:
    """`form`: json or yaml."""
    snapshot = _Snapshot(
        KIND,
        VERSION,
        datetime.fromtimestamp(state.taken, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        f"tessera {__version__}",
        "" if hashed else state.source,
        hashed,
        state.setup,
        state.unseen,
        state.nodes,
        state.pods,
        state.quotas,
        dict(state.others),
        state.dra,
    )
    if form == "yaml":
        content = msgspec.to_builtins(snapshot)
        return yaml.dump(content, Dumper=_DUMPER, sort_keys=False, width=120, encoding="utf-8")
    return msgspec.json.format(msgspec.json.encode(snapshot), indent=1) + b"\n"


def decode_snapshot(data: bytes, *, file: str) -> ClusterState:
    """Raises InspectionError with what is wrong with the file, which may be JSON or YAML."""
    try:
        if not data.lstrip().startswith(b"{"):
            data = msgspec.json.encode(yaml.load(data, Loader=_LOADER))
        head = msgspec.json.decode(data, type=_Head)
    except (msgspec.MsgspecError, yaml.YAMLError, UnicodeError, TypeError) as error:
        raise InspectionError(f"{file}: not a snapshot: {error}; create one with tessera snapshot -o FILE") from error
    if head.kind != KIND:
        raise InspectionError(
            f"{file}: kind is {head.kind[:40]!r}, not {KIND}; create one with tessera snapshot -o FILE"
        )
    if head.version not in READ:
        raise InspectionError(
            f"{file}: snapshot version {head.version} is not supported; this tessera reads versions up to {VERSION}"
        )
    try:
        found = msgspec.json.decode(data, type=_Snapshot)
        taken = datetime.fromisoformat(found.taken.replace("Z", "+00:00")).timestamp()
    except (msgspec.MsgspecError, ValueError) as error:
        raise InspectionError(f"{file}: not a readable snapshot: {error}") from error
    return ClusterState(
        f"snapshot {file}, taken {found.taken}",
        taken,
        found.nodes,
        found.pods,
        found.quotas,
        found.setup,
        (*found.unseen, *([WITHOUT_OTHERS] if found.version == 1 else [])),
        found.others,
        dra=found.dra,
    )
