"""Files that were made to exhaust or to crash the program that reads them, and every command that reads a file.

    python -m tests.unit.cli.hostile_files FOLDER

tries each with each, in a process of its own with little memory and time, and counts how they end.
"""

from __future__ import annotations

import gzip
import os
import resource
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

DEEP = 100_000
BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 12)
)
MERGES = "x0: &x0 {a: 1}\n" + "".join(
    f"x{i}: &x{i} {{<<: [*x{i - 1}, *x{i - 1}], b{i}: *x{i - 1}}}\n" for i in range(1, 60)
)
HEAD = '{"kind":"TesseraSnapshot","version":3,"taken":"2026-01-01T00:00:00Z","nodes":'

TEXTS: Mapping[str, bytes] = {
    "empty": b"",
    "zeros": b"\0" * 5_000,
    "not utf-8": b"\xff\xfe\xfa" * 100,
    "lone surrogate": b'{"kind": "\\ud800"}',
    "deep json": b"[" * DEEP + b"]" * DEEP,
    "deep json tables": b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    "deep json of a snapshot": HEAD.encode() + b"[" * 950 + b"]" * 950 + b"}",
    "unclosed json": b"[" * DEEP,
    "deep yaml": b"a: " + b"[" * DEEP + b"]" * DEEP,
    "unclosed yaml": b"a: " + b"[" * DEEP,
    "unclosed yaml tables": b"{a: " * DEEP,
    "deep blocks": b"- " * DEEP,
    "deep keys": b"? " * DEEP,
    "indented blocks": "".join(f"{' ' * depth}a:\n" for depth in range(2_000)).encode(),
    "alias bomb": BOMB.encode(),
    "merge bomb": MERGES.encode(),
    "recursive list": b"&a [*a]",
    "recursive table": b"&a {kind: Pod, spec: *a}",
    "alias ladder": ("- &a0 [x]\n" + "".join(f"- &a{i} [*a{i - 1}]\n" for i in range(1, 5_000))).encode(),
    "python tag": b"!!python/object/apply:os.system [echo]",
    "unknown anchor": b"a: *b",
    "long number": b'{"version": ' + b"9" * 20_000 + b"}",
    "endless number": b'{"kind": "TesseraSnapshot", "version": 1e999}',
    "many documents": b"---\na\n" * 2_000,
    "half a gzip": gzip.compress(b"{}" * 5_000)[:30],
    "two bytes of a gzip": b"\x1f\x8b",
    "json lines": b'{"kind":"start"}\n' * 2 + b"{" * DEEP,
}  # fmt: skip


def write_all(folder: Path, *, size: int = 2 << 30) -> dict[str, Path]:
    """Writes them; by name. Bombs unpack to so many bytes. Files that are no files are among them."""
    paths = {}
    for name, data in TEXTS.items():
        paths[name] = folder / name.replace(" ", "-")
        paths[name].write_bytes(data)
    paths["gzip bomb"] = folder / "bomb.gz"
    paths["gzip bomb"].write_bytes(bomb(b"\0", size))
    paths["gzip bomb of lines"] = folder / "lines.gz"
    paths["gzip bomb of lines"].write_bytes(bomb(b"\n", size))
    for name, big in (("archive bomb", "other"), ("large snapshot", "snapshot.json")):
        paths[name] = folder / f"{name.replace(' ', '-')}.tgz"
        paths[name].write_bytes(archive_bomb(big, size=size))
    paths["archive with a large header"] = folder / "header.tgz"
    paths["archive with a large header"].write_bytes(archive_bomb("x", tarfile.GNUTYPE_LONGNAME, size=size))
    paths["pipe without a writer"] = folder / "pipe"
    os.mkfifo(paths["pipe without a writer"])
    paths["endless device"] = Path("/dev/zero")
    return paths


def bomb(byte: bytes, size: int) -> bytes:
    """So many equal bytes, compressed; without compressing all of them."""
    part = 1 << 20
    return gzip.compress(byte * part, 9) * (size // part)


def archive_bomb(name: str, kind: bytes = tarfile.REGTYPE, *, size: int) -> bytes:
    """An archive whose first member has so many bytes."""
    entry = tarfile.TarInfo(name)
    entry.size, entry.type = size, kind
    return gzip.compress(entry.tobuf()) + bomb(b"\0", size) + gzip.compress(b"\0" * 1024)


COMMANDS: tuple[tuple[str, ...], ...] = (
    ("top", "--snapshot", "FILE"),
    ("doctor", "--snapshot", "FILE"),
    ("explain", "pod", "--snapshot", "FILE"),
    ("explain", "pod", "--history", "--journal-file", "FILE"),
    ("defrag", "plan", "--snapshot", "FILE"),
    ("dashboard", "--snapshot", "FILE"),
    ("dashboard", "--journal", "FILE"),
    ("dashboard", "--cluster-file", "FILE"),
    ("journal", "--file", "FILE"),
    ("replay", "FILE"),
    ("simulate", "pod", "--cluster", "FILE", "-f", "POD"),
    ("simulate", "pod", "--snapshot", "SNAPSHOT", "-f", "FILE"),
    ("defrag", "plan", "--snapshot", "SNAPSHOT", "--for", "FILE"),
    ("defrag", "apply", "FILE", "--kubeconfig", "/nowhere"),
    ("top", "--snapshot", "SNAPSHOT", "--device-config-file", "FILE"),
    ("top", "--kubeconfig", "FILE"),
    ("scheduler", "--print-config", "--device-config-file", "FILE"),
    ("device-plugin", "--print-config", "--node-name", "n1", "--config-file", "FILE"),
    ("simulate", "trace", "--nodes", "FILE", "--pods", "FILE"),
    ("simulate", "trace", "--synthetic", "1", "--policy", "best-fit", "--seeds", "1", "--resume", "FILE"),
)
"""that read a file; the other words in capitals are good files"""

MEMORY_BYTES = 3 << 30
TIME_S = 20.0


def outcome(arguments: tuple[str, ...], files: Mapping[str, str]) -> tuple[str, float]:
    """How a command ends, and after how many seconds."""
    began = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tessera", *(files.get(word, word) for word in arguments)],
            capture_output=True, timeout=TIME_S, check=False, stdin=subprocess.DEVNULL,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES)),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return "too long", TIME_S
    took = time.monotonic() - began
    if done.returncode < 0:
        return f"signal {-done.returncode}", took
    if b"Traceback" in done.stderr:
        return done.stderr.decode(errors="replace").strip().splitlines()[-1][:60], took
    return ("refused" if done.returncode == 2 else f"exit code {done.returncode}"), took


def main(folder: Path) -> None:
    from tessera.inspect.snapshots import encode_snapshot
    from tests.support.cluster_states import large_state

    good = {"SNAPSHOT": str(folder / "good.json"), "POD": str(folder / "good.yaml")}
    Path(good["SNAPSHOT"]).write_bytes(encode_snapshot(large_state(nodes=2)))
    Path(good["POD"]).write_text("spec: {containers: [{name: a}]}")
    counts: Counter[str] = Counter()
    slowest = (0.0, "")
    for name, path in write_all(folder).items():
        for arguments in COMMANDS:
            ending, took = outcome(arguments, {**good, "FILE": str(path)})
            counts["refused" if ending == "refused" else "other"] += 1
            slowest = max(slowest, (took, f"{name}: {' '.join(arguments)}"))
            if ending != "refused" or took > 5:
                print(f"{ending:<40} {took:5.1f} s  {name}: {' '.join(arguments)}", flush=True)
    print(dict(counts), "slowest:", slowest)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as made:
        main(Path(made))
