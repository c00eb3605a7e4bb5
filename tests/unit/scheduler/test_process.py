"""Starts that fail and ends that hang, without a cluster."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trustme

from tessera.kube.access import Access
from tessera.kube.client import KubeClient
from tessera.kube.event_broadcaster import ObjectRef
from tessera.scheduler.process import Process, run
from tessera.scheduler.settings import Listeners, Settings
from tessera.services.value_types import Address
from tests.support.event_loops import in_fake_time, in_real_time
from tests.support.logs import Logs, captured
from tests.support.scheduler_process import EXTENDER_ONLY, LOOPBACK, until, write_authority, write_pair

GRACE = 20.0
KUBECONFIG = """
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
users: [{name: u, user: {}}]
current-context: c
"""


@dataclass
class Started:
    """A process whose apiserver takes every request and answers none."""

    process: Process
    logs: Logs
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    @property
    def port(self) -> int:
        return self.process.listeners["extender"].address.port

    async def listening(self) -> asyncio.Task[int]:
        """Run it until its listeners are open; the task that ends with it."""
        task = asyncio.create_task(self.process.run())
        await until(lambda: len(self.logs.of("listening")) == len(self.process.listeners) > 0)
        return task

    async def bind(self) -> asyncio.StreamReader:
        """Send a bind; the answer comes on what is returned."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.writers.append(writer)
        writer.write(b"POST /bind HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}")
        return reader

    async def ready(self) -> bytes:
        """The whole answer, up to the end of the connection."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.writers.append(writer)
        writer.write(b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n")
        return await reader.read()


@asynccontextmanager
async def made(**changes: Any) -> AsyncIterator[Started]:
    settings = Settings(**{"listeners": EXTENDER_ONLY, "grace_s": GRACE, **changes})
    with socket.create_server(("127.0.0.1", 0)) as silent, captured() as logs:
        async with KubeClient(Access(f"http://127.0.0.1:{silent.getsockname()[1]}")) as client:
            started = Started(Process(settings, client), logs)
            yield started
            for writer in started.writers:
                writer.close()
                await writer.wait_closed()


# -- starts that fail


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("tls.crt", None, "cannot read {}: No such file or directory"),
        ("tls.crt", b"x", "{0}, {1}: not a certificate in PEM"),
        ("tls.key", None, "cannot read {}: No such file or directory"),
        ("tls.key", b"x", "{2}, {0}: not a key in PEM"),
        ("ca.crt", None, "cannot read {}: No such file or directory"),
        ("ca.crt", b"x", "{}: the clients' authority is no certificate in PEM"),
        ("ca.crt", b"", "{}: there is no certificate in it"),
    ],
)
def test_files_for_tls_that_cannot_be_used_end_the_start(
    tmp_path: Path, file: str, content: bytes | None, said: str
) -> None:
    authority = trustme.CA()
    (tmp_path / "kubeconfig").write_text(KUBECONFIG)
    files = write_pair(tmp_path, authority)
    clients = write_authority(tmp_path / "ca.crt", authority)
    (tmp_path / file).unlink()
    if content is not None:
        (tmp_path / file).write_bytes(content)
    listeners = Listeners(extender=None, webhook=None, metrics=None, single=LOOPBACK, client_ca=clients)
    settings = Settings(listeners=listeners, tls=files, kubeconfig=str(tmp_path / "kubeconfig"))
    with captured() as logs:
        assert run(settings) == 2
    [fault] = logs.events
    assert (fault["event"], fault["level"]) == ("cannot serve TLS", "error")
    assert fault["error"].startswith(said.format(tmp_path / file, files.key, files.certificate))


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "no such file"), ("{", "kubeconfig"), (KUBECONFIG.replace("http:", "ftp:"), "is not an address")],
)
def test_without_access_to_an_apiserver_nothing_starts(tmp_path: Path, content: str | None, said: str) -> None:
    if content is not None:
        (tmp_path / "kubeconfig").write_text(content)
    with captured() as logs:
        assert run(Settings(listeners=EXTENDER_ONLY, kubeconfig=str(tmp_path / "kubeconfig"))) == 2
    [fault] = logs.events
    assert fault["event"] == "no access to the apiserver"
    assert said in fault["error"]


def test_a_port_that_is_taken_ends_the_start(tmp_path: Path) -> None:
    (tmp_path / "kubeconfig").write_text(KUBECONFIG)
    with socket.create_server(("127.0.0.1", 0)) as taken, captured() as logs:
        at = Address("127.0.0.1", taken.getsockname()[1])
        listeners = Listeners(extender=at, webhook=None, metrics=None)
        assert run(Settings(listeners=listeners, kubeconfig=str(tmp_path / "kubeconfig"))) == 1
    [fault] = logs.events
    assert fault["event"] == "cannot listen"
    assert "address already in use" in fault["error"]


@in_real_time
async def test_a_listener_that_cannot_be_opened_closes_the_others() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        metrics = Address("127.0.0.1", taken.getsockname()[1])
        async with made(listeners=Listeners(extender=LOOPBACK, webhook=None, metrics=metrics)) as started:
            assert await started.process.run() == 1
            assert [event["event"] for event in started.logs.events] == ["listening", "cannot listen"]
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", started.port)


# -- ends


@in_fake_time
async def test_binds_and_events_that_hang_share_the_grace_period(monkeypatch: pytest.MonkeyPatch) -> None:
    time = asyncio.get_running_loop().time
    reached, cancelled = asyncio.Event(), asyncio.Event()

    async def stuck(_body: bytes) -> bytes:
        reached.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return b""

    async with made() as started:
        monkeypatch.setattr(started.process.service.engine, "answer_bind", stuck)
        task = await started.listening()
        answer = await started.bind()
        await reached.wait()
        started.process.service.events.record(ObjectRef("Pod", "default", "p", "u"), "Normal", "r", "m")
        began = time()
        started.process.stopping.set()
        await cancelled.wait()
        assert time() - began < GRACE
        assert await task == 0
        assert time() - began == pytest.approx(GRACE)
        assert await answer.read() == b""
        assert started.logs.events[-1] == {"event": "stopped", "level": "info", "events_lost": 1}


@in_fake_time
async def test_a_bind_has_most_of_the_grace_period(monkeypatch: pytest.MonkeyPatch) -> None:
    reached = asyncio.Event()

    async def slow(_body: bytes) -> bytes:
        reached.set()
        await asyncio.sleep(0.7 * GRACE)
        return b'{"Error": ""}'

    async with made() as started:
        monkeypatch.setattr(started.process.service.engine, "answer_bind", slow)
        task = await started.listening()
        answer = await started.bind()
        await reached.wait()
        started.process.stopping.set()
        assert (await answer.read()).endswith(b'{"Error": ""}')
        assert await task == 0


@in_fake_time
async def test_an_idle_process_needs_no_time_to_end() -> None:
    async with made() as started:
        task = await started.listening()
        began = asyncio.get_running_loop().time()
        started.process.stopping.set()
        assert await task == 0
        assert asyncio.get_running_loop().time() == began


@in_fake_time
async def test_a_planned_end_is_announced_before_anything_is_closed() -> None:
    delay = 5.0
    async with made(shutdown_delay_s=delay) as started:
        task = await started.listening()
        began = asyncio.get_running_loop().time()
        started.process.stopping.set()
        await until(lambda: started.logs.of("ending soon"))
        answer = await started.ready()
        assert b" 503 " in answer
        assert answer.endswith(b"this replica ends\n")
        assert b"Connection: close" in answer
        assert await task == 0
        assert asyncio.get_running_loop().time() - began == delay
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", started.port)


@in_fake_time
async def test_a_part_that_fails_ends_the_process_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    fault = RuntimeError("a bug")

    async def fails() -> None:
        raise fault

    async with made(shutdown_delay_s=5.0) as started:
        monkeypatch.setattr(started.process.service, "run", fails)
        assert await started.process.run() == 1
        assert started.logs.of("ending soon") == []
        assert [event["exc_info"] for event in started.logs.of("a part of the service failed")] == [fault]
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", started.port)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@in_real_time
async def test_both_signals_that_ask_for_an_end_end_it_well(number: signal.Signals) -> None:
    async with made() as started:
        task = await started.listening()
        os.kill(os.getpid(), number)
        assert await task == 0


@in_real_time
async def test_a_process_that_is_cancelled_leaves_nothing_running() -> None:
    async with made() as started:
        before = asyncio.all_tasks()
        task = await started.listening()
        await started.process.close_listeners()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asyncio.all_tasks() == before


# -- reading again


@in_fake_time
async def test_a_signal_means_nothing_where_there_is_nothing_to_read() -> None:
    async with made() as started:
        task = await started.listening()
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.sleep(60)
        started.process.stopping.set()
        assert await task == 0
        told = [event["event"] for event in started.logs.events]
        assert [one for one in told if "take-over" not in one] == [
            *("listening", "listening", "taking over", "stopping", "stopped"),
        ]
