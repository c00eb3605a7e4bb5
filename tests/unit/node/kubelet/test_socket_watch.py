"""Real folders; in fake time where only the look from time to time can help."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import asyncinotify
import pytest

from tessera.node.kubelet import socket_watch as watching
from tessera.node.kubelet.socket_watch import SocketState, SocketWatch, file_id
from tests.support.kubelet.folders import plugins_folder
from tests.support.logs import captured
from tests.support.looping import in_fake_time, on_uvloop

FAR_OFF_S = 3600.0
"""nothing in a test lasts so long: only an event of the file system can have woken it"""


@pytest.fixture
def folder() -> Iterator[Path]:
    with plugins_folder() as path:
        yield path


def bind(path: Path) -> None:
    """A socket that stays when nobody listens any more."""
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def watch(folder: Path, *, look_every: float = FAR_OFF_S) -> SocketWatch:
    return SocketWatch(own=folder / "own.sock", kubelet=folder / "kubelet.sock", look_every=look_every)


async def changed(watcher: SocketWatch, seen: SocketState) -> SocketState:
    async with asyncio.timeout(20):
        return await watcher.other_than(seen, within=FAR_OFF_S)


@on_uvloop
async def test_what_is_there_is_seen_and_what_is_not_is_none(folder: Path) -> None:
    bind(folder / "kubelet.sock")
    with watch(folder) as watcher:
        sight = await watcher.look()
    assert sight.own is None
    assert sight.kubelet == file_id(folder / "kubelet.sock")
    assert sight.folder == (folder.stat().st_dev, folder.stat().st_ino)


@on_uvloop
async def test_a_socket_that_comes_or_goes_is_seen_at_once(folder: Path) -> None:
    with watch(folder) as watcher:
        nothing = await watcher.look()
        waiting = asyncio.create_task(changed(watcher, nothing))
        await asyncio.sleep(0)
        bind(folder / "kubelet.sock")
        there = await waiting
        assert there.kubelet is not None
        (folder / "kubelet.sock").unlink()
        assert await changed(watcher, there) == nothing


@on_uvloop
async def test_a_socket_that_another_one_was_moved_over_is_another(folder: Path) -> None:
    bind(folder / "own.sock")
    with watch(folder) as watcher:
        before = await watcher.look()
        bind(folder / "next.sock")
        (folder / "next.sock").rename(folder / "own.sock")
        after = await changed(watcher, before)
        assert after.own is not None
        assert after.own != before.own


@on_uvloop
async def test_a_change_of_its_rights_does_not_make_a_socket_another(folder: Path) -> None:
    bind(folder / "kubelet.sock")
    with watch(folder) as watcher:
        before = await watcher.look()
        (folder / "kubelet.sock").chmod(0o600)
        assert await watcher.look() == before


@on_uvloop
async def test_what_others_do_in_the_folder_is_no_news(folder: Path) -> None:
    with watch(folder) as watcher:
        nothing = await watcher.look()
        waiting = asyncio.create_task(changed(watcher, nothing))
        for name in ("kubelet_internal_checkpoint", "other.sock"):
            (folder / name).touch()
            (folder / name).unlink()
        bind(folder / "own.sock")
        assert (await waiting).own is not None


@in_fake_time
async def test_without_any_change_the_same_is_seen_when_the_time_is_over(folder: Path) -> None:
    with watch(folder, look_every=3.0) as watcher:
        sight = await watcher.look()
        assert await watcher.other_than(sight, within=30.0) == sight


@in_fake_time
async def test_a_folder_that_is_not_there_yet_is_waited_for(folder: Path) -> None:
    missing = folder / "device-plugins"
    with watch(missing, look_every=3.0) as watcher:
        nothing = await watcher.look()
        assert nothing == SocketState(None, None, None)
        asyncio.get_running_loop().call_later(100.0, missing.mkdir)
        there = await watcher.other_than(nothing, within=FAR_OFF_S)
        assert there.folder is not None


@on_uvloop
async def test_a_folder_that_was_replaced_is_watched_again(folder: Path) -> None:
    plugins, old = folder / "device-plugins", folder / "old"
    plugins.mkdir()
    with watch(plugins) as watcher:
        first = await watcher.look()
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
    with watch(plugins, look_every=3.0) as watcher:
        first = await watcher.look()
        plugins.rmdir()
        gone = await watcher.other_than(first, within=FAR_OFF_S)
        assert gone == SocketState(None, None, None)
        plugins.mkdir()
        bind(plugins / "own.sock")
        assert (await watcher.other_than(gone, within=FAR_OFF_S)).own is not None


@in_fake_time
async def test_a_node_without_inotify_is_looked_at_from_time_to_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise OSError("too many instances")

    monkeypatch.setattr(watching, "Inotify", refuse)
    with captured() as logs, watch(folder, look_every=3.0) as watcher:
        nothing = await watcher.look()
        asyncio.get_running_loop().call_later(100.0, bind, folder / "kubelet.sock")
        assert (await watcher.other_than(nothing, within=FAR_OFF_S)).kubelet is not None
    assert logs.of("no inotify; polling instead")


@in_fake_time
async def test_a_node_without_free_watches_is_looked_at_from_time_to_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no space for watches")

    monkeypatch.setattr(asyncinotify.Inotify, "add_watch", refuse)
    with watch(folder, look_every=3.0) as watcher:
        nothing = await watcher.look()
        asyncio.get_running_loop().call_later(100.0, bind, folder / "kubelet.sock")
        assert (await watcher.other_than(nothing, within=FAR_OFF_S)).kubelet is not None


@on_uvloop
async def test_kubelets_socket_may_be_elsewhere_or_nowhere(folder: Path) -> None:
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    with SocketWatch(own=folder / "own.sock", kubelet=elsewhere / "kubelet.sock", look_every=FAR_OFF_S) as watcher:
        nothing = await watcher.look()
        bind(elsewhere / "kubelet.sock")
        assert (await changed(watcher, nothing)).kubelet is not None
    with SocketWatch(own=folder / "own.sock", kubelet=None) as watcher:
        assert (await watcher.look()).kubelet is None


def test_what_may_not_be_seen_is_not_there(folder: Path) -> None:
    assert file_id(folder / "x" / "y") is None
    (folder / "plain").touch()
    assert file_id(folder / "plain" / "y") is None
    assert file_id(folder / ("n" * 300)) is None
    os.symlink(folder / "loop", folder / "loop")
    assert file_id(folder / "loop") is None
