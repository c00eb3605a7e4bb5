"""A command that does not come up fails the test that waits for it, at once and with the reason."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from tests.support.commands import Command, executed
from tests.support.event_loops import in_real_time

REASON = "error while loading shared libraries: libpython3.so"


@pytest.fixture
def _broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interpreter that cannot start."""
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\necho '{REASON}' >&2\nexit 127\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))


async def wait_for_an_event(command: Command) -> None:
    await command.said("ready")


async def wait_for_a_listener(command: Command) -> None:
    await command.address("extender")


async def wait_for_something_else(command: Command) -> None:
    await command.until(asyncio.Event().wait())


async def wait_for_its_end(command: Command) -> None:
    assert await command.end() == 0


@pytest.mark.usefixtures("_broken")
@pytest.mark.parametrize("wait", [wait_for_an_event, wait_for_a_listener, wait_for_something_else, wait_for_its_end])
@in_real_time
async def test_a_command_that_cannot_start_fails_its_test_and_says_why(wait: object) -> None:
    assert callable(wait)
    with pytest.raises(AssertionError) as failed:
        async with executed("scheduler") as command:
            await wait(command)
    assert REASON in "".join(failed.value.__notes__)
