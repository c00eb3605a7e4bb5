"""Starts that fail and ends that hang, without a cluster."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from pathlib import Path
from typing import Any, cast

import pytest
import trustme

from tessera.kube.client import KubeClient
from tessera.kube.events import ObjectRef
from tessera.scheduler.process import Process, run
from tessera.scheduler.settings import Address, Listeners, Settings
from tests.support.logs import captured
from tests.support.looping import in_fake_time, in_real_time
from tests.support.serving import EXTENDER_ONLY, LOOPBACK, until, write_authority, write_pair

GRACE = 20.0
KUBECONFIG = """
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
users: [{name: u, user: {}}]
current-context: c
"""


class Silent:
    """An apiserver that never answers."""

    async def _never(self, *_args: Any, **_more: Any) -> Any:
        await asyncio.Event().wait()

    get = list = create = patch = replace = bind = _never

    def watch(self, *_args: Any, **_more: Any) -> Any:
        raise AssertionError("nothing was listed")


def process(**changes: Any) -> Process:
    settings = Settings(**{"listeners": EXTENDER_ONLY, "grace_seconds": GRACE, **changes})
    return Process(settings, cast("KubeClient", Silent()))


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


@in_real_time
async def test_a_listener_that_cannot_be_opened_closes_the_others() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, captured() as logs:
        port = taken.getsockname()[1]
        started = process(listeners=Listeners(extender=LOOPBACK, webhook=None, metrics=Address("127.0.0.1", port)))
        assert await started.run() == 1
    assert [event["event"] for event in logs.events] == ["listening", "cannot listen"]
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", started.listeners["extender"].address.port)


# -- ends


async def listening(started: Process) -> asyncio.Task[int]:
    task = asyncio.create_task(started.run())
    await until(lambda: started.listeners and all(one.address.port for one in started.listeners.values()))
    return task


@in_fake_time
async def test_binds_and_events_that_hang_share_the_grace_period(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, started = asyncio.get_running_loop(), process()
    reached, cancelled = asyncio.Event(), asyncio.Event()

    async def stuck(_body: bytes) -> bytes:
        reached.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return b""

    monkeypatch.setattr(started.service, "answer_bind", stuck)
    with captured() as logs:
        task = await listening(started)
        reader, writer = await asyncio.open_connection("127.0.0.1", started.listeners["extender"].address.port)
        writer.write(b"POST /bind HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
        await reached.wait()
        started.service.events.record(ObjectRef("Pod", "default", "p", "u"), "Normal", "r", "m")
        began = loop.time()
        started.stopping.set()
        await cancelled.wait()
        assert loop.time() - began < GRACE
        assert await task == 0
        assert loop.time() - began == pytest.approx(GRACE)
    assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()
    assert logs.events[-1] == {"event": "stopped", "level": "info", "events_lost": 1}


@in_fake_time
async def test_a_bind_has_most_of_the_grace_period(monkeypatch: pytest.MonkeyPatch) -> None:
    started, reached = process(), asyncio.Event()

    async def slow(_body: bytes) -> bytes:
        reached.set()
        await asyncio.sleep(0.7 * GRACE)
        return b'{"Error": ""}'

    monkeypatch.setattr(started.service, "answer_bind", slow)
    with captured():
        task = await listening(started)
        reader, writer = await asyncio.open_connection("127.0.0.1", started.listeners["extender"].address.port)
        writer.write(b"POST /bind HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
        await reached.wait()
        started.stopping.set()
        assert (await reader.read()).endswith(b'{"Error": ""}')
        assert await task == 0
    writer.close()
    await writer.wait_closed()


@in_fake_time
async def test_an_idle_process_needs_no_time_to_end() -> None:
    started = process()
    with captured():
        task = await listening(started)
        began = asyncio.get_running_loop().time()
        started.stopping.set()
        assert await task == 0
    assert asyncio.get_running_loop().time() == began


@in_fake_time
async def test_a_part_that_fails_ends_the_process_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    started = process()
    fault = RuntimeError("a bug")

    async def fails() -> None:
        raise fault

    monkeypatch.setattr(started.service, "run", fails)
    with captured() as logs:
        assert await started.run() == 1
    assert [event["exc_info"] for event in logs.of("a part of the service failed")] == [fault]
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", started.listeners["extender"].address.port)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@in_real_time
async def test_both_signals_that_ask_for_an_end_end_it_well(number: signal.Signals) -> None:
    started = process()
    with captured():
        task = await listening(started)
        os.kill(os.getpid(), number)
        assert await task == 0


@in_real_time
async def test_a_process_that_is_cancelled_leaves_nothing_running() -> None:
    started, before = process(), asyncio.all_tasks()
    with captured():
        task = await listening(started)
        await started.close_listeners()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert asyncio.all_tasks() == before


# -- reading again


@in_fake_time
async def test_a_signal_means_nothing_where_there_is_nothing_to_read() -> None:
    started = process()
    with captured() as logs:
        task = await listening(started)
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.sleep(60)
        started.stopping.set()
        assert await task == 0
    assert [event["event"] for event in logs.events] == ["listening", "listening", "stopping", "stopped"]
