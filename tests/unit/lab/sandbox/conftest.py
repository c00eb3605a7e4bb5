"""A fresh embedded server for every test, and a client that hides nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tessera_lab.sandbox.api.server import ApiServer, ServerOptions
from tests.contract.client import Client, client
from tests.support.network import free_ports

NOW = 1_800_000_000.0
"""2027-01-15T08:00:00Z"""


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer(ServerOptions(port=free_ports(1)[0], seed=1, now=lambda: NOW)) as running:
        yield running


@pytest.fixture
async def api(server: ApiServer) -> AsyncIterator[Client]:
    async with client(server.kubeconfig()) as speaking:
        yield speaking
