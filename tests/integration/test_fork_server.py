"""A process that the fork server starts is like an executed one: arguments, environment, output, signals and end."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import tessera
from tests.support.commands import OWN_PORTS
from tests.support.fork_server import ForkedProcess, ForkServer

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it uses what only Linux has")


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    found = ForkServer()
    yield found
    found.stop()


def fork(server: ForkServer, log: Path, *command: str, **environ: str) -> ForkedProcess:
    with log.open("ab") as file:
        return server.fork(command, environ=environ, stdout=file.fileno(), stderr=file.fileno())


@pytest.mark.parametrize(
    ("command", "environ", "code", "said"),
    [
        (["--version"], {}, 0, f"tessera {tessera.__version__}"),
        (["scheduler", "--nonsense"], {}, 2, "No such option"),
        (["scheduler", "--print-config"], {"HAMI_NODELOCK_EXPIRE": "77s"}, 0, "1m17s"),
    ],
)
def test_arguments_environment_and_exit_code_are_its_own(
    server: ForkServer, tmp_path: Path, command: list[str], environ: dict[str, str], code: int, said: str
) -> None:
    log = tmp_path / "log"
    found = fork(server, log, *command, **environ)
    assert (found.wait(), said in log.read_text()) == (code, True), log.read_text()
    assert found.poll() == code


def start_scheduler(server: ForkServer, folder: Path) -> ForkedProcess:
    """One that looks for an apiserver in vain, and writes that to its log."""
    kubeconfig, log = folder / "kubeconfig", folder / "log"
    document = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }
    kubeconfig.write_text(json.dumps(document))
    return fork(server, log, "scheduler", f"--kubeconfig={kubeconfig}", "--webhook-bind=none", *OWN_PORTS)


def test_a_killed_process_shows_its_signal_and_another_goes_on(server: ForkServer, tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "other"]
    for folder in folders:
        folder.mkdir()
    one, other = [start_scheduler(server, folder) for folder in folders]
    one.kill()
    assert one.wait() == -signal.SIGKILL
    assert other.poll() is None
    other.kill()
    assert other.wait() == -signal.SIGKILL


def test_several_threads_may_wait_for_one_process(server: ForkServer, tmp_path: Path) -> None:
    found = fork(server, tmp_path / "log", "no-such-command")
    with ThreadPoolExecutor(8) as threads:
        waiting = [threads.submit(found.wait, 60.0) for _ in range(8)]
        assert {each.result() for each in waiting} == {2}
    assert found.poll() == 2


def test_nothing_that_it_forked_outlives_the_server(tmp_path: Path) -> None:
    server = ForkServer()
    found = start_scheduler(server, tmp_path)
    os.kill(found.pid, 0)
    server.stop()
    assert found.wait() == -signal.SIGKILL
