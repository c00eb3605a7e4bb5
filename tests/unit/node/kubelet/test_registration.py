"""What exactly reaches kubelet, and every way in which it may not."""

from __future__ import annotations

import asyncio
import socket as sockets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tessera.node.kubelet.plugin import RegistrationError, register
from tessera.wire.kubelet import device_plugin_pb2 as messages
from tests.support.kubelet.folders import plugins_folder
from tests.support.kubelet.scripted import ScriptedKubelet
from tests.support.looping import on_uvloop

REQUEST = messages.RegisterRequest(version="v1beta1", endpoint="nvidia-gpu.sock", resource_name="nvidia.com/gpu")


@pytest.fixture
def socket() -> Iterator[Path]:
    with plugins_folder() as folder:
        yield folder / "kubelet.sock"


@on_uvloop
async def test_kubelet_is_addressed_as_localhost(socket: Path) -> None:
    sent = asyncio.get_running_loop().create_future()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # An empty SETTINGS frame: gRPC sends its request only after that.
        writer.write(b"\x00\x00\x00\x04\x00\x00\x00\x00\x00")
        data = b""
        while b"Register" not in data or b"localhost" not in data:
            if not (more := await reader.read(65536)):
                break
            data += more
        writer.close()
        await writer.wait_closed()
        sent.set_result(data)

    async with await asyncio.start_unix_server(take, socket):
        with pytest.raises(RegistrationError):
            await register(socket, REQUEST)
        data = await sent
    assert b"/v1beta1.Registration/Register" in data
    assert b":authority\x09localhost" in data


@on_uvloop
async def test_a_kubelet_that_never_answers_is_given_up(socket: Path) -> None:
    with sockets.socket(sockets.AF_UNIX) as silent:
        silent.bind(str(socket))
        silent.listen()
        with pytest.raises(RegistrationError, match="DEADLINE_EXCEEDED"):
            await register(socket, REQUEST, deadline=0.05)


@on_uvloop
async def test_a_kubelet_that_is_not_there_is_a_typed_error(socket: Path) -> None:
    with pytest.raises(RegistrationError, match=rf"kubelet at {socket}: UNAVAILABLE"):
        await register(socket, REQUEST)


@on_uvloop
async def test_a_refusal_says_why(socket: Path) -> None:
    async with ScriptedKubelet(socket.parent) as kubelet:
        kubelet.refusals = ["the endpoint is not supported"]
        with pytest.raises(RegistrationError, match="UNKNOWN: the endpoint is not supported"):
            await register(socket, REQUEST)
