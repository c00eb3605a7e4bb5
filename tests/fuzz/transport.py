"""A transport without a socket, and the cutting of an input into pieces."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any


class PipeTransport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self._is_closing = False

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        self._is_closing = True

    abort = write_eof = close

    def can_write_eof(self) -> bool:
        return True

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


def pieces(data: bytes) -> Iterator[bytes]:
    """The first byte says how long each piece is, so that the fuzzer chooses the cuts."""
    size = data[0] or len(data) if data else 1
    for start in range(1, len(data), size):
        yield data[start : start + size]
