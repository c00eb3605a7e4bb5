"""What the benchmarks share: timed calls, percentiles, the memory of a process, and budgets.

What is compared is measured in turns, so that a busy machine slows both sides.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

HOST = "127.0.0.1"
CALL_S = 30.0
"""longest wait for a response"""
_CHUNK = 1 << 18
"""bytes"""


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def percentile(seconds: list[float], rank: float, *, per_second: int = 1_000) -> float:
    """In milliseconds by default."""
    return round(float(np.percentile(seconds, rank)) * per_second, 4)


@dataclass(frozen=True, slots=True)
class Answer:
    """One response, and the seconds from the first byte sent to the last one received."""

    seconds: float
    body: bytes


class Caller:
    """One keep-alive connection that posts JSON. Minimal, because its own time is measured too."""

    def __init__(self, port: int, path: str) -> None:
        self._head = f"POST {path} HTTP/1.1\r\nHost: {HOST}:{port}\r\nContent-Type: application/json\r\n"
        self._socket = socket.create_connection((HOST, port), timeout=CALL_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def post(self, body: bytes) -> Answer:
        """Raises OSError unless the response has status 200 and a Content-Length."""
        data = f"{self._head}Content-Length: {len(body)}\r\n\r\n".encode() + body
        began = time.perf_counter()
        self._socket.sendall(data)
        answer = self._receive()
        return Answer(time.perf_counter() - began, answer)

    def _receive(self) -> bytes:
        received = bytearray()
        while (end := received.find(b"\r\n\r\n")) < 0:
            received += self._more()
        status, *lines = bytes(received[:end]).lower().split(b"\r\n")
        length = next((line for line in lines if line.startswith(b"content-length:")), b"")
        if status.split()[1:2] != [b"200"] or not length:
            raise OSError(f"unexpected response: {bytes(received[:200])!r}")
        whole = end + 4 + int(length.partition(b":")[2])
        while len(received) < whole:
            received += self._more()
        return bytes(received[end + 4 :])

    def _more(self) -> bytes:
        data = self._socket.recv(_CHUNK)
        if not data:
            raise OSError("the connection was closed before the response was complete")
        return data


def in_turns(acts: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """The seconds that each act reports. Each round begins with another act."""
    taken: dict[str, list[float]] = {name: [] for name in acts}
    order = list(acts)
    for _ in range(rounds):
        for name in order:
            taken[name].append(acts[name]())
        order.append(order.pop(0))
    return taken


@dataclass(frozen=True, slots=True)
class Taken:
    """The cost of calls to one server, in milliseconds."""

    p50: float
    p99: float
    work: float
    """mean processor time of its event loop per call; a busy machine hardly changes it"""


def side_by_side(servers: Mapping[str, tuple[int, Callable[[], float]]], calls: int) -> dict[str, Taken]:
    """`servers`: by name, a process id and a function that makes one call and returns its seconds. Calls take turns."""
    before = {name: work_of(pid) for name, (pid, _) in servers.items()}
    taken = in_turns({name: act for name, (_, act) in servers.items()}, calls)
    return {
        name: Taken(
            percentile(taken[name], 50),
            percentile(taken[name], 99),
            round((work_of(pid) - before[name]) / calls * 1_000, 4),
        )
        for name, (pid, _) in servers.items()
    }


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident memory of a process in MiB."""

    now: float
    peak: float


def memory_of(pid: int) -> Memory:
    """From /proc, which counts in KiB."""
    lines = (line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    kib = {words[0]: int(words[1]) for words in lines if words and words[0] in ("VmRSS:", "VmHWM:")}
    return Memory(round(kib["VmRSS:"] / 1024, 1), round(kib["VmHWM:"] / 1024, 1))


def work_of(pid: int) -> float:
    """Processor seconds of the first thread of a process, which runs its event loop."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def processor_seconds_of(pid: int) -> float:
    """Of all threads of a process, up to this moment, where `work_of` counts up to the kernel's last tick."""
    # As clock_getcpuclockid(3) makes it from a process id.
    return time.clock_gettime((~pid << 3) | 2)


@dataclass(frozen=True, slots=True)
class Budget:
    """A measured value and its limit."""

    name: str
    value: float
    most: float

    @property
    def kept(self) -> bool:
        return self.value <= self.most


def table(budgets: list[Budget]) -> str:
    width = max(len(budget.name) for budget in budgets)
    lines = [f"{'what':<{width}} {'value':>10} {'budget':>10}"]
    lines += [f"{b.name:<{width}} {b.value:>10.4g} {b.most:>10.4g}  {'ok' if b.kept else 'BROKEN'}" for b in budgets]
    return "\n".join(lines)
