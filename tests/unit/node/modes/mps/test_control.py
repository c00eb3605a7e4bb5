"""What is said to the MPS control daemon, and what counts as an answer."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from tessera.host.call_thread import AsyncComputeModes
from tessera.host.cards import CardFacts
from tessera.node.handover.assignments import Assignment, ObjectKey
from tessera.node.modes.mps.control import (
    PID_FILE,
    PIPES,
    ControlError,
    Limits,
    MpsControl,
    MpsProgram,
    ProcessIdentity,
    find_stray,
    identify,
    largest,
    limits_on,
    spawn,
    watch_process,
)
from tessera.node.modes.mps.daemon import CardDir, MpsDaemon
from tessera.wire.golang import INT32_MAX
from tessera.wire.pod_devices import DeviceEntry
from tests.support.fake_mps import A, B, FakeModes, FakeMps, card, limits

WAIT = (sys.executable, "-ISc", "import signal, sys; print('here', flush=True); signal.pause()")
OVER_S = 60.0


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


# -- limits of clients and the ceiling of a card


def claim(*slices: tuple[str, int, int]) -> Assignment:
    return Assignment(
        ObjectKey("ns", "pod", "uid"), 0, "main", tuple(DeviceEntry(u, "NVIDIA", m, c) for u, m, c in slices)
    )


@pytest.mark.parametrize(
    ("slices", "expected"),
    [
        ([(A, 3000, 30)], Limits(3000, 30)),
        ([(A, 3000, 0)], Limits(3000, 100)),
        ([(A, 3000, 100)], Limits(3000, 100)),
        ([(A, 3000, 250)], Limits(3000, 100)),
        ([(A, 3000, -5)], Limits(3000, 100)),
        ([(A, INT32_MAX, 1)], Limits(81920, 1)),
        ([(A, 3000, 30), (A, 1000, 20)], Limits(4000, 50)),
        ([(A, 3000, 30), (A, 1000, 0)], Limits(4000, 100)),
        ([(B, 500, 50), (A, 3000, 30)], Limits(3000, 30)),
        ([(A, 0, 30)], None),
        ([(A, -1, 30)], None),
        ([(B, 3000, 30)], None),
    ],
)
def test_a_container_may_use_what_it_was_granted_and_never_nothing(
    slices: list[tuple[str, int, int]], expected: Limits | None
) -> None:
    assert limits_on(claim(*slices), card()) == expected


def test_cores_are_not_limited_where_the_node_limits_none() -> None:
    assert limits_on(claim((A, 3000, 30)), card(), limit_cores=False) == Limits(3000, 100)


def test_a_card_that_does_not_say_its_memory_gives_what_was_granted() -> None:
    unknown = CardFacts(uuid=A, index=0, name="NVIDIA H200")
    assert limits_on(claim((A, 3000, 30)), unknown) == Limits(3000, 30)


@pytest.mark.parametrize(
    ("every", "expected"),
    [
        ([], None),
        ([Limits(1, 10)], Limits(1, 10)),
        ([Limits(1, 10), Limits(5, 2)], Limits(5, 10)),
        ([Limits(5, 2), Limits(1, 10), Limits(3, 3)], Limits(5, 10)),
    ],
)
def test_the_ceiling_is_the_largest_of_each(every: list[Limits], expected: Limits | None) -> None:
    assert largest(every) == expected


# -- processes that outlive the agent are known for certain, or not at all


@pytest.fixture
def started(tmp_path: Path) -> Iterator[ProcessIdentity]:
    os.mkfifo(tmp_path / "console")
    heard = os.open(tmp_path / "console", os.O_RDONLY | os.O_NONBLOCK)
    who = spawn(WAIT, environ={PIPES: str(tmp_path)}, console=tmp_path / "console")
    assert who is not None
    # Until a process runs its own program, it has no environment.
    assert select.select([heard], [], [], OVER_S)[0]
    assert os.read(heard, 100) == b"here\n"
    os.close(heard)
    yield who
    with suppress(ProcessLookupError):
        os.kill(who.pid, signal.SIGKILL)
    with suppress(ChildProcessError):
        os.waitpid(who.pid, 0)


async def ended(who: ProcessIdentity) -> list[str]:
    told: list[str] = []
    process = watch_process(who, lambda: told.append("ended"))
    assert process is not None
    os.kill(who.pid, signal.SIGKILL)
    async with asyncio.timeout(OVER_S):
        await process.ended.wait()
    process.close()
    process.kill()
    return told


async def test_a_process_has_a_session_of_its_own_and_no_input(started: ProcessIdentity) -> None:
    assert os.getsid(started.pid) == started.pid
    assert os.readlink(f"/proc/{started.pid}/fd/0") == os.devnull


async def test_the_end_of_a_child_is_heard_and_it_is_collected(started: ProcessIdentity) -> None:
    assert await ended(started) == ["ended"]
    assert not Path(f"/proc/{started.pid}").exists()


async def test_a_process_that_is_no_child_is_heard_of_too() -> None:
    code = (
        "import os, sys; r, w = os.pipe(); pid = os.fork()\n"
        "if pid == 0:\n os.close(w); os.close(1); os.setsid(); import signal; signal.pause()\n"
        "print(pid)"
    )
    parent = await asyncio.create_subprocess_exec(sys.executable, "-ISc", code, stdout=asyncio.subprocess.PIPE)
    output, _ = await parent.communicate()
    who = identify(int(output))
    assert who is not None
    assert await ended(who) == ["ended"]


async def test_another_process_with_the_same_id_is_not_taken_for_it(started: ProcessIdentity) -> None:
    assert watch_process(ProcessIdentity(started.pid, started.began - 1), lambda: None) is None
    assert identify(started.pid) == started


async def test_a_process_that_is_gone_is_not_found() -> None:
    gone = await asyncio.create_subprocess_exec(sys.executable, "-ISc", "")
    await gone.wait()
    assert identify(gone.pid) is None
    assert watch_process(ProcessIdentity(gone.pid, 1), lambda: None) is None


async def test_letting_go_of_a_process_leaves_it_running(started: ProcessIdentity) -> None:
    process = watch_process(started, lambda: None)
    assert process is not None
    process.close()
    process.close()
    assert identify(started.pid) == started


async def test_a_process_can_be_killed_and_nobody_else(started: ProcessIdentity) -> None:
    process = watch_process(started, lambda: None)
    assert process is not None
    process.kill()
    async with asyncio.timeout(OVER_S):
        await process.ended.wait()
    assert identify(started.pid) is None


def test_a_process_that_is_over_when_it_is_looked_for_is_collected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr("tessera.node.modes.mps.control.identify", asked.append)
    assert spawn(("true",), environ={}, console=tmp_path / "console") is None
    with pytest.raises(ChildProcessError):
        os.waitpid(asked[0], os.WNOHANG)


def test_a_program_that_does_not_exist_cannot_be_begun(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="nowhere"):
        spawn(("/nowhere/mps",), environ={}, console=tmp_path / "console")


def test_the_daemon_of_a_folder_is_found_by_its_own_environment(tmp_path: Path, started: ProcessIdentity) -> None:
    (tmp_path / PID_FILE).write_text(f"{started.pid}")
    assert find_stray(tmp_path) == started


@pytest.mark.parametrize("text", ["", "abc", "-1", "0", "999999999", "1", "{own}", "\u0661"])
def test_a_pid_file_that_names_somebody_else_is_not_believed(tmp_path: Path, text: str) -> None:
    (tmp_path / PID_FILE).write_text(text.format(own=os.getpid()))
    assert find_stray(tmp_path) is None
