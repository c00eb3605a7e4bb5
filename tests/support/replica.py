"""One scheduler of the product: the real `Process`, with its listeners on ports that it keeps over restarts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from tessera.kube.access import load_access
from tessera.kube.client import KubeClient
from tessera.scheduler.process import Process
from tessera.scheduler.settings import Listeners, Settings
from tessera.services.value_types import Address
from tessera_lab.sandbox.control_plane import ControlPlane
from tests.support.ports import free_ports

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
