"""Snapshot files: a `ClusterState` as one versioned document of JSON or YAML, small enough to attach to a bug report.

A snapshot holds everything that decides placement: it gives the same answers as the cluster did. A file of a newer
version is refused, because it may hold something that matters and is unknown here.

A bundle has a journal beside it. It is a `.tgz` with two members, so that people can look inside with tar. Commands
that read a snapshot or a journal read it as well. Members are streamed: a journal is never in memory as a whole.
"""

from __future__ import annotations

import io
import tarfile
import tempfile
from collections.abc import AsyncIterable
from datetime import UTC, datetime
from typing import IO, Any

import msgspec
import yaml

from tessera import __version__
from tessera.core.model.requests import HostRequest
from tessera.files.documents import DocumentError, read_documents
from tessera.files.reader import GZIP, ArchiveMember, ByteSource, UnpackedFile, open_file, read_stream
from tessera.inspect.anonymize import Anonymizer, Names, anonymize_state
from tessera.inspect.state import ClaimObjects, ClusterState, InspectionError, Setup
from tessera.services.terminal_json import encode_json
from tessera.wire.errors import shortened
from tessera.wire.journal import Record, encode_record

_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
"""with libyaml where PyYAML has it, which is much faster"""

KIND = "TesseraSnapshot"
VERSION = 3
READ = (1, 2, VERSION)
WITHOUT_OTHERS = "pods without devices (a snapshot of version 1): hosts look emptier than they were"
"""matters only to policies that look at hosts"""

SNAPSHOT = "snapshot.json"
JOURNAL = "journal.jsonl"


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
    return encode_json(snapshot, indent=1).encode()


def decode_snapshot(data: bytes, *, file: str) -> ClusterState:
    """Raises InspectionError with what is wrong with the file, which may be JSON or YAML."""
    try:
        found = read_documents(data)
    except DocumentError as error:
        raise InspectionError(f"{file}: not a snapshot: {error}; create one with tessera snapshot -o FILE") from error
    head = found[0] if len(found) == 1 and isinstance(found[0], dict) else {}
    kind, version = head.get("kind"), head.get("version")
    if kind != KIND:
        what = f"kind is {kind[:40]!r}, not {KIND}" if isinstance(kind, str) else "not a snapshot"
        raise InspectionError(f"{file}: {what}; create one with tessera snapshot -o FILE")
    if version not in READ:
        raise InspectionError(
            f"{file}: snapshot version {shortened(repr(version))} is not supported;"
            f" this tessera reads versions up to {VERSION}"
        )
    try:
        snapshot = msgspec.convert(head, type=_Snapshot)
        taken = datetime.fromisoformat(snapshot.taken.replace("Z", "+00:00")).timestamp()
    except (msgspec.MsgspecError, ValueError, OverflowError) as error:
        raise InspectionError(f"{file}: not a readable snapshot: {error}") from error
    return ClusterState(
        f"snapshot {file}, taken {snapshot.taken}",
        taken,
        snapshot.nodes,
        snapshot.pods,
        snapshot.quotas,
        snapshot.setup,
        (*snapshot.unseen, *([WITHOUT_OTHERS] if snapshot.version == 1 else [])),
        snapshot.others,
        dra=snapshot.dra,
    )


async def write_bundle(path: str, state: ClusterState, records: AsyncIterable[Record], *, key: bytes | None) -> int:
    """Writes the archive, with other names in both members if there is a key; returns the number of records.

    The file is not touched before all records were read. Raises OSError.
    """
    found = Names()
    anonymizer = Anonymizer(found)
    count = 0
    with tempfile.TemporaryFile() as spool:
        async for record in records:
            count += 1
            line = encode_record(record)
            spool.write(line)
            if key is not None:
                anonymizer.record(msgspec.json.decode(line))
        if key is None:
            _write(path, encode_snapshot(state), spool, taken=state.taken)
            return count
        anonymize_state(state, found)
        names = found.renamed(key)
        anonymizer = Anonymizer(names)
        spool.seek(0)
        with tempfile.TemporaryFile() as renamed:
            for line in spool:
                renamed.write(msgspec.json.encode(anonymizer.record(msgspec.json.decode(line))) + b"\n")
            _write(path, encode_snapshot(anonymize_state(state, names), hashed=True), renamed, taken=state.taken)
    return count


def _write(path: str, snapshot: bytes, journal: IO[bytes], *, taken: float) -> None:
    size = journal.tell()
    journal.seek(0)
    with open(path, "wb") as target, tarfile.open(fileobj=target, mode="w|gz") as archive:
        for name, content, length in ((SNAPSHOT, io.BytesIO(snapshot), len(snapshot)), (JOURNAL, journal, size)):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode, entry.mtime = length, 0o644, int(taken)
            archive.addfile(entry, content)


def read_snapshot_file(path: str) -> bytes:
    """The snapshot in a file: the file itself, or that of an archive. Raises OSError and InspectionError."""
    with open_file(path) as file:
        start = file.peek(len(GZIP))[: len(GZIP)]
        stream = open_member(file, SNAPSHOT, file=path) if start == GZIP else file
        return read_stream(stream, path)


def open_member(raw: IO[bytes], name: str, *, file: str) -> ByteSource:
    """A member of the archive, as a stream that reads `raw` piece by piece. Raises InspectionError."""
    try:
        return ArchiveMember(UnpackedFile(raw, file), name, file)
    except OSError as error:
        raise InspectionError(
            f"{file}: {error.strerror}; make one with tessera snapshot --with-journal -o FILE"
        ) from error
