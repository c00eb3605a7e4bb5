"""The socket itself: how it comes, what it replaces, and that it goes."""

from __future__ import annotations

import asyncio
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tessera.node.kubelet import service
from tessera.node.kubelet.endpoint import Endpoint, ServingError, file_id
from tessera.node.kubelet.service import DevicePluginService
from tessera.node.watched_value import WatchedValue
from tests.support.event_loops import on_uvloop
from tests.support.kubelet.allocators import ScriptedAllocator
from tests.support.kubelet.cards import fleet
from tests.support.kubelet.folders import plugins_folder, settings_in


@pytest.fixture
def folder() -> Iterator[Path]:
    with plugins_folder() as path:
        yield path


def make(folder: Path, name: str = "nvidia-gpu.sock") -> Endpoint:
    service = DevicePluginService(settings_in(folder), WatchedValue(fleet(1)), ScriptedAllocator())
    return Endpoint(folder / name, service)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@on_uvloop
async def test_the_socket_is_for_its_owner_only_and_gone_afterwards(folder: Path) -> None:
    serving = make(folder)
    await serving.serve()
    assert names(folder) == ["nvidia-gpu.sock"]
    mode = serving.path.stat().st_mode
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600
    assert serving.file == file_id(serving.path)
    assert await serving.is_answered()
    await serving.stop()
    assert names(folder) == []
    assert serving.file is None
    assert not await serving.is_answered()
    await serving.stop()


@on_uvloop
async def test_a_dead_socket_of_an_earlier_run_is_replaced(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(folder / "nvidia-gpu.sock"))
    serving = make(folder)
    assert not await serving.is_answered()
    await serving.serve()
    assert await serving.is_answered()
    await serving.stop()


@on_uvloop
async def test_serving_again_replaces_what_was_served_before(folder: Path) -> None:
    serving = make(folder)
    await serving.serve()
    before = serving.file
    serving.path.unlink()
    await serving.serve()
    assert serving.file not in (None, before)
    assert await serving.is_answered()
    await serving.stop()
    assert names(folder) == []


@on_uvloop
async def test_a_socket_that_a_newer_agent_put_there_is_not_removed(folder: Path) -> None:
    older, newer = make(folder), make(folder)
    await older.serve()
    await newer.serve()
    await older.stop()
    assert await newer.is_answered()
    await newer.stop()
    assert names(folder) == []


@on_uvloop
async def test_what_is_not_a_socket_is_left_alone(folder: Path) -> None:
    (folder / "nvidia-gpu.sock").write_text("precious")
    serving = make(folder)
    with pytest.raises(ServingError, match="the path exists and is not a socket"):
        await serving.serve()
    assert (folder / "nvidia-gpu.sock").read_text() == "precious"
    assert names(folder) == ["nvidia-gpu.sock"]
    assert serving.file is None


@on_uvloop
async def test_a_folder_that_is_not_there_is_a_typed_error_and_may_come_later(folder: Path) -> None:
    serving = make(folder / "later")
    with pytest.raises(ServingError, match=r"cannot serve on .*later"):
        await serving.serve()
    (folder / "later").mkdir()
    await serving.serve()
    assert await serving.is_answered()
    await serving.stop()


@on_uvloop
async def test_a_path_too_long_for_a_socket_is_a_typed_error(folder: Path) -> None:
    serving = make(folder, "n" * 150)
    with pytest.raises(ServingError):
        await serving.serve()
    assert names(folder) == []


@on_uvloop
async def test_a_path_may_have_letters_that_mean_something_in_an_address(folder: Path) -> None:
    odd = folder / "50% odd? #1"
    odd.mkdir()
    serving = make(odd)
    await serving.serve()
    assert await serving.is_answered()
    await serving.stop()
    assert names(odd) == []


@on_uvloop
async def test_a_service_that_does_not_answer_itself_is_not_served(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(service, "plugin_options", fail)
    serving = make(folder)
    with pytest.raises(ServingError, match="UNKNOWN"):
        await serving.serve()
    assert names(folder) == []


@on_uvloop
async def test_a_start_that_is_cancelled_in_between_leaves_nothing_behind(folder: Path) -> None:
    for turns in range(12):
        serving = make(folder)
        starting = asyncio.create_task(serving.serve())
        for _ in range(turns):
            await asyncio.sleep(0)
        starting.cancel()
        await asyncio.wait([starting])
        await serving.stop()
        assert names(folder) == []


@on_uvloop
async def test_a_socket_that_cannot_be_removed_does_not_keep_the_service_from_stopping(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving = make(folder)
    await serving.serve()

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError("read-only file system")

    monkeypatch.setattr(Path, "unlink", refuse)
    await serving.stop()
    assert not await serving.is_answered()
