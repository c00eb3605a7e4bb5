"""The socket itself: how it comes, what it replaces, and that it goes."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from pathlib import Path

import pytest

from tessera.node.kubelet import service
from tessera.node.kubelet.endpoint import Endpoint, ServingError, SocketState, SocketWatch, file_id
from tessera.node.kubelet.service import DevicePluginService
from tessera.node.watched_value import WatchedValue
from tests.support.event_loops import in_fake_time, on_uvloop
from tests.support.kubelet import ScriptedAllocator, fleet, settings_in

FAR_OFF_S = 3600.0


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


# -- real folders in fake time


def bind(path: Path) -> None:
    """A socket that stays when nobody listens any more."""
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def watch(folder: Path, *, look_every: float = 3.0) -> SocketWatch:
    return SocketWatch(own=folder / "own.sock", kubelet=folder / "kubelet.sock", look_every=look_every)


async def changed(watcher: SocketWatch, seen: SocketState) -> SocketState:
    return await watcher.other_than(seen, within=FAR_OFF_S)


@in_fake_time
async def test_what_is_there_is_seen_and_what_is_not_is_none(folder: Path) -> None:
    bind(folder / "kubelet.sock")
    watcher = watch(folder)
    sight = watcher.look()
    assert sight.own is None
    assert sight.kubelet == file_id(folder / "kubelet.sock")
    assert sight.folder == (folder.stat().st_dev, folder.stat().st_ino)


@in_fake_time
async def test_a_socket_that_comes_or_goes_is_seen_soon(folder: Path) -> None:
    watcher = watch(folder)
    nothing = watcher.look()
    waiting = asyncio.create_task(changed(watcher, nothing))
    await asyncio.sleep(0)
    bind(folder / "kubelet.sock")
    there = await waiting
    assert there.kubelet is not None
    (folder / "kubelet.sock").unlink()
    assert await changed(watcher, there) == nothing


@in_fake_time
async def test_a_socket_that_another_one_was_moved_over_is_another(folder: Path) -> None:
    bind(folder / "own.sock")
    watcher = watch(folder)
    before = watcher.look()
    bind(folder / "next.sock")
    (folder / "next.sock").rename(folder / "own.sock")
    after = await changed(watcher, before)
    assert after.own is not None
    assert after.own != before.own


@in_fake_time
async def test_a_change_of_its_rights_does_not_make_a_socket_another(folder: Path) -> None:
    bind(folder / "kubelet.sock")
    watcher = watch(folder)
    before = watcher.look()
    (folder / "kubelet.sock").chmod(0o600)
    assert watcher.look() == before


@in_fake_time
async def test_without_any_change_the_same_is_seen_when_the_time_is_over(folder: Path) -> None:
    watcher = watch(folder)
    sight = watcher.look()
    assert await watcher.other_than(sight, within=30.0) == sight


@in_fake_time
async def test_a_folder_that_is_not_there_yet_is_waited_for(folder: Path) -> None:
    missing = folder / "device-plugins"
    watcher = watch(missing)
    nothing = watcher.look()
    assert nothing == SocketState(None, None, None)
    asyncio.get_running_loop().call_later(100.0, missing.mkdir)
    there = await watcher.other_than(nothing, within=FAR_OFF_S)
    assert there.folder is not None


@in_fake_time
async def test_a_folder_that_was_replaced_is_watched_again(folder: Path) -> None:
    plugins, old = folder / "device-plugins", folder / "old"
    plugins.mkdir()
    watcher = watch(plugins)
    first = watcher.look()
    plugins.rename(old)
    plugins.mkdir()
    second = await changed(watcher, first)
    assert second.folder != first.folder
    waiting = asyncio.create_task(changed(watcher, second))
    await asyncio.sleep(0)
    bind(plugins / "kubelet.sock")
    assert (await waiting).kubelet is not None


@in_fake_time
async def test_a_folder_that_is_deleted_and_made_again_is_found_again(folder: Path) -> None:
    plugins = folder / "device-plugins"
    plugins.mkdir()
    watcher = watch(plugins)
    first = watcher.look()
    plugins.rmdir()
    gone = await watcher.other_than(first, within=FAR_OFF_S)
    assert gone == SocketState(None, None, None)
    plugins.mkdir()
    bind(plugins / "own.sock")
    assert (await watcher.other_than(gone, within=FAR_OFF_S)).own is not None


@in_fake_time
async def test_kubelets_socket_may_be_elsewhere_or_nowhere(folder: Path) -> None:
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    watcher = SocketWatch(own=folder / "own.sock", kubelet=elsewhere / "kubelet.sock")
    nothing = watcher.look()
    bind(elsewhere / "kubelet.sock")
    assert (await changed(watcher, nothing)).kubelet is not None
    watcher = SocketWatch(own=folder / "own.sock", kubelet=None)
    assert (watcher.look()).kubelet is None


def test_what_may_not_be_seen_is_not_there(folder: Path) -> None:
    assert file_id(folder / "x" / "y") is None
    (folder / "plain").touch()
    assert file_id(folder / "plain" / "y") is None
    assert file_id(folder / ("n" * 300)) is None
    os.symlink(folder / "loop", folder / "loop")
    assert file_id(folder / "loop") is None
