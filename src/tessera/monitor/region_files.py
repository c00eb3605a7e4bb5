"""The file of a shared region, which its container may replace, cut off or turn into a link at any moment.

Links are never followed, only regular files with one name are touched, and everything is read and written by position:
a mapping of a file that a tenant cuts off would end the monitor. Nothing is kept from one round to the next.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from struct import Struct

from tessera.monitor.region_layouts import Misread
from tessera.monitor.regions import Region, decode_region

_I32 = Struct("<i")
# Without O_NONBLOCK a pipe of that name would hold the monitor up.
_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class RegionFile:
    """One open file. All of it blocks."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def read(self) -> Region | Misread:
        """As it is now. Raises OSError."""
        found = os.fstat(self._descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
            return Misread("cache file is no regular file with one name")
        return decode_region(found.st_size, self._read)

    def write(self, region: Region, *, utilization_switch: int, recent_kernel: int) -> bool:
        """Only what differs; False where the file is not long enough any more. Raises OSError."""
        if os.fstat(self._descriptor).st_size < region.layout.end:
            return False
        if recent_kernel != region.recent_kernel:
            os.pwrite(self._descriptor, _I32.pack(recent_kernel), region.layout.recent_kernel)
        if utilization_switch != region.utilization_switch:
            os.pwrite(self._descriptor, _I32.pack(utilization_switch), region.layout.utilization_switch)
        return True

    def _read(self, offset: int, length: int) -> bytes:
        return os.pread(self._descriptor, length, offset)


@contextmanager
def opened(folder: int, name: str) -> Iterator[RegionFile]:
    """A file of an open folder. Raises OSError."""
    descriptor = os.open(name, _FLAGS, dir_fd=folder)
    try:
        yield RegionFile(descriptor)
    finally:
        os.close(descriptor)
