"""The demo and the commands that ask a cluster need nothing that only Linux has."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from tests.integration import like_a_mac

PROGRAM = like_a_mac.__file__
STORY_STEPS = 8
PATIENCE_S = 120.0


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A demo whose story has been told, and the variables with which commands find it."""
    log = tmp_path_factory.mktemp("demo") / "log"
    arguments = [sys.executable, PROGRAM, "demo", "-o", "json", "--log-file", str(log)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            start = json.loads(process.stdout.readline())
            assert start["kind"] == "DemoStarted"
            steps = [json.loads(process.stdout.readline())["number"] for _ in range(STORY_STEPS)]
            assert steps[-1] == STORY_STEPS
            yield {**os.environ, "KUBECONFIG": start["kubeconfig"], "DEMO_LOG": str(log)}
        finally:
            process.terminate()


ONE_AFTER_THE_OTHER = """
import json, runpy, sys
runpy.run_path(sys.argv[1])["hide_linux"]()
from click.testing import CliRunner
from tessera.cli import main
answers = [CliRunner().invoke(main, arguments) for arguments in json.load(sys.stdin)]
print(json.dumps([[answer.exit_code, answer.output] for answer in answers]))
"""

POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "one", "namespace": "default"},
    "spec": {
        "containers": [
            {
                "name": "main",
                "image": "registry.example/app:1",
                "resources": {"limits": {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 100}},
            }
        ]
    },
}


def test_commands_ask_the_demo(demo: dict[str, str], tmp_path: Path) -> None:
    pod = tmp_path / "pod.yaml"
    pod.write_text(json.dumps(POD))
    commands = {
        "default/train-2: placed on h100-1": ["explain", "train-2"],
        "total: 17 cards on 6 nodes": ["top"],
        "kind: TesseraSnapshot": ["snapshot", "-o", "yaml"],
        "0 broken": ["doctor"],
        "default/one: would go to": ["simulate", "pod", "-f", str(pod)],
    }
    ended = subprocess.run(
        [sys.executable, "-c", ONE_AFTER_THE_OTHER, PROGRAM],
        input=json.dumps(list(commands.values())),
        env=demo,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    for said, (code, text) in zip(commands, json.loads(ended.stdout), strict=True):
        assert (code, said in text) == (0, True), text


def test_the_page_is_served(demo: dict[str, str]) -> None:
    with subprocess.Popen(
        [sys.executable, PROGRAM, "dashboard"], env=demo, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        try:
            address = _address(process.stdout)
            with urllib.request.urlopen(address, timeout=PATIENCE_S) as page:
                assert page.status == 200
        finally:
            process.terminate()


def _address(lines: IO[str]) -> str:
    for line in lines:
        for word in line.split():
            if word.startswith("http://127.0.0.1:"):
                return word.rstrip(".,;")
    raise AssertionError("it ended without an address")


def test_what_linux_alone_has_is_hidden() -> None:
    """Otherwise the tests above show nothing."""
    script = (
        "import runpy; runpy.run_path(%r)['hide_linux']();"
        "import os, select, selectors, socket, time;"
        "print([hasattr(os, 'memfd_create'), hasattr(select, 'epoll'), hasattr(selectors, 'EpollSelector'),"
        " hasattr(socket, 'TCP_USER_TIMEOUT'), hasattr(time, 'CLOCK_BOOTTIME'), os.path.exists('/proc/self')])"
    )
    found = subprocess.run([sys.executable, "-c", script % PROGRAM], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == str([False] * 6)


def test_the_lines_of_agents_in_the_log_name_their_node(demo: dict[str, str]) -> None:
    lines = [json.loads(line) for line in Path(demo["DEMO_LOG"]).read_text().splitlines()]
    found = [line for line in lines if line["message"] == "card found"]
    assert {line.get("node") for line in found} == {"a100-1", "a100-2", "h100-1", "l4-1", "mig-1"}
    assert not any("node" in line for line in lines if line["message"] == "listening")
