"""Named points at which a test ends or stops this process exactly. Off, and without effect, in every other process.

    TESSERA_FAILPOINTS="bind.before-write=kill@3,filter.after-reserve=stop"

kills the process (SIGKILL) when it is about to write its third Binding, and stops it (SIGSTOP) after its first
reservation. The variable is read when the parts of the process are made, and never again: no request, file or flag
switches a point on.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Mapping
from enum import Enum

import structlog

log = structlog.get_logger(__name__)

VARIABLE = "TESSERA_FAILPOINTS"
_ENTRY = re.compile(r"(?P<point>[a-z.-]+)=(?P<action>kill|stop)(@(?P<count>[1-9][0-9]{0,8}))?")
_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


class Failpoint(Enum):
    AFTER_RESERVE = "filter.after-reserve"
    """a node and its cards are reserved; kube-scheduler has no answer yet"""
    BEFORE_CLAIM = "bind.before-claim"
    """a ResourceClaim is about to be written; nothing of the pod's bind is"""
    AFTER_CLAIM = "bind.after-claim"
    """the apiserver has accepted the allocation of a ResourceClaim; nothing here has noted it"""
    BEFORE_WRITE = "bind.before-write"
    """everything that is checked before a Binding has been checked"""
    AFTER_WRITE = "bind.after-write"
    """the apiserver has accepted a Binding; nothing here has noted it"""
    BEFORE_SETTLE = "bind.before-settle"
    """the API shows that a pod was handed over, ended or is gone"""
    BEFORE_EVICT = "preempt.before-evict"
    """the slices of the victims are nominated; no victim is evicted yet"""
    AFTER_EVICT = "preempt.after-evict"
    """the apiserver has accepted an eviction; nothing here has noted it"""
    BEFORE_RECORD = "allocate.before-record"
    """the agent has chosen a slice; neither its checkpoint nor kubelet knows"""
    AFTER_RECORD = "allocate.after-record"
    """the checkpoint knows the answer; kubelet does not"""


def failpoint(point: Failpoint, environ: Mapping[str, str] = os.environ) -> Callable[[], None]:
    """What to call where the process is at this point: nothing happens unless the environment names it.

    Raises ValueError if the variable cannot be understood."""
    text = environ.get(VARIABLE, "")
    if not text:
        return _pass
    armed = dict(map(_read, text.split(",")))
    if point not in armed:
        return _pass
    number, left = armed[point]
    log.warning("failpoint armed", point=point.value, signal=number.name, hit=left)

    def hit() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), number)

    return hit


def _pass() -> None:
    pass


def _read(entry: str) -> tuple[Failpoint, tuple[signal.Signals, int]]:
    found = _ENTRY.fullmatch(entry.strip())
    names = {point.value: point for point in Failpoint}
    if found is None or found["point"] not in names:
        known = ", ".join(names)
        raise ValueError(f"{VARIABLE}: {entry.strip()!r} is not POINT=kill or POINT=stop, @COUNT; points are {known}")
    return names[found["point"]], (_SIGNALS[found["action"]], int(found["count"] or 1))
