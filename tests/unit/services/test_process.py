from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from tessera.services import process as service_process
from tessera.services.process import FileWatch, run_until, signals
from tests.support.event_loops import in_real_time


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_process, "CHECK_EVERY_S", 0.001)


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


@in_real_time
async def test_signals_stop_and_reload_while_they_are_handled() -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    stopping, asked = asyncio.Event(), asyncio.Event()
    with signals(stopping, on_hangup=asked.set):
        os.kill(os.getpid(), signal.SIGHUP)
        await asked.wait()
        assert not stopping.is_set()
        os.kill(os.getpid(), signal.SIGTERM)
        await stopping.wait()
    assert {number: signal.getsignal(number) for number in before} == before


@in_real_time
async def test_work_that_is_stopped_ends_in_order() -> None:
    stopping, steps = asyncio.Event(), list[str]()

    async def work() -> None:
        stopping.set()
        try:
            await asyncio.Event().wait()
        finally:
            steps.append("cancelled")

    async def end(running: asyncio.Task[None]) -> None:
        assert not running.done()
        steps.append("in order")

    assert await run_until(stopping, work(), end=end) == (True, None)
    assert steps == ["in order", "cancelled"]


@in_real_time
async def test_work_that_fails_is_told_from_work_that_is_stopped() -> None:
    fault = RuntimeError("broken")

    async def work() -> None:
        raise fault

    assert await run_until(asyncio.Event(), work()) == (False, fault)
