"""The server under contract: the one that TESSERA_CONTRACT_KUBECONFIG names, or else the embedded one."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tessera_lab.sandbox.api.server import ApiServer, ServerOptions
from tessera_lab.sandbox.controllers.loop import ControllerLoop
from tests.contract.client import Client, Json, client, read_kubeconfig


@dataclass(frozen=True)
class Space:
    """A namespace of one test, with paths to what is in it."""

    name: str

    def of(self, plural: str, name: str = "", sub: str = "") -> str:
        return "/".join(part for part in (f"/api/v1/namespaces/{self.name}/{plural}", name, sub) if part)

    def pods(self, name: str = "", sub: str = "") -> str:
        return self.of("pods", name, sub)

    def grouped(self, group: str, plural: str, name: str = "", sub: str = "") -> str:
        base = f"/apis/{group}/v1/namespaces/{self.name}/{plural}"
        return "/".join(part for part in (base, name, sub) if part)

    def leases(self, name: str = "") -> str:
        return self.grouped("coordination.k8s.io", "leases", name)

    def deployments(self, name: str = "", sub: str = "") -> str:
        return self.grouped("apps", "deployments", name, sub)

    def jobs(self, name: str = "", sub: str = "") -> str:
        return self.grouped("batch", "jobs", name, sub)


@pytest.fixture
async def embedded() -> AsyncIterator[ApiServer | None]:
    """The embedded server, unless another one is under contract."""
    if os.environ.get("TESSERA_CONTRACT_KUBECONFIG"):
        yield None
        return
    async with ApiServer(ServerOptions(seed=1, tls=True, token="secret")) as server:
        yield server


@pytest.fixture
async def controllers(embedded: ApiServer | None) -> AsyncIterator[None]:
    """Runs the controllers of the embedded server; a real control plane has its own."""
    if embedded is None:
        yield
        return
    running = asyncio.create_task(ControllerLoop(embedded.verbs).run())
    yield
    running.cancel()
    await asyncio.wait([running])
    assert running.cancelled(), running.exception()


@pytest.fixture
def kubeconfig(embedded: ApiServer | None) -> Json:
    if embedded is not None:
        return embedded.kubeconfig()
    return read_kubeconfig(Path(os.environ["TESSERA_CONTRACT_KUBECONFIG"]))


@pytest.fixture
async def api(kubeconfig: Json) -> AsyncIterator[Client]:
    async with client(kubeconfig) as speaking:
        yield speaking


@pytest.fixture
async def space(api: Client) -> AsyncIterator[Space]:
    name = f"contract-{uuid.uuid4().hex[:10]}"
    await api.made("/api/v1/namespaces", {"metadata": {"name": name}})
    # Without a controller manager, nothing else creates the service account that pods need.
    await api.post(f"/api/v1/namespaces/{name}/serviceaccounts", {"metadata": {"name": "default"}})
    yield Space(name)
    await api.delete(f"/api/v1/namespaces/{name}/pods", {"gracePeriodSeconds": 0})
    await api.delete(f"/api/v1/namespaces/{name}")


@pytest.fixture
async def node(api: Client) -> AsyncIterator[Json]:
    name = f"contract-{uuid.uuid4().hex[:10]}"
    capacity = {"cpu": "8", "memory": "65536Mi", "pods": "110", "nvidia.com/gpu": "3000"}
    body = {"metadata": {"name": name}, "status": {"capacity": capacity}}
    yield await api.made("/api/v1/nodes", body)
    await api.delete(f"/api/v1/nodes/{name}")
