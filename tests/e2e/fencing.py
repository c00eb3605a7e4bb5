"""Writes that outlive their decider, against a real etcd and kube-apiserver: is a card ever given twice?

    python -m tests.e2e.fencing delay --runs 100        a proxy holds the leader's Binding until the lease has moved
    python -m tests.e2e.fencing kill --runs 100         one replica, killed with its Binding on the way, starts again
    python -m tests.e2e.fencing pause --runs 100        SIGSTOP, a /bind waits in the socket, the lease moves, SIGCONT

Each run has a node with one card, and two pods that ask for all of it. The first is placed by the old decider, the
second by the new one, and then the first one's write arrives. This program takes kube-scheduler's place: it renews the
lease, and calls filter and bind. `--source DIR` runs the scheduler from another checkout.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp

from tessera.kube.access import load_access
from tessera.kube.client import KubeClient
from tessera.kube.errors import ApiError
from tessera.kube.resources import LEASES, NODES, PODS
from tests.e2e.control_plane import ACCOUNTS, ControlPlane
from tests.e2e.processes import Program
from tests.e2e.replica import LEASE, until
from tests.e2e.tcp_proxy import TcpProxy, tcp_proxy
from tests.support.builders import node as node_builder
from tests.support.network import free_ports
from tests.support.product import gpu_pod
from tests.support.stepwise_scheduler import serving_downward_api
from tools.kubernetes import build

Json = dict[str, Any]

NODE, NAMESPACE = "fenced", "default"
LEASE_S = 5
"""a leader that is not renewed for so long by this program, on a busy machine, would refuse what the test asks"""
RENEW_S = 0.2
LINGER_S = 1.0
"""for which the connection of a killed process stays open at the apiserver's end"""
KINDS = ("delay", "kill", "pause")


@dataclass
class Scheduler:
    """One `tessera scheduler` behind a proxy of its own."""

    program: Program
    proxy: TcpProxy
    host: str
    extender: str
    metrics: str
    http: aiohttp.ClientSession

    def start(self, proxy: TcpProxy) -> None:
        self.proxy = proxy
        self.program.start(KUBECONFIG=str(proxy.kubeconfig()))

    async def leads(self) -> bool:
        try:
            async with self.http.get(f"{self.metrics}/metrics") as answer:
                return "\ntessera_leader 1.0" in await answer.text()
        except aiohttp.ClientError:
            return False

    async def filter(self, pod: Json) -> Json:
        async with self.http.post(f"{self.extender}/filter", json={"Pod": pod, "NodeNames": [NODE]}) as answer:
            return dict(await answer.json(content_type=None))

    async def bind(self, pod: Json) -> str:
        metadata = pod["metadata"]
        body = {"PodName": metadata["name"], "PodNamespace": NAMESPACE, "PodUID": metadata["uid"], "Node": NODE}
        async with self.http.post(f"{self.extender}/bind", json=body) as answer:
            return str((await answer.json(content_type=None))["Error"])

    async def place(self, pod: Json) -> None:
        """Filter until it answers with the node: it may be taking over, or have to see the last pod's end."""

        async def is_placed() -> bool:
            try:
                return bool((await self.filter(pod))["NodeNames"] == [NODE])
            except aiohttp.ClientError:
                return False

        await until(is_placed, what=f"{self.host} to place {pod['metadata']['name']}")


@dataclass
class Bench:
    """The control plane with one card, and this program in kube-scheduler's place."""

    plane: ControlPlane
    api: KubeClient
    schedulers: list[Scheduler]
    holder: str = ""
    transitions: int = 0
    renewed_at: float = 0.0
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    """of proxies"""
    over_allocated: int = 0
    refusals: dict[str, int] = field(default_factory=dict)

    async def lead(self, scheduler: Scheduler) -> None:
        """Move the lease as client-go would, once it has not been renewed for its duration."""
        if self.holder != scheduler.host:
            self.holder = ""
            await asyncio.sleep(max(0.0, self.renewed_at + LEASE_S - time.monotonic()))
            self.transitions += 1
            self.holder = scheduler.host
        await until(scheduler.leads, what=f"{scheduler.host} to lead")

    async def renew(self) -> None:
        """For ever."""
        while True:
            if self.holder:
                moment = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
                spec = {
                    "holderIdentity": f"{self.holder}_x",
                    "leaseDurationSeconds": LEASE_S,
                    "leaseTransitions": self.transitions,
                    "renewTime": moment,
                }
                started = time.monotonic()
                try:
                    await self.api.patch(LEASES.path(ACCOUNTS, LEASE), {"spec": spec})
                except ApiError as error:
                    if error.status != 404:
                        raise
                    await self.api.create(LEASES.path(ACCOUNTS), {"metadata": {"name": LEASE}, "spec": spec})
                self.renewed_at = started
            await asyncio.sleep(RENEW_S)

    async def create(self, name: str) -> Json:
        manifest = gpu_pod(name, gpu=1, cores=100)
        manifest["spec"]["schedulerName"] = "hami-scheduler"
        made: Json = await self.api.create(PODS.path(NAMESPACE), manifest, dict[str, Any])
        return made

    async def judge(self, number: int, refusal: str) -> None:
        """Count the pods that have the card, and make room for the next run."""
        pods = (await self.api.list(PODS.path(NAMESPACE), dict[str, Any])).items
        holders = [pod["metadata"]["name"] for pod in pods if pod["spec"].get("nodeName")]
        self.over_allocated += len(holders) > 1
        self.refusals[refusal] = self.refusals.get(refusal, 0) + 1
        print(f"{number}: {' and '.join(holders) or 'no pod'} on one card; late: {refusal or 'no error'}", flush=True)
        for pod in pods:
            await self.api.delete(PODS.path(NAMESPACE, pod["metadata"]["name"]), grace_s=0)

    # -- the three ways

    async def delay(self, number: int) -> str:
        old, new = self.schedulers[number % 2], self.schedulers[1 - number % 2]
        first, second = await self.create(f"first-{number}"), await self.create(f"second-{number}")
        await self.lead(old)
        await old.place(first)
        old.proxy.hold_requests()
        late = asyncio.create_task(old.bind(first))
        await old.proxy.held.wait()
        await self.lead(new)
        await new.place(second)
        assert not (error := await new.bind(second)), error
        old.proxy.flow()
        return _brief(await late)

    async def kill(self, number: int) -> str:
        [scheduler] = self.schedulers
        first, second = await self.create(f"first-{number}"), await self.create(f"second-{number}")
        await scheduler.place(first)
        held = scheduler.proxy
        held.linger_s = LINGER_S
        held.hold_requests()
        late = asyncio.create_task(scheduler.bind(first))
        await held.held.wait()
        scheduler.program.kill()
        await asyncio.gather(late, return_exceptions=True)
        scheduler.start(await self.stack.enter_async_context(tcp_proxy(self.plane)))
        await scheduler.place(second)
        assert not (error := await scheduler.bind(second)), error
        held.flow()
        await asyncio.sleep(LINGER_S)
        return "the process is gone"

    async def pause(self, number: int) -> str:
        old, new = self.schedulers[number % 2], self.schedulers[1 - number % 2]
        first, second = await self.create(f"first-{number}"), await self.create(f"second-{number}")
        await self.lead(old)
        await old.place(first)
        old.program.send(signal.SIGSTOP)
        try:
            late = asyncio.create_task(old.bind(first))
            await self.lead(new)
            await new.place(second)
            assert not (error := await new.bind(second)), error
        finally:
            old.program.send(signal.SIGCONT)
        return _brief(await late)


def _brief(error: str) -> str:
    """Without what differs between runs."""
    return error.partition(":")[2].strip() if error.startswith("pod ") else error.partition(":")[0]


def _command(ports: tuple[int, int], *, elects: bool) -> list[str]:
    lead = ("--leader-elect", f"--leader-elect-resource-name={LEASE}", f"--leader-elect-resource-namespace={ACCOUNTS}")
    return [
        *(sys.executable, "-m", "tessera", "scheduler", "--log-format=json", "--webhook-bind=none"),
        f"--extender-bind=127.0.0.1:{ports[0]}",
        f"--metrics-bind-address=127.0.0.1:{ports[1]}",
        *(lead if elects else ()),
    ]


@asynccontextmanager
async def bench(plane: ControlPlane, kind: str, *, source: str = "") -> AsyncIterator[Bench]:
    environ: Mapping[str, str] = {"PATH": os.defpath} | ({"PYTHONPATH": f"{source}/src"} if source else {})
    elects = kind != "kill"
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(KubeClient(load_access(kubeconfig=str(plane.kubeconfig()), environ={})))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        await api.create(NODES.path(), serving_downward_api(node_builder(NODE).gpus(1)).manifest())
        schedulers = []
        for host in ("host-a", "host-b") if elects else ("host-a",):
            extender, metrics = free_ports(2)
            command = _command((extender, metrics), elects=elects)
            program = Program(f"{kind}-{host}", command, folder=plane.logs, environ={**environ, "HOSTNAME": host})
            stack.callback(program.kill)
            urls = f"http://127.0.0.1:{extender}", f"http://127.0.0.1:{metrics}"
            scheduler = Scheduler(program, TcpProxy(plane), host, *urls, http)
            scheduler.start(await stack.enter_async_context(tcp_proxy(plane)))
            schedulers.append(scheduler)
        found = Bench(plane, api, schedulers, stack=stack)
        renewing = asyncio.create_task(found.renew())
        try:
            yield found
        finally:
            renewing.cancel()
            await api.delete(NODES.path(name=NODE))
            if elects:
                await api.delete(LEASES.path(ACCOUNTS, LEASE))


async def run(plane: ControlPlane, kind: str, runs: int, *, source: str = "", within_s: float = 1e9) -> Bench:
    started = time.monotonic()
    async with bench(plane, kind, source=source) as found:
        done = 0
        while done < runs and time.monotonic() - started < within_s:
            refusal = await getattr(found, kind)(done)
            await found.judge(done, refusal)
            done += 1
    print(f"{kind}: {found.over_allocated} of {done} runs gave a card twice; {found.refusals}", flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.e2e.fencing", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--within", type=float, default=1e9, help="seconds after which no further run begins")
    parser.add_argument("--source", default="", help="checkout to run the scheduler from")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tessera-fencing-") as folder:
        plane = ControlPlane(Path(folder), build.ensure(tell=print))
        try:
            plane.start()
            found = asyncio.run(run(plane, given.kind, given.runs, source=given.source, within_s=given.within))
        finally:
            plane.stop()
    return 1 if found.over_allocated else 0


if __name__ == "__main__":
    sys.exit(main())
