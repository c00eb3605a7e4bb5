"""Runs `tessera` as on a Mac: `python tests/integration/like_a_mac.py top ...`.

Takes away what Python has on Linux only, before anything else is imported, and everything below /proc and /sys. uvloop
and grpc keep the real system: they are built for both.
"""

from __future__ import annotations

import builtins
import io
import os
import select
import signal
import sys
import time
from importlib import import_module
from typing import Any

LINUX_ONLY: dict[Any, tuple[str, ...]] = {
    os: (
        "sched_getaffinity", "sched_setaffinity", "sched_getparam", "sched_setparam", "sched_getscheduler",
        "sched_setscheduler", "sched_rr_get_interval", "memfd_create", "eventfd", "eventfd_read", "eventfd_write",
        "pidfd_open", "splice", "copy_file_range", "getrandom", "posix_fallocate", "posix_fadvise", "setns", "unshare",
        "getxattr", "setxattr", "listxattr", "removexattr", "getresuid", "getresgid", "setresuid", "setresgid",
        "timerfd_create", "MFD_CLOEXEC", "O_PATH", "O_TMPFILE", "O_DIRECT", "O_LARGEFILE", "O_NOATIME", "O_RSYNC",
    ),
    signal: (
        "SIGPWR", "SIGSTKFLT", "SIGPOLL", "SIGRTMIN", "SIGRTMAX", "pidfd_send_signal", "sigwaitinfo", "sigtimedwait",
    ),
    "socket": (
        "AF_NETLINK", "AF_PACKET", "AF_VSOCK", "AF_ALG", "AF_CAN", "SOCK_CLOEXEC", "SOCK_NONBLOCK", "SO_PEERCRED",
        "SO_BINDTODEVICE", "SO_PASSCRED", "SO_MARK", "SO_PRIORITY", "TCP_KEEPIDLE", "TCP_USER_TIMEOUT", "TCP_QUICKACK",
        "TCP_CORK", "TCP_DEFER_ACCEPT", "TCP_INFO", "TCP_LINGER2", "TCP_SYNCNT", "TCP_CONGESTION",
    ),
    time: ("CLOCK_BOOTTIME", "CLOCK_MONOTONIC_COARSE", "CLOCK_TAI"),
}  # fmt: skip
HIDDEN_FOLDERS = ("/proc", "/sys")
HIDDEN_MODULES = frozenset({"spwd", "ossaudiodev", "systemd", "pyinotify", "inotify"})


def hide_linux() -> None:
    # First, because socket imports selectors, which looks for it once.
    for name in [name for name in vars(select) if name.lower().startswith("epoll")]:
        delattr(select, name)
    for where, names in LINUX_ONLY.items():
        module = import_module(where) if isinstance(where, str) else where
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    if sys.version_info >= (3, 13):
        # Where there is no affinity, Python defines it so.
        os.process_cpu_count = os.cpu_count
    sys.modules.update(dict.fromkeys(HIDDEN_MODULES))  # type: ignore[arg-type]
    for owner, name in ((builtins, "open"), (io, "open"), (os, "open"), (os, "stat"), (os, "listdir"), (os, "scandir")):
        setattr(owner, name, _without_folders(getattr(owner, name)))


def _without_folders(call: Any) -> Any:
    def guarded(path: Any = ".", *more: Any, **named: Any) -> Any:
        if not isinstance(path, int):
            text = os.fsdecode(path)
            if text.startswith(HIDDEN_FOLDERS):
                raise FileNotFoundError(2, "No such file or directory", text)
        return call(path, *more, **named)

    return guarded


if __name__ == "__main__":
    hide_linux()
    from tessera.cli import main

    main()
