"""MPS daemons that another process starts for the agent, so that they outlive it."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from tessera.node.modes.mps.control import ControlError, ProcessIdentity
from tessera.node.modes.mps.daemon import CardDir
from tessera.node.modes.mps.launcher import SOCKET, DaemonStarter, LaunchAnswer, SocketLauncher, _run
from tests.support.fake_mps import A, is_running
from tests.support.mps_node import DEFAULT, EXCLUSIVE, ONLY_A, MpsNode, claim, given
from tests.support.scheduler_process import until


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[MpsNode]:
    found = MpsNode(tmp_path)
    found.settings = replace(found.settings, external_mps_daemons=True)
    yield found
    await found.close()


@asynccontextmanager
async def starter(node: MpsNode) -> AsyncIterator[DaemonStarter]:
    made, stop = DaemonStarter(node.fake.root, node.fake.program), asyncio.Event()
    serving = asyncio.create_task(made.run(stop))
    await until(lambda: made.is_listening)
    try:
        yield made
    finally:
        stop.set()
        await serving


async def asked(node: MpsNode, text: bytes) -> LaunchAnswer:
    reader, writer = await asyncio.open_unix_connection(node.fake.root / SOCKET)
    writer.write(text)
    answer = msgspec.json.decode(await reader.readline(), type=LaunchAnswer)
    writer.close()
    return answer


def prepared(node: MpsNode) -> CardDir:
    card_dir = CardDir(node.fake.root, A)
    card_dir.prepare()
    return card_dir


async def test_an_agent_that_ends_leaves_the_daemon_and_the_next_one_takes_it_over(node: MpsNode) -> None:
    async with starter(node):
        first = node.agent()
        await first.start(ONLY_A)
        await given(first, claim((A, 3000, 30)))
        (pid,) = node.fake.running()
        assert first.started == {A: 1}
        await first.stop()
        assert is_running(pid)
        second = node.agent()
        await second.start(ONLY_A)
        await given(second, claim((A, 2000, 20), pod="later"))
        assert (second.started, second.problems, node.fake.running()) == ({A: 0}, {}, [pid])
    # They also outlive the process that started them, as far as the container runtime lets them.
    assert is_running(pid)


async def test_the_agent_keeps_everything_but_the_start(node: MpsNode) -> None:
    async with starter(node):
        agent = node.agent()
        await agent.start(ONLY_A)
        await given(agent, claim((A, 3000, 30)))
        assert (node.hardware.modes[A], node.fake.default()) == (EXCLUSIVE, ("3000M", 30))
        await agent.reconcile([], replace(ONLY_A, cards=()))
        await until(lambda: not node.fake.running())
        await until(lambda: node.hardware.modes[A] is DEFAULT)


async def test_a_daemon_that_died_is_started_again(node: MpsNode) -> None:
    async with starter(node) as made:
        before = (await made.start(prepared(node).path.name)).process
        assert before is not None
        await until(lambda: bool(node.fake.running()))
        node.fake.kill()
        await until(lambda: not node.fake.running())
        after = (await made.start(A)).process
        assert after is not None
        assert after != before


async def test_while_it_is_away_the_card_says_so_and_the_agent_starts_nothing_itself(node: MpsNode) -> None:
    agent = node.agent()
    await agent.start(ONLY_A)
    assert "`tessera mps-daemons` cannot be asked" in agent.problems[A]
    assert node.fake.started() == []
    async with starter(node):
        await until(lambda: not agent.problems)
        assert agent.started == {A: 1}


async def test_an_agent_that_asks_again_gets_the_same_daemon(node: MpsNode) -> None:
    card_dir = prepared(node)
    async with starter(node):
        launcher = SocketLauncher(node.fake.root)
        first = await launcher.launch(card_dir, A)
        assert isinstance(first, ProcessIdentity)
        assert await launcher.launch(card_dir, A) == first


async def test_a_daemon_that_ends_at_once_is_said_to(node: MpsNode) -> None:
    node.fake.script("no-start")
    async with starter(node):
        agent = node.agent()
        await agent.start(ONLY_A)
        assert "ended at once: no CUDA-capable device is detected" in agent.problems[A]


@pytest.mark.parametrize("uuid", ["", "..", "../x", "a/b", "x" * 200, "GPU 1"])
async def test_only_the_uuid_of_a_card_is_accepted(node: MpsNode, uuid: str) -> None:
    async with starter(node) as made:
        assert "is no uuid of a card" in (await made.start(uuid)).problem


async def test_a_card_whose_directory_the_agent_did_not_prepare_is_refused_with_the_reason(node: MpsNode) -> None:
    async with starter(node):
        with pytest.raises(ControlError, match="No such file or directory"):
            await SocketLauncher(node.fake.root).launch(CardDir(node.fake.root, A), A)


@pytest.mark.parametrize("text", [b"\n", b"{}\n", b"[1]\n", b'{"uuid": 1}\n', b"\xff\n", b"x" * 10_000 + b"\n"])
async def test_what_is_no_request_is_answered_and_ends_nothing(node: MpsNode, text: bytes) -> None:
    prepared(node)
    async with starter(node):
        assert (await asked(node, text)).problem.startswith("not a request: ")
        assert (await asked(node, b'{"uuid": "%s"}\n' % A.encode())).process is not None


async def test_only_the_same_user_may_connect(node: MpsNode) -> None:
    async with starter(node):
        await asked(node, b"\n")
        assert stat.S_IMODE(os.stat(node.fake.root / SOCKET).st_mode) == 0o600


async def test_where_it_cannot_listen_it_says_so_and_exits(node: MpsNode, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert await _run(tmp_path / "file", node.fake.program) == 1
