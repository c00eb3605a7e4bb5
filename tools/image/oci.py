"""OCI images as archives: the same files always give the same bytes, so the same digests.

Layers are made of folders. Owner, times and order of the files on this machine do not count.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CONFIG = "application/vnd.oci.image.config.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
MODIFIED_S = 315_532_800
"""time of all files: 1980-01-01, the earliest that zip files can have"""
LEVEL = 6
"""of gzip: its default, as a compromise of time and size"""
WORLD_WRITABLE = frozenset({"tmp", "var/tmp"})


@dataclass(frozen=True, slots=True)
class Layer:
    """A compressed tar file."""

    content: bytes
    diff_id: str
    """digest of the content before compression"""
    comment: str = ""

    @property
    def digest(self) -> str:
        return digest(self.content)


def digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def layer(root: Path, comment: str = "", *, level: int = LEVEL) -> Layer:
    """Everything below a folder, owned by root and writable by root only; `level` is gzip's."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(root.rglob("*")):
            entry = archive.gettarinfo(path, arcname=str(path.relative_to(root)))
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = ""
            entry.mtime = MODIFIED_S
            # Hard links depend on what else is in the folder.
            entry.type, entry.linkname = (tarfile.REGTYPE, "") if entry.islnk() else (entry.type, entry.linkname)
            entry.mode = 0o1777 if entry.name in WORLD_WRITABLE else entry.mode & 0o755
            if entry.isfile():
                entry.size = path.stat().st_size
                with path.open("rb") as file:
                    archive.addfile(entry, file)
            else:
                archive.addfile(entry)
    content = gzip.compress(plain.getvalue(), compresslevel=level, mtime=0)
    return Layer(content, digest(plain.getvalue()), comment)


def write(
    path: Path, name: str, layers: Sequence[Layer], *, architecture: str, config: Mapping[str, Any], created: str = ""
) -> str:
    """An archive that `ctr images import` takes, as `name`; returns the manifest's digest."""
    configuration: dict[str, Any] = {
        "architecture": architecture,
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [each.diff_id for each in layers]},
        "history": [{"created_by": each.comment, **({"created": created} if created else {})} for each in layers],
    }
    if created:
        configuration["created"] = created
    blobs: dict[str, bytes] = {}

    def blob(content: bytes, media: str, **more: Any) -> dict[str, Any]:
        blobs[digest(content)] = content
        return {"mediaType": media, "digest": digest(content), "size": len(content), **more}

    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": blob(encoded(configuration), CONFIG),
        "layers": [blob(each.content, LAYER) for each in layers],
        "annotations": dict(config.get("Labels", {})),
    }
    annotations = {
        "io.containerd.image.name": name,
        "org.opencontainers.image.ref.name": name.rpartition(":")[2],
    }
    entry = blob(
        encoded(manifest),
        MANIFEST,
        annotations=annotations,
        platform={"architecture": architecture, "os": "linux"},
    )
    files = {
        "oci-layout": encoded({"imageLayoutVersion": "1.0.0"}),
        "index.json": encoded({"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry]}),
        **{f"blobs/{key.replace(':', '/')}": content for key, content in sorted(blobs.items())},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.part")
    with tarfile.open(partial, "w") as archive:
        for file, content in files.items():
            info = tarfile.TarInfo(file)
            info.size, info.mtime = len(content), MODIFIED_S
            archive.addfile(info, io.BytesIO(content))
    partial.replace(path)
    return str(entry["digest"])


def encoded(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
