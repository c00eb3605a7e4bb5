"""Real folders in fake time."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tessera.node.kubelet.endpoint import SocketState, SocketWatch, file_id
from tests.support.event_loops import in_fake_time
from tests.support.kubelet.folders import plugins_folder

FAR_OFF_S = 3600.0


@pytest.fixture
def folder() -> Iterator[Path]:
    with plugins_folder() as path:
        yield path


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
