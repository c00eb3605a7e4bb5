"""Splits a stream of chunks into lines, wherever the chunks end: in linear time, with a limit on the line length."""

from __future__ import annotations

from tessera.kube.errors import BadResponse

MAX_LINE_BYTES = 32 << 20
"""an object in etcd has at most 1.5 MiB; JSON and escapes make that a few times more"""


class LineSplitter:
    """Holds the beginning of the line whose end has not arrived."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._held = 0

    @property
    def has_partial_line(self) -> bool:
        return self._held > 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that this chunk completes, without their line ends; blank lines are left out."""
        first, *others = chunk.split(b"\n")
        self._pieces.append(first)
        self._held += len(first)
        if self._held > MAX_LINE_BYTES:
            raise BadResponse(f"a line of the watch is longer than {MAX_LINE_BYTES >> 20} MiB")
        if not others:
            return []
        complete = [b"".join(self._pieces), *others[:-1]]
        self._pieces, self._held = [others[-1]], len(others[-1])
        return [line for line in complete if line.strip()]
