"""The demo's cluster: control plane, nodes, and the scheduler with webhook and extender, all in one process.

    async with demo_cluster(folder, port=0) as cluster:
        await cluster.apply(manifest)

One process starts in a second or two and leaves nothing behind; child processes would each have to load Python again.
What goes over the network in a real cluster does so here: the API, the webhook (TLS) and the extender.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from tessera.core.ledger.ledger import Ledger
from tessera.inspect.collector import collect
from tessera.inspect.dashboard.scheduler_page import EngineSource, SchedulerPage
from tessera.inspect.offline_cluster import OfflineCluster
from tessera.kube.access import load_access
from tessera.kube.client import KubeClient
from tessera.kube.resources import DEVICE_CLASSES, MUTATING_WEBHOOKS, Resource
from tessera.scheduler.process import Process
from tessera.scheduler.settings import Listeners, Settings, TlsFiles
from tessera.services.value_types import Address
from tessera.vendors.base import Switches
from tessera.vendors.registry import build_vendors
from tessera.wire.keys import DRA_DRIVER
from tessera_lab.demo.machines import MACHINES, demo_nodes
from tessera_lab.sandbox.api.kinds import KINDS, Json
from tessera_lab.sandbox.api.server import ServerOptions, for_loopback
from tessera_lab.sandbox.control_plane import ControlPlane
from tessera_lab.sandbox.objects import name_of, namespace_of
from tessera_lab.sandbox.scheduling.loop import SchedulerProfile

log = structlog.get_logger(__name__)

LOOPBACK = Address("127.0.0.1", 0)
START_S = 30.0
"""seconds for everything to become ready; an idle machine needs one or two"""
LOOK_S = 0.02
"""seconds between two checks of a condition that cannot be waited for"""
GRACE_S = 2.0
"""seconds for running binds at the end"""
STEP_S = 30.0
"""seconds that a step of the story waits at most; an idle machine needs milliseconds"""
SERVICE = "tessera-system/tessera-scheduler:monitor"
"""as in the chart; `tessera journal` reads there, through the apiserver"""
LISTENERS = frozenset({"extender", "webhook", "metrics"})
SWITCHES = Switches(ascend=True)

RESOURCES: Mapping[str, Resource] = {
    kind.kind: Resource(kind.group, kind.version, kind.plural, kind.namespaced) for kind in KINDS
}
"""everything that the control plane serves, by kind"""


DEVICE_CLASS: Json = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": DRA_DRIVER},
    "spec": {"selectors": [{"cel": {"expression": f"device.driver == '{DRA_DRIVER}'"}}]},
}
"""as in the chart"""


class DemoError(Exception):
    """Why the demo cannot continue, in words that a person can act on."""


class CannotStart(DemoError):
    """The cluster could not start."""


@dataclass
class DemoCluster:
    """The running cluster, and what the story does to it."""

    plane: ControlPlane
    scheduler: Process
    page: SchedulerPage
    """hears what the scheduler does"""

    @property
    def ledger(self) -> Ledger:
        """The scheduler's own ledger; read only."""
        return self.scheduler.service.ledger

    async def apply(self, manifest: Json) -> Json:
        """Creates an object as kubectl would, and returns it as stored."""
        resource = RESOURCES[manifest["kind"]]
        namespace = (manifest["metadata"].get("namespace") or "default") if resource.namespaced else None
        return await self.plane.client.create(resource.path(namespace), manifest, dict[str, Any])

    async def delete_pod(self, namespace: str, name: str) -> None:
        await self.plane.delete_pod(namespace, name)

    def pods(self) -> list[Json]:
        """In the order of their names."""
        return sorted(self.plane.pods(), key=lambda pod: (namespace_of(pod), name_of(pod)))

    async def until(self, predicate: Callable[[], object], what: str) -> None:
        """Waits until `predicate` is true. Raises DemoError."""

        def is_true() -> object:
            self.check()
            return predicate()

        await _until(is_true, what, within=STEP_S)

    def check(self) -> None:
        """Raises DemoError if a part of the control plane has failed."""
        if self.plane.has_stopped:
            raise DemoError("a part of the control plane failed")

    def page_source(self) -> EngineSource:
        """What the dashboard shows."""
        return EngineSource(self.scheduler.service, self.page)

    async def offline_cluster(self) -> OfflineCluster:
        """The cluster as `tessera explain` sees it."""
        return OfflineCluster(await collect(self.plane.client, source="the demo", now=time.time))


@asynccontextmanager
async def demo_cluster(
    folder: Path, *, port: int = 0, on_signals_taken: Callable[[], None] | None = None
) -> AsyncIterator[DemoCluster]:
    """Starts everything and waits until it is ready. Raises CannotStart.

    `on_signals_taken` is called once the scheduler has installed its own signal handlers."""
    managed = frozenset(name for vendor in build_vendors(None, SWITCHES).values() for name in vendor.names.all)
    plane = ControlPlane(
        nodes=demo_nodes(folder),
        server=ServerOptions(port=port),
        profile=SchedulerProfile(managed=managed, asks_about_all=True),
        folder=folder,
    )
    try:
        await plane.__aenter__()
    except OSError as error:
        raise CannotStart(f"cannot serve the API on port {port}: {error.strerror or error}") from error
    try:
        page = SchedulerPage()
        async with _run_scheduler(plane, folder, page, on_signals_taken) as process:
            cluster = DemoCluster(plane, process, page)
            await _wait_for_cards(cluster)
            yield cluster
    finally:
        await _stop(plane)


async def _stop(plane: ControlPlane) -> None:
    try:
        await plane.__aexit__(None, None, None)
    except ExceptionGroup as failure:
        log.error("a part of the control plane failed", exc_info=failure)
        raise DemoError(f"a part of the control plane failed: {failure.exceptions[0]!r}") from failure


@asynccontextmanager
async def _run_scheduler(
    plane: ControlPlane, folder: Path, page: SchedulerPage, on_signals_taken: Callable[[], None] | None
) -> AsyncIterator[Process]:
    """Runs the real scheduler, registered with the apiserver as webhook and with kube-scheduler as extender."""
    certificates = for_loopback("127.0.0.1")
    files = TlsFiles(str(folder / "webhook.crt"), str(folder / "webhook.key"))
    Path(files.certificate).write_bytes(certificates.certificate)
    Path(files.key).touch(0o600)
    Path(files.key).write_bytes(certificates.key)
    settings = Settings(
        listeners=Listeners(extender=LOOPBACK, webhook=LOOPBACK, metrics=LOOPBACK),
        tls=files,
        enable_ascend=SWITCHES.ascend,
        dra=True,
        grace_s=GRACE_S,
    )
    access = load_access(kubeconfig=str(plane.kubeconfig), environ={})
    async with KubeClient(access, user_agent="tessera-scheduler") as client:
        process = Process(settings, client, page=page)
        running = asyncio.create_task(process.run())
        try:
            await asyncio.sleep(0)
            if on_signals_taken is not None:
                on_signals_taken()
            await _until(lambda: running.done() or _is_ready(process), "the scheduler to be ready", within=START_S)
            if running.done():
                raise CannotStart(f"the scheduler exited with {running.result()} while it was starting")
            await plane.client.create(MUTATING_WEBHOOKS.path(), _webhook(process, certificates.ca))
            await plane.client.create(DEVICE_CLASSES.path(), DEVICE_CLASS)
            extender = f"http://{process.listeners['extender'].address}"
            plane.server.cluster.services[SERVICE] = extender
            await plane.start_scheduling(extender)
            yield process
        finally:
            process.stopping.set()
            await running


def _is_ready(process: Process) -> bool:
    return process.listeners.keys() >= LISTENERS and not process.service.unsynced()


def _webhook(process: Process, authority: bytes) -> Json:
    """As in the chart, but with an address: there are no Services here."""
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": "tessera-webhook"},
        "webhooks": [
            {
                "name": "vgpu.hami.io",
                "clientConfig": {
                    "url": f"https://{process.listeners['webhook'].address}/webhook",
                    "caBundle": base64.b64encode(authority).decode(),
                },
                "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}],
                "admissionReviewVersions": ["v1", "v1beta1"],
                "objectSelector": {
                    "matchExpressions": [{"key": "hami.io/webhook", "operator": "NotIn", "values": ["ignore"]}]
                },
                "reinvocationPolicy": "IfNeeded",
                "sideEffects": "None",
                "failurePolicy": "Fail",
                "timeoutSeconds": 10,
            }
        ],
    }


async def _wait_for_cards(cluster: DemoCluster) -> None:
    """Waits until the scheduler knows the cards of every node and the kubelets offer them."""

    def done() -> bool:
        nodes = cluster.plane.nodes
        offered = cluster.scheduler.service.view.pools
        serving = {machine.name for machine in MACHINES}
        is_registered = set(cluster.ledger.node_names()) == set(nodes) and all(node.cards for node in nodes.values())
        return is_registered and offered.keys() >= serving

    await _until(done, "the nodes to register their cards", within=START_S)


async def _until(predicate: Callable[[], object], what: str, *, within: float) -> None:
    try:
        async with asyncio.timeout(within):
            while not predicate():
                await asyncio.sleep(LOOK_S)
    except TimeoutError as error:
        raise DemoError(f"waited {within:g} s for {what}, in vain") from error
