"""Allocate compared with an empty call (PreStartContainer) on the same socket, one call at a time, as kubelet does.

    python -m bench.allocate --rounds 2000 --json
    python -m bench.allocate --check

The service runs in its own process; the client is blocking gRPC. Nothing leaves this machine. Behind the service is the
agent's own handover in mode hami-core with a folder on disk (`bench.handover_node`), in one of these ways:

    env       containers get their slice through the downward API
    answer    containers depend on Allocate; the response is written to disk before it is sent
    nothing   no work at all, for comparison
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import grpc
import uvloop

from bench.handover_node import WAYS, Node, settings
from bench.measurement import CALL_S, Budget, in_turns, percentile, progress, table
from tessera.node.fleet import replicas
from tessera.node.kubelet.endpoint import Endpoint, target
from tessera.node.kubelet.service import DevicePluginService
from tessera.node.watched_value import WatchedValue
from tessera.wire.kubelet import device_plugin_pb2 as messages
from tessera.wire.kubelet.methods import ALLOCATE, PRE_START, PREFERRED_ALLOCATION, Method, Request, Response

READY = "ready"
WARM_UP_ROUNDS = 200
MAX_RATIO = 3.0
ATTEMPTS = 3
"""a busy machine may spoil one of them; a slow service fails all"""

Figures = dict[str, float]


class Failure(Exception):
    """The benchmark could not run; the text says why."""


# -- the service, in its own process


async def serve(socket: Path, way: str) -> None:
    """Serves until standard input ends."""
    async with Node(socket.parent, way) as node:
        endpoint = Endpoint(socket, DevicePluginService(node.settings, WatchedValue(node.fleet), node))
        await endpoint.serve()
        try:
            print(READY, flush=True)
            await asyncio.to_thread(sys.stdin.read)
        finally:
            await endpoint.stop()


# -- the client


@contextmanager
def served(way: str) -> Iterator[Path]:
    """The socket of a running service."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        socket = Path(folder, "plugin.sock")
        command = [sys.executable, "-m", "bench.allocate", "--way", way, "--serve", str(socket)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            if process.stdout.readline().strip() != READY:
                raise Failure("the service did not start")
            try:
                yield socket
            finally:
                process.stdin.close()
                process.wait(CALL_S)


def calling(channel: grpc.Channel, method: Method[Request, Response]) -> Callable[[Request], Response]:
    call = channel.unary_unary(
        method.path,
        request_serializer=method.request.SerializeToString,
        response_deserializer=method.response.FromString,
    )
    return lambda request: call(request, timeout=CALL_S)


def allocation(channel: grpc.Channel, ids: Sequence[str]) -> Callable[[], float]:
    """One container's devices: GetPreferredAllocation, which is not measured, and then Allocate."""
    prefer, allocate = calling(channel, PREFERRED_ALLOCATION), calling(channel, ALLOCATE)
    wanted = messages.ContainerPreferredAllocationRequest(available_deviceIDs=ids, allocation_size=1)
    question = messages.PreferredAllocationRequest(container_requests=[wanted])

    def timed() -> float:
        (chosen,) = prefer(question).container_responses
        request = messages.AllocateRequest(
            container_requests=[messages.ContainerAllocateRequest(devices_ids=chosen.deviceIDs or ids[:1])]
        )
        began = time.perf_counter()
        allocate(request)
        return time.perf_counter() - began

    return timed


def nothing(channel: grpc.Channel) -> Callable[[], float]:
    call, request = calling(channel, PRE_START), messages.PreStartContainerRequest()

    def timed() -> float:
        began = time.perf_counter()
        call(request)
        return time.perf_counter() - began

    return timed


def measure(way: str, rounds: int) -> Figures:
    with served(way) as socket, grpc.insecure_channel(target(socket)) as channel:
        told = settings(socket.parent, way)
        ids = [replica.id for replica in replicas(Node.FLEET, told.node)]
        acts = {"allocate": allocation(channel, ids), "empty": nothing(channel)}
        in_turns(acts, WARM_UP_ROUNDS)
        taken = in_turns(acts, rounds)
    allocate, empty = (percentile(taken[name], 50) for name in ("allocate", "empty"))
    return {
        "allocate_p50_ms": allocate,
        "allocate_p99_ms": percentile(taken["allocate"], 99),
        "empty_p50_ms": empty,
        "empty_p99_ms": percentile(taken["empty"], 99),
        "allocate_per_empty": round(allocate / empty, 3),
    }


def best_of(attempts: int, way: str, rounds: int) -> Figures:
    found = [measure(way, rounds)]
    while len(found) < attempts and found[-1]["allocate_per_empty"] > MAX_RATIO:
        found.append(measure(way, rounds))
    return min(found, key=lambda figures: figures["allocate_per_empty"])


def budgets(found: dict[str, Figures]) -> list[Budget]:
    return [
        Budget(f"Allocate ({way}) p50 / empty call p50", figures["allocate_per_empty"], MAX_RATIO)
        for way, figures in found.items()
    ]


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.allocate", description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=2000, help="calls of each kind, default %(default)s")
    parser.add_argument("--way", choices=(*WAYS, "nothing"), help="default: both ways of the agent")
    parser.add_argument("--check", action="store_true", help="exit 1 if the budget is exceeded")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    ways = [options.way] if options.way else WAYS
    if options.serve is not None:
        uvloop.run(serve(options.serve, ways[0]))
        return 0
    try:
        found = {way: best_of(ATTEMPTS if options.check else 1, way, options.rounds) for way in ways}
    except (Failure, OSError, grpc.RpcError) as error:
        progress(f"not measured: {error}")
        return 2
    checked = budgets(found)
    if options.json:
        print(json.dumps(found))
    elif options.check:
        print(table(checked))
    else:
        for way, figures in found.items():
            print("\n".join(f"{way:<8} {name:<20} {value:>10}" for name, value in figures.items()))
    return 1 if options.check and not all(budget.kept for budget in checked) else 0


if __name__ == "__main__":
    sys.exit(main())
