from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tessera.services import file_watch
from tessera.services.file_watch import FileWatch
from tests.support.event_loops import in_real_time


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_watch, "CHECK_EVERY_S", 0.001)


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("change", ["written", "replaced", "removed", "created"])
@in_real_time
async def test_a_changed_file_is_noticed(change: str, tmp_path: Path) -> None:
    path, other = tmp_path / "config", tmp_path / "other"
    if change != "created":
        path.write_text("a")
    watch = FileWatch(lambda: [str(path)])
    await watch.start()
    waiting = asyncio.create_task(watch.wait_for_change())
    await asyncio.sleep(0)
    if change == "removed":
        path.unlink()
    elif change == "replaced":
        other.write_text("b")
        other.rename(path)
    else:
        path.write_text("longer")
    assert await waiting is False


@in_real_time
async def test_a_requested_reload_does_not_wait_for_a_change(tmp_path: Path) -> None:
    watch = FileWatch(lambda: [str(tmp_path / "config")])
    await watch.start()
    watch.request_reload()
    assert await watch.wait_for_change() is True


@pytest.mark.usefixtures("often")
@in_real_time
async def test_one_change_is_noticed_once(tmp_path: Path) -> None:
    path = tmp_path / "config"
    watch = FileWatch(lambda: [str(path)])
    await watch.start()
    path.write_text("a")
    assert await watch.wait_for_change() is False
    again = asyncio.create_task(watch.wait_for_change())
    await asyncio.sleep(0)
    assert not again.done()
    watch.request_reload()
    assert await again is True
