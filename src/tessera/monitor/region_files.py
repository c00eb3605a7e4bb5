"""The file of a shared region, which its container may replace, truncate or turn into a link at any time.

Links are never followed, only regular files with one name are touched, and all access is by position: truncating a
mapped file would crash the monitor. Nothing is kept from one round to the next.
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
# Without O_NONBLOCK a named pipe would block the monitor.
_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class RegionFile:
    """One open file. All methods block."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def read(self) -> Region | Misread:
        """Decodes the current contents. Raises OSError."""
        found = os.fstat(self._descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
            return Misread("cache file is not a regular file with one name")
        return decode_region(found.st_size, self._read)

    def write(self, region: Region, *, utilization_switch: int, recent_kernel: int) -> bool:
        """Writes what differs. Returns False if the file was truncated. Raises OSError."""
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
    """Opens a file of an open directory. Raises OSError."""
    descriptor = os.open(name, _FLAGS, dir_fd=folder)
    try:
        yield RegionFile(descriptor)
    finally:
        os.close(descriptor)
