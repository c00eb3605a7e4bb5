"""The suite of a real kubelet (`tests/e2e/node`), in namespaces of its own, where this machine allows it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.e2e.conftest import Tell
from tests.e2e.node import release
from tests.e2e.node.__main__ import IMPOSSIBLE

ROOT = Path(__file__).resolve().parents[2]
END_S = 60.0
"""for it to clean up after an interruption"""
SUMMARY = re.compile(r"=+ (\d.* in [\d.]+s.*?) =+")


def test_containers_of_a_real_kubelet_get_exactly_their_slices(pytestconfig: pytest.Config, tell: Tell) -> None:
    """Needs a process of its own, because namespaces are of whole processes; its tests are shown as they pass."""
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled() if capture else nullcontext():
        code, said = _run([sys.executable, "-m", "tests.e2e.node", "-v", "-rsx"])
    if code == IMPOSSIBLE:
        tell(f"{'kubelet suite':<24} skipped: {said[-1]}")
        pytest.skip(said[-1])
    found = [match[1] for line in said if (match := SUMMARY.fullmatch(line))]
    tell(f"{'kubelet suite':<24} {found[-1] if found else 'did not end'}")
    assert code == 0, "see its output above"
    skipped = [line for line in said if line.startswith("SKIPPED")]
    for line in skipped:
        tell(f"{'kubelet suite':<24} {line}")
    assert all(release.IMPOSSIBLE in line for line in skipped)
    assert bool(skipped) is ("skipped" in found[-1])


def _run(command: list[str]) -> tuple[int, list[str]]:
    """Exit code and lines, which are also shown at once. In a session of its own: it is told of an interruption here,
    once, and has time to clean up."""
    said: list[str] = []
    print(flush=True)
    with subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as running:
        try:
            assert running.stdout is not None
            for line in running.stdout:
                said.append(line.rstrip())
                print(f"    {said[-1]}", flush=True)
            return running.wait(), said
        except BaseException:
            running.send_signal(signal.SIGTERM)
            running.wait(END_S)
            raise
