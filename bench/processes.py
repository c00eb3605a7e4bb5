"""The processes of a benchmark over HTTP: a canned apiserver, the echo, and the service itself, all on this machine.

Every process that was started is stopped at the end: on success, an error, SIGTERM or the time limit. Logs go to a
temporary folder and are shown if a process fails.
"""

from __future__ import annotations

import http.client
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self

from bench.measurement import HOST, progress
from tests.support.network import free_ports

STOP_S = 5.0
"""between SIGTERM and SIGKILL"""
START_S = 120.0
"""far above any budget: a process that takes longer does not start at all"""
POLL_S = 0.05
POLL_TIMEOUT_S = 5.0
"""for one /readyz: reading pages of pods blocks the loop, but never that long"""
LOG_TAIL = 3_000
"""characters of a failed process that are shown"""


class Failure(Exception):
    """The benchmark could not run; this says nothing about the speed of the service."""


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a cluster."""

    nodes: int
    devices: int
    """per node"""
    pods_per_node: int

    def __str__(self) -> str:
        return f"{self.nodes} nodes x {self.devices} cards, {self.pods_per_node} pods per node"


@dataclass(frozen=True, slots=True)
class Certificates:
    """Files for serving the webhook."""

    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True)
class Server:
    """A process that printed its port."""

    pid: int
    port: int


@dataclass(frozen=True, slots=True)
class Service:
    """A running `tessera scheduler`."""

    pid: int
    extender: int
    """port"""
    webhook: int
    """port; 0 without certificates"""
    metrics: int
    """port"""
    dashboard: int
    """port; 0 if it is off"""
    ready_s: float
    """seconds from the start of the process until /readyz succeeded"""


class BenchmarkProcesses:
    """Use as `with BenchmarkProcesses(limit=seconds) as processes`."""

    def __init__(self, *, limit: int) -> None:
        self._limit = limit
        self._stack = ExitStack()
        self._folder = Path()

    def __enter__(self) -> Self:
        self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="tessera-bench-")))
        for number, then in ((signal.SIGTERM, _ended), (signal.SIGALRM, _late)):
            self._stack.callback(signal.signal, number, signal.signal(number, then))
        signal.alarm(self._limit)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # First, because stopping the processes has its own limit and must not be interrupted.
        signal.alarm(0)
        self._stack.__exit__(kind, error, trace)

    def canned_api(self, size: Size) -> int:
        """The port of an apiserver that shows a cluster of this size."""
        progress(f"making a cluster: {size}")
        numbers = ("--nodes", size.nodes, "--devices", size.devices, "--pods-per-node", size.pods_per_node)
        return self._with_port("bench.canned_api", *map(str, numbers)).port

    def echo(self) -> Server:
        return self._with_port("bench.echo")

    def service(
        self, api: int, *, certificates: Certificates | None = None, policy: str = "", dashboard_on: bool = False
    ) -> Service:
        """A scheduler that has read everything. `policy` is for nodes and cards; empty = the default. The dashboard
        needs certificates."""
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        extender, metrics, webhook, dashboard = free_ports(4)
        arguments = ["--kubeconfig", str(_kubeconfig(folder, api)), "--extender-bind", f"{HOST}:{extender}"]
        arguments += ["--metrics-bind-address", f"{HOST}:{metrics}"]
        if policy:
            arguments += ["--node-scheduler-policy", policy, "--gpu-scheduler-policy", policy]
        if certificates is not None:
            files = ["--cert_file", str(certificates.certificate), "--key_file", str(certificates.key)]
            arguments += ["--webhook-bind", f"{HOST}:{webhook}", *files]
        if dashboard_on:
            arguments += ["--dashboard-bind", f"{HOST}:{dashboard}"]
        progress("starting the scheduler")
        started = time.perf_counter()
        process, log = self._start("tessera", "scheduler", *arguments)
        while missing := _missing(extender):
            if process.poll() is not None or time.perf_counter() - started > START_S:
                raise Failure(f"the scheduler did not become ready: {missing}\n{_tail(log)}")
            time.sleep(POLL_S)
        ready_s = round(time.perf_counter() - started, 2)
        served = webhook if certificates is not None else 0
        return Service(process.pid, extender, served, metrics, dashboard if dashboard_on else 0, ready_s)

    def _with_port(self, module: str, *arguments: str) -> Server:
        """Starts a module of this package that prints its port."""
        process, log = self._start(module, *arguments)
        assert process.stdout is not None  # a pipe
        readable, _, _ = select.select([process.stdout], [], [], START_S)
        line = process.stdout.readline().strip() if readable else b""
        if not line.isdigit():
            raise Failure(f"{module} did not start:\n{_tail(log)}")
        return Server(process.pid, int(line))

    def _start(self, module: str, *arguments: str) -> tuple[subprocess.Popen[bytes], Path]:
        handle, name = tempfile.mkstemp(prefix=module, suffix=".log", dir=self._folder)
        # The environment of a workstation or a pod must not change what is measured.
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("KUBE", "POD_"))}
        with open(handle, "wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if module.startswith("bench.") else log,
                stderr=log,
                env=environment,
            )
        self._stack.callback(_stop, process)
        return process, Path(name)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def _ended(_number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + signal.SIGTERM)


def _late(_number: int, _frame: FrameType | None) -> None:
    raise Failure("the time limit is over")


def _missing(port: int) -> str:
    """What /readyz says is missing; empty = ready."""
    connection = http.client.HTTPConnection(HOST, port, timeout=POLL_TIMEOUT_S)
    try:
        connection.request("GET", "/readyz")
        response = connection.getresponse()
        said = response.read(LOG_TAIL).decode(errors="replace").strip()
        return "" if response.status == 200 else said or f"status {response.status}"
    except (OSError, http.client.HTTPException) as error:
        return repr(error)
    finally:
        connection.close()


def _kubeconfig(folder: Path, api: int) -> Path:
    path = folder / "kubeconfig"
    path.write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: bench\n"
        f"clusters: [{{name: bench, cluster: {{server: 'http://{HOST}:{api}'}}}}]\n"
        "contexts: [{name: bench, context: {cluster: bench}}]\n"
    )
    return path


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-LOG_TAIL:] or "(it wrote nothing)"
