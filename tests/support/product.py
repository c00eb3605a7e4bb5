"""The whole product on the embedded control plane, in one event loop: API server, scheduling loop, nodes, scheduler.

The scheduler is the real `Process` with its listeners on ports of its own; the webhook is called over TLS.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import trustme

from tessera.kube.access import load_access
from tessera.kube.client import KubeClient
from tessera.kube.resources import MUTATING_WEBHOOKS
from tessera.sandbox.control_plane import ControlPlane
from tessera.sandbox.nodes import SimulatedNode
from tessera.scheduler.process import Process
from tessera.scheduler.settings import Address, Listeners, Settings, TlsFiles

LOOPBACK = Address("127.0.0.1", 0)
LISTENERS = Listeners(extender=LOOPBACK, webhook=LOOPBACK, metrics=LOOPBACK)

Json = dict[str, Any]


@dataclass
class Product:
    """A running cluster with Tessera in it."""

    plane: ControlPlane
    settings: Settings
    authority: trustme.CA
    process: Process | None = None
    _task: asyncio.Task[int] | None = field(default=None, repr=False)
    _client: KubeClient | None = field(default=None, repr=False)

    @property
    def running(self) -> Process:
        assert self.process is not None, "the scheduler is not running"
        return self.process

    async def start_scheduler(self) -> None:
        """Start it and wait until it is ready to decide."""
        access = load_access(kubeconfig=str(self.plane.kubeconfig), environ={})
        self._client = await KubeClient(access).__aenter__()
        self.process = Process(self.settings, self._client)
        self._task = asyncio.create_task(self.process.run())
        # The ports stay the same over restarts, as a Service's would.
        await self._until(lambda: len(self.running.listeners) == 3 and not self.running.service.missing())
        found = {name: listener.address for name, listener in self.running.listeners.items()}
        self.settings = replace(
            self.settings,
            listeners=Listeners(extender=found["extender"], webhook=found["webhook"], metrics=found["metrics"]),
        )

    async def stop_scheduler(self) -> int:
        """As SIGTERM would; the exit code."""
        assert self._task is not None
        assert self._client is not None
        self.running.stopping.set()
        code = await self._task
        await self._close()
        return code

    async def kill_scheduler(self) -> None:
        """No time for anything: tasks end where they are."""
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self.running.close_listeners()
        await self._close()

    async def restart_scheduler(self) -> None:
        await self.kill_scheduler()
        await self.start_scheduler()

    async def _close(self) -> None:
        assert self._client is not None
        await self._client.__aexit__(None, None, None)
        self.process, self._task, self._client = None, None, None

    async def _until(self, predicate: Callable[[], bool]) -> None:
        assert self._task is not None
        async with asyncio.timeout(10):
            while not predicate():
                if self._task.done():
                    self._task.result()
                await asyncio.sleep(0)

    @property
    def extender_url(self) -> str:
        return f"http://{self.settings.listeners.extender}"

    async def register_webhook(self) -> None:
        bundle = base64.b64encode(self.authority.cert_pem.bytes()).decode()
        configuration = {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": "tessera-webhook"},
            "webhooks": [
                {
                    "name": "vgpu.hami.io",
                    "clientConfig": {
                        "url": f"https://{self.settings.listeners.webhook}/webhook",
                        "caBundle": bundle,
                    },
                    "rules": [
                        {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}
                    ],
                    "admissionReviewVersions": ["v1", "v1beta1"],
                    "sideEffects": "None",
                    "failurePolicy": "Fail",
                    "timeoutSeconds": 5,
                }
            ],
        }
        await self.plane.client.create(MUTATING_WEBHOOKS.path(), configuration)


def gpu_pod(name: str, *, namespace: str = "default", annotations: dict[str, str] | None = None, **amounts: int) -> Json:
    """One container; `gpu`, `mem` and `cores` of NVIDIA."""
    return {
        "metadata": {"name": name, "namespace": namespace, "annotations": annotations or {}},
        "spec": {"containers": [container("main", **amounts)]},
    }


def container(name: str, **amounts: int) -> Json:
    names = {"gpu": "nvidia.com/gpu", "mem": "nvidia.com/gpumem", "cores": "nvidia.com/gpucores"}
    limits = {names[key]: str(value) for key, value in amounts.items()}
    return {"name": name, "image": "none", "resources": {"limits": limits}}


@asynccontextmanager
async def product(
    nodes: Sequence[SimulatedNode], folder: Path, **changes: Any
) -> AsyncIterator[Product]:
    """A cluster with these nodes and a scheduler that is ready; `changes` are settings."""
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1", "localhost")
    cert_file, key_file = folder / "tls.crt", folder / "tls.key"
    cert_file.write_bytes(certificate.cert_chain_pems[0].bytes())
    key_file.write_bytes(certificate.private_key_pem.bytes())
    settings = Settings(listeners=LISTENERS, tls=TlsFiles(str(cert_file), str(key_file)), **changes)
    async with ControlPlane(nodes=nodes) as plane:
        cluster = Product(plane, settings, authority)
        await cluster.start_scheduler()
        try:
            await cluster.register_webhook()
            await plane.start_scheduling(cluster.extender_url)
            yield cluster
        finally:
            if cluster.process is not None:
                await cluster.stop_scheduler()


ProductFactory = Callable[..., AbstractAsyncContextManager[Product]]
