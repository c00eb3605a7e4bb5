"""The real scheduler on the embedded control plane: replicas of it, and a cluster with the pods that tests make."""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp
import trustme

from tessera.core.ledger.ledger import Ledger
from tessera.kube.access import load_access
from tessera.kube.client import KubeClient
from tessera.kube.resources import MUTATING_WEBHOOKS, PODS
from tessera.scheduler.process import Process
from tessera.scheduler.service import Service
from tessera.scheduler.settings import Leadership, Listeners, Settings, TlsFiles
from tessera.services.value_types import Address
from tessera_lab.sandbox.api.faults import LoggedRequest
from tessera_lab.sandbox.api.server import ServerOptions
from tessera_lab.sandbox.control_plane import ControlPlane
from tessera_lab.sandbox.nodes.node import SimulatedNode
from tessera_lab.sandbox.scheduling.extender_client import ExtenderClient
from tests.support.ledger_replay import unrest
from tests.support.network import free_ports

START_S = 60.0


def own_listeners() -> Listeners:
    """On ports that stay free while the scheduler restarts."""
    extender, webhook, metrics = (Address("127.0.0.1", port) for port in free_ports(3))
    return Listeners(extender=extender, webhook=webhook, metrics=metrics)


@dataclass
class Replica:
    """`agent` is its user agent at the API server, to count its requests and to fault only them."""

    plane: ControlPlane
    settings: Settings
    agent: str = "tessera-scheduler"
    _process: Process | None = None
    _task: asyncio.Task[int] | None = field(default=None, repr=False)
    _client: KubeClient | None = field(default=None, repr=False)

    @property
    def process(self) -> Process:
        assert self._process is not None, "the scheduler is not running"
        return self._process

    @property
    def is_running(self) -> bool:
        return self._process is not None

    @property
    def extender_url(self) -> str:
        return f"http://{self.settings.listeners.extender}"

    async def start(self) -> None:
        """Start it and wait until it knows everything that the API shows."""
        access = load_access(kubeconfig=str(self.plane.kubeconfig), environ={})
        client = self._client = await KubeClient(access, user_agent=self.agent).__aenter__()
        process = self._process = Process(self.settings, client)
        self._task = asyncio.create_task(process.run())
        service, waits = process.service, self.settings.leadership is not None
        # A replica that waits for the lease knows everything, but decides nothing.
        await self._until(
            lambda: len(process.listeners) == 3 and not (service.unsynced() if waits else service.engine.missing())
        )

    async def stop(self) -> int:
        """As SIGTERM would; the exit code."""
        assert self._task is not None
        assert self._client is not None
        self.process.stopping.set()
        code = await self._task
        await self._client.__aexit__(None, None, None)
        self._process, self._task, self._client = None, None, None
        return code

    async def kill(self) -> None:
        """As SIGKILL would: from here on it answers no request and writes nothing."""
        assert self._task is not None
        assert self._client is not None
        assert not self._task.done(), "the scheduler has ended by itself"
        await self._stop_listening()
        for listener in self.process.listeners.values():
            listener.cut()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._client.__aexit__(None, None, None)
        await self.process.close_listeners()
        self._process, self._task, self._client = None, None, None

    async def _stop_listening(self) -> None:
        """Accepts and reads no more, and lets all that was accepted and read begin.

        asyncio loses a connection, open, if its server closes in the turn that accepts it. A call that is cancelled in
        the turn that reads it warns of a coroutine that was never awaited."""
        loop = asyncio.get_running_loop()
        for listener in self.process.listeners.values():
            for listening in listener._server.sockets if listener._server is not None else ():
                loop.remove_reader(listening.fileno())
            for connection in listener._state.connections:
                if hasattr(connection, "_transport"):
                    connection.pause_reading()
        for _ in range(2):
            await asyncio.sleep(0)

    async def _until(self, predicate: Callable[[], bool]) -> None:
        assert self._task is not None
        async with asyncio.timeout(START_S):
            while not predicate():
                if self._task.done():
                    raise AssertionError(f"the scheduler ended with {self._task.result()}")
                await asyncio.sleep(0)


PATIENCE_S = 60.0
"""before an event that never happens fails the test; long, because test machines are slow at times"""
LOOK_S = 0.005
"""between two polls"""

Json = dict[str, Any]


_WARNING = re.compile(r'299 - "(.*)"')


@dataclass(frozen=True)
class Answer:
    """A response of the API server."""

    status: int
    body: Json
    """the object, or a Status that says why there is none"""
    warnings: list[str]

    @property
    def message(self) -> str:
        return str(self.body.get("message", ""))


@dataclass
class Product:
    """A running cluster with Tessera in it."""

    plane: ControlPlane
    scheduler: Replica
    authority: trustme.CA
    others: list[Replica] = field(default_factory=list)

    @property
    def running(self) -> Process:
        return self.scheduler.process

    @property
    def service(self) -> Service:
        return self.running.service

    @property
    def ledger(self) -> Ledger:
        return self.service.ledger

    # -- the scheduler's life

    async def start_scheduler(self) -> None:
        await self.scheduler.start()

    async def stop_scheduler(self) -> int:
        """As SIGTERM would; the exit code."""
        return await self.scheduler.stop()

    async def kill_scheduler(self) -> None:
        """As SIGKILL would."""
        await self.scheduler.kill()

    async def restart_scheduler(self) -> None:
        await self.kill_scheduler()
        await self.start_scheduler()

    async def start_scheduling(self) -> None:
        """Starts kube-scheduler, or restarts it without its memory."""
        await self.plane.start_scheduling(self.scheduler.extender_url)

    async def add_replica(self, host: str) -> Replica:
        """A second scheduler on another host, beside a kube-scheduler that does not lead yet."""
        leadership = self.scheduler.settings.leadership
        assert leadership is not None, "replicas need a lease"
        own = replace(leadership, identity=host)
        settings = replace(self.scheduler.settings, listeners=own_listeners(), leadership=own)
        replica = Replica(self.plane, settings, agent=f"tessera-{host}")
        await replica.start()
        self.others.append(replica)
        return replica

    def time_passes(self) -> None:
        """One tick of the scheduler, which it makes every 15 seconds."""
        self.service.engine.tick()

    # -- waiting

    async def until(self, predicate: Callable[[], object], *, what: str = "", timeout: float = PATIENCE_S) -> None:
        """Polls a condition of the scheduler that no event announces."""
        try:
            async with asyncio.timeout(timeout):
                while not predicate():
                    await asyncio.sleep(LOOK_S)
        except TimeoutError as error:
            raise TimeoutError(f"waited {timeout:g} s for {what or 'something that did not happen'}") from error

    async def running_pods(self, *names: str, namespace: str = "default") -> None:
        """Waits until all these pods run."""
        plane = self.plane
        waited = set(names)

        def all_run() -> bool:
            waited.difference_update([name for name in waited if plane.phase(namespace, name) == "Running"])
            return not waited

        try:
            await plane.wait_for(all_run, PATIENCE_S)
        except TimeoutError as error:
            raise TimeoutError(f"not running: {', '.join(sorted(waited))}") from error

    async def refused(self, name: str, *, namespace: str = "default") -> str:
        """Waits until kube-scheduler has reported why the pod has no node; returns the message."""
        return await self.plane.wait_for(
            lambda: str(condition(self.plane.pod(namespace, name), "PodScheduled", status="False").get("message", "")),
            PATIENCE_S,
            what=f"the refusal of {name}",
        )

    async def at_rest(self, *, without: Sequence[str] = (), overcommitted: bool = False) -> None:
        """Wait until nothing is under way, and the ledger is what a replay of the API's objects gives.

        `without` names nodes whose plugin is gone: they are in the API, but not in the ledger. `overcommitted` says
        that a registration shrank below what was granted."""
        text = "?"

        def rests() -> bool:
            nonlocal text
            text = unrest(self.plane, self.service, without=frozenset(without), overcommitted=overcommitted)
            return not text

        try:
            await self.until(rests)
        except TimeoutError as error:
            raise AssertionError(f"no rest: {text}") from error

    # -- asking

    def extender(self) -> ExtenderClient:
        """A client that calls the scheduler as kube-scheduler does."""
        return ExtenderClient(self.scheduler.extender_url)

    def requests(self, agent: str | None = None) -> list[LoggedRequest]:
        """The scheduler's requests to the API server."""
        return [seen for seen in self.plane.server.journal if seen.agent == (agent or self.scheduler.agent)]

    def writes(self, agent: str | None = None) -> list[LoggedRequest]:
        """The scheduler's writes, without events."""
        return [seen for seen in self.requests(agent) if seen.writes and "/events" not in seen.path]

    async def patch_pod(self, name: str, annotations: Mapping[str, str | None], *, namespace: str = "default") -> None:
        await self.plane.client.patch(PODS.path(namespace, name), {"metadata": {"annotations": annotations}})

    async def post_pod(self, manifest: Json) -> Answer:
        """Creates a pod; returns status and warnings as well."""
        url = self.plane.server.url + PODS.path(manifest["metadata"]["namespace"])
        body = {"apiVersion": "v1", "kind": "Pod", **manifest}
        async with aiohttp.ClientSession() as session, session.post(url, json=body) as response:
            found = [_WARNING.fullmatch(text) for text in response.headers.getall("Warning", ())]
            warnings = [re.sub(r"\\(.)", r"\1", each[1]) for each in found if each is not None]
            return Answer(response.status, await response.json(), warnings)

    async def register_webhook(self, *, passing_by: Mapping[str, str] | None = None) -> None:
        """`passing_by`: pods with one of these labels skip the webhook."""
        others = [{"key": key, "operator": "NotIn", "values": [value]} for key, value in (passing_by or {}).items()]
        bundle = base64.b64encode(self.authority.cert_pem.bytes()).decode()
        configuration = {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": "tessera-webhook"},
            "webhooks": [
                {
                    "name": "vgpu.hami.io",
                    "clientConfig": {
                        "url": f"https://{self.scheduler.settings.listeners.webhook}/webhook",
                        "caBundle": bundle,
                    },
                    "rules": [
                        {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}
                    ],
                    "admissionReviewVersions": ["v1", "v1beta1"],
                    "objectSelector": {"matchExpressions": others},
                    "sideEffects": "None",
                    "failurePolicy": "Fail",
                    "timeoutSeconds": 30,
                }
            ],
        }
        await self.plane.client.create(MUTATING_WEBHOOKS.path(), configuration)

    async def move_webhook(self) -> None:
        """Points the webhook configuration at the current scheduler."""
        await self.plane.client.delete(MUTATING_WEBHOOKS.path(name="tessera-webhook"))
        await self.register_webhook()


def gpu_pod(
    name: str, *, namespace: str = "default", annotations: dict[str, str] | None = None, **amounts: int
) -> Json:
    """One container; `gpu`, `mem`, `percent` and `cores` of NVIDIA."""
    return pod(name, container("main", **amounts), namespace=namespace, annotations=annotations)


def pod(
    name: str,
    *containers: Json,
    init: Sequence[Json] = (),
    namespace: str = "default",
    annotations: dict[str, str] | None = None,
    **spec: Any,
) -> Json:
    return {
        "metadata": {"name": name, "namespace": namespace, "annotations": annotations or {}},
        "spec": {"containers": list(containers), **({"initContainers": list(init)} if init else {}), **spec},
    }


def container(name: str, **amounts: int | str) -> Json:
    names = {
        "gpu": "nvidia.com/gpu",
        "mem": "nvidia.com/gpumem",
        "percent": "nvidia.com/gpumem-percentage",
        "cores": "nvidia.com/gpucores",
    }
    limits = {names[key]: str(value) for key, value in amounts.items()}
    return {"name": name, "image": "none", "resources": {"limits": limits}}


def sidecar(name: str, **amounts: int) -> Json:
    return container(name, **amounts) | {"restartPolicy": "Always"}


def condition(thing: Json | None, kind: str, *, status: str) -> Json:
    """The condition if it has this status, otherwise an empty object."""
    found = thing.get("status", {}).get("conditions", ()) if thing is not None else ()
    return next((each for each in found if (each["type"], each["status"]) == (kind, status)), {})


@asynccontextmanager
async def product(
    nodes: Sequence[SimulatedNode], folder: Path, *, scheduling: bool = True, **changes: Any
) -> AsyncIterator[Product]:
    """A cluster with these nodes and a scheduler that is ready; `changes` are settings.

    Without `scheduling` there is no kube-scheduler before `start_scheduling`."""
    async with (
        ControlPlane(nodes=nodes, server=ServerOptions(port=free_ports(1)[0])) as plane,
        scheduler_on(plane, folder, scheduling=scheduling, **changes) as cluster,
    ):
        yield cluster


@asynccontextmanager
async def scheduler_on(
    plane: ControlPlane,
    folder: Path,
    *,
    scheduling: bool = True,
    passing_by: Mapping[str, str] | None = None,
    **changes: Any,
) -> AsyncIterator[Product]:
    """A scheduler that is ready, and its webhook, on a control plane that other programs may use too."""
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1", "localhost")
    cert_file, key_file = folder / "tls.crt", folder / "tls.key"
    cert_file.write_bytes(certificate.cert_chain_pems[0].bytes())
    key_file.write_bytes(certificate.private_key_pem.bytes())
    settings = Settings(listeners=own_listeners(), tls=TlsFiles(str(cert_file), str(key_file)), **changes)
    cluster = Product(plane, Replica(plane, settings), authority)
    await cluster.start_scheduler()
    try:
        await cluster.register_webhook(passing_by=passing_by)
        if scheduling:
            await cluster.start_scheduling()
        yield cluster
    finally:
        for replica in (cluster.scheduler, *cluster.others):
            if replica.is_running:
                await replica.kill()


def leadership(host: str) -> Leadership:
    return Leadership(namespace="kube-system", name="hami-scheduler", identity=host)


ProductFactory = Callable[..., AbstractAsyncContextManager[Product]]


def mixed_pods(count: int) -> list[Json]:
    """Pods of different shapes, no two with the same slice."""
    return [_shaped(f"p{number:03}", kind=number % 6, mem=100 + number) for number in range(count)]


def _shaped(name: str, *, kind: int, mem: int) -> Json:
    match kind:
        case 0:
            return gpu_pod(name, gpu=1, mem=mem)
        case 1:
            return gpu_pod(name, gpu=1, mem=mem, cores=1)
        case 2:
            return gpu_pod(name, gpu=2, mem=mem)
        case 3:
            return pod(name, container("a", gpu=1, mem=mem), container("b", gpu=1, mem=2 * mem))
        case 4:
            return pod(name, container("a", gpu=1, mem=mem), init=[container("i", gpu=2, mem=mem)])
        case _:
            return pod(name, container("a", gpu=3, mem=mem), init=[sidecar("s", gpu=1, mem=mem)])
