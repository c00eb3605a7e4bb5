"""POST /webhook over TLS against the running scheduler, at a steady rate that does not wait for responses.

    python -m bench.webhook --rate 200 --seconds 10 --json
    python -m bench.webhook --check

A request's time counts from the moment it was due, so that a stall is paid for by every request that it delayed.
Reviews are recorded ones of pods that ask for GPUs, each with a uid of its own. Nothing leaves this machine.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import ssl
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path

import aiohttp
import msgspec
import trustme
import uvloop

from bench.measurement import HOST, Budget, memory_of, percentile, progress, table
from bench.processes import BenchmarkProcesses, Certificates, Failure, Size

SAMPLES = Path(__file__).parents[1] / "tests" / "samples" / "admission"
GPU_SAMPLES = ("kubectl-gpu", "deployment", "generateName")
WARM_UP_S = 1.0
CALL_S = 10.0
"""the default timeout of an apiserver for a webhook"""
LIMIT_S = 180
MAX_P99_MS = 10.0
LEAST_RATE = 0.98
"""share of the offered rate that must be answered in time"""
ATTEMPTS = 3
"""a busy machine may spoil one of them; a slow service fails all"""

Figures = dict[str, float]


@dataclass(slots=True)
class Outcome:
    """The results of all requests."""

    seconds: list[float] = field(default_factory=list)
    """from the moment a request was due to the end of its response"""
    elapsed: float = 0.0
    """from the first request to the last response"""
    refused: int = 0
    """responses other than a mutation of the pod"""


def reviews() -> list[bytes]:
    """Recorded requests, with `%(uid)s` for the uid."""
    made = []
    for name in GPU_SAMPLES:
        review = json.loads((SAMPLES / f"{name}.request.json").read_text())
        text = json.dumps(review).replace("%", "%%")
        made.append(text.replace(review["request"]["uid"], "%(uid)s").encode())
    return made


async def offer(url: str, context: ssl.SSLContext, *, rate: float, seconds: float) -> Outcome:
    """Sends requests at this rate, whether responses arrive or not."""
    outcome = Outcome()
    # uvloop's own clock only counts milliseconds.
    clock = time.perf_counter
    templates = cycle(reviews())

    async def call(session: aiohttp.ClientSession, body: bytes, due: float) -> None:
        async with session.post(url, data=body, headers={"Content-Type": "application/json"}) as response:
            answer = await response.read()
        outcome.seconds.append(clock() - due)
        verdict = msgspec.json.decode(answer)["response"] if response.status == 200 else {}
        outcome.refused += not (verdict.get("allowed") and verdict.get("patch"))

    connector = aiohttp.TCPConnector(ssl=context, limit=0)
    timeout = aiohttp.ClientTimeout(total=CALL_S)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session, asyncio.TaskGroup() as group:
        began = clock()
        for number in range(round(rate * seconds)):
            due = began + number / rate
            await asyncio.sleep(max(due - clock(), 0))
            body = next(templates) % {b"uid": str(uuid.uuid4()).encode()}
            group.create_task(call(session, body, min(due, clock())))
    outcome.elapsed = clock() - began
    return outcome


def figures(outcome: Outcome, *, seconds: float) -> Figures:
    return {
        "webhook_p50_ms": percentile(outcome.seconds, 50),
        "webhook_p99_ms": percentile(outcome.seconds, 99),
        "webhook_max_ms": percentile(outcome.seconds, 100),
        "rate": round(len(outcome.seconds) / max(outcome.elapsed, seconds), 1),
        "refused": float(outcome.refused),
    }


def issue(folder: Path) -> tuple[Certificates, ssl.SSLContext]:
    """A serving certificate in this folder, and a context that trusts it."""
    authority = trustme.CA()
    issued = authority.issue_cert(HOST, "localhost")
    certificates = Certificates(folder / "tls.crt", folder / "tls.key")
    certificates.certificate.write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
    certificates.key.write_bytes(issued.private_key_pem.bytes())
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return certificates, context


def measure(size: Size, *, rate: float, seconds: float, limit: int, attempts: int) -> Figures:
    """The best of several attempts on one service."""
    with tempfile.TemporaryDirectory(prefix="tessera-bench-") as folder, BenchmarkProcesses(limit=limit) as processes:
        certificates, context = issue(Path(folder))
        service = processes.service(processes.canned_api(size), certificates=certificates)
        url = f"https://{HOST}:{service.webhook}/webhook"
        found: list[Figures] = []
        while len(found) < attempts and (not found or found[-1]["webhook_p99_ms"] > MAX_P99_MS):
            uvloop.run(offer(url, context, rate=rate, seconds=WARM_UP_S))
            progress(f"sending {rate:g} requests/s for {seconds:g} s")
            outcome = uvloop.run(offer(url, context, rate=rate, seconds=seconds))
            found.append(figures(outcome, seconds=seconds))
        best = min(found, key=lambda figures: figures["webhook_p99_ms"])
        return best | {"resident_mb": memory_of(service.pid).now}


def budgets(found: Figures, *, rate: float) -> list[Budget]:
    return [
        Budget(f"webhook p99 at {rate:g} requests/s, ms", found["webhook_p99_ms"], MAX_P99_MS),
        Budget("requests a second missing", round(rate - found["rate"], 1), round(rate * (1 - LEAST_RATE), 1)),
        Budget("GPU pods that were not mutated", found["refused"], 0.0),
    ]


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.webhook", description=__doc__.split("\n")[0])
    parser.add_argument("--rate", type=float, default=200.0, help="requests per second, default %(default)s")
    parser.add_argument("--seconds", type=float, default=10.0, help="duration, default %(default)s")
    parser.add_argument("--nodes", type=int, default=1_000, help="default %(default)s")
    parser.add_argument("--devices", type=int, default=8, help="cards per node, default %(default)s")
    parser.add_argument("--pods-per-node", type=int, default=16, help="running pods per node, default %(default)s")
    parser.add_argument("--limit", type=int, default=LIMIT_S, help="time limit in seconds, default %(default)s")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--check", action="store_true", help="compare with the budget; exit 1 if it is exceeded")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    size = Size(options.nodes, options.devices, options.pods_per_node)
    gc.disable()
    try:
        found = measure(
            size,
            rate=options.rate,
            seconds=options.seconds,
            limit=options.limit,
            attempts=ATTEMPTS if options.check else 1,
        )
    except (Failure, OSError, ExceptionGroup) as error:
        progress(f"not measured: {error}")
        return 2
    checked = budgets(found, rate=options.rate)
    if options.json:
        print(json.dumps(found))
    elif options.check:
        print(table(checked))
    else:
        print("\n".join(f"{name:<20} {value:>10}" for name, value in found.items()))
    return 1 if options.check and not all(budget.kept for budget in checked) else 0


if __name__ == "__main__":
    sys.exit(main())
