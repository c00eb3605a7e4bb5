"""What is said to the MPS control daemon, and what counts as an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tessera.host.call_thread import AsyncComputeModes
from tessera.node.modes.mps.control import ControlError, MpsControl, MpsProgram
from tessera.node.modes.mps.daemon import CardDir, MpsDaemon
from tests.support.fake_mps import A, FakeModes, FakeMps, limits


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeMps]:
    found = FakeMps(tmp_path, tmp_path / "mps")
    yield found
    found.close()


async def begin(fake: FakeMps) -> MpsControl:
    """A daemon that runs; nobody listens for its end."""
    modes = AsyncComputeModes(FakeModes())
    daemon = MpsDaemon(CardDir(fake.root, A), A, program=fake.program, modes=modes)
    await daemon.start()
    daemon.close()
    await modes.close()
    return daemon.control


def control(fake: FakeMps, program: MpsProgram | None = None) -> MpsControl:
    return MpsControl(program or fake.program, pipes=fake.root / A / "pipe", uuid=A)


async def test_a_new_daemon_has_no_servers_and_no_clients(fake: FakeMps) -> None:
    speaking = await begin(fake)
    assert (await speaking.servers(), await speaking.client_count()) == ([], 0)


async def test_clients_of_all_servers_are_counted(fake: FakeMps) -> None:
    speaking = await begin(fake)
    fake.serve(7, 8, server=100)
    fake.serve(9, server=101)
    assert (await speaking.servers(), await speaking.clients(100)) == ([100, 101], [7, 8])
    assert await speaking.client_count() == 3


async def test_a_server_that_is_gone_has_no_clients(fake: FakeMps) -> None:
    assert await (await begin(fake)).clients(4711) == []


async def test_a_ceiling_is_for_later_servers_and_for_those_that_run(fake: FakeMps) -> None:
    speaking = await begin(fake)
    await speaking.set_ceiling(limits(2000, 20))
    fake.serve(7)
    await speaking.set_ceiling(limits(8000, 90))
    assert (fake.default(), fake.server_limits()) == (("8000M", 90), ("8000M", 90))


async def test_a_server_that_ends_meanwhile_is_no_problem(fake: FakeMps) -> None:
    speaking = await begin(fake)
    fake.script("says-get_server_list", "4711")
    await speaking.set_ceiling(limits(8000, 90))
    assert fake.default() == ("8000M", 90)


async def test_a_daemon_without_clients_can_be_asked_to_quit(fake: FakeMps) -> None:
    speaking = await begin(fake)
    await speaking.quit()
    with pytest.raises(ControlError, match="Cannot find MPS control daemon process"):
        await speaking.servers()


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        ("set_default_device_pinned_mem_limit", "Insufficient privileges for UID 1000."),
        ("set_default_active_thread_percentage", "50.0"),
        ("set_default_active_thread_percentage", "Insufficient privileges for UID 1000."),
        ("set_default_active_thread_percentage", ""),
        ("set_device_pinned_mem_limit", "Unknown device"),
        ("set_active_thread_percentage", "nan"),
        ("get_server_list", "12 abc"),
        ("get_server_list", "\u0661\u0662"),
        ("get_server_list", "-5"),
    ],
)
async def test_a_refusal_in_words_is_no_success(fake: FakeMps, command: str, answer: str) -> None:
    speaking = await begin(fake)
    fake.serve(7)
    fake.script(f"says-{command}", answer)
    with pytest.raises(ControlError):
        await speaking.set_ceiling(limits(8000, 90))


async def test_a_list_of_clients_that_is_none_is_an_error(fake: FakeMps) -> None:
    speaking = await begin(fake)
    fake.script("says-get_client_list", "Insufficient privileges")
    with pytest.raises(ControlError, match="not a list of process ids"):
        await speaking.clients(100)


async def test_without_a_daemon_the_program_says_so(fake: FakeMps) -> None:
    CardDir(fake.root, A).prepare()
    with pytest.raises(ControlError, match=r"Cannot find MPS control daemon process.*exit status 1"):
        await control(fake).servers()


async def test_a_program_that_hangs_is_given_up_and_ended(fake: FakeMps) -> None:
    CardDir(fake.root, A).prepare()
    fake.script("deaf")
    with pytest.raises(ControlError, match=r"get_server_list: no answer within 0\.05 s"):
        await control(fake, replace(fake.program, answer_s=0.05)).servers()


async def test_who_gives_up_asking_ends_the_program(fake: FakeMps) -> None:
    CardDir(fake.root, A).prepare()
    fake.script("deaf")
    asking = asyncio.create_task(control(fake).servers())
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking


async def test_a_program_that_is_not_there_is_an_error(fake: FakeMps) -> None:
    with pytest.raises(ControlError, match="cannot run /nowhere/mps"):
        await control(fake, MpsProgram(("/nowhere/mps",))).servers()


def test_the_agents_own_cuda_variables_are_not_the_daemons() -> None:
    program = MpsProgram(environ={"PATH": "/bin", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1G"})
    assert program.environment(CUDA_VISIBLE_DEVICES=A) == {"PATH": "/bin", "CUDA_VISIBLE_DEVICES": A}
