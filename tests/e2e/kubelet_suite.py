"""The suite of a real kubelet (`tests/e2e/node`), started beside the other tests because it mostly waits.

Each part has a node of its own. It runs in a process of its own, because namespaces are of whole processes, and in a
session of its own, so that it is told of an interruption once and has time to clean up.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.e2e.node.release import SUITES

ROOT = Path(__file__).resolve().parents[2]
COMMAND = (sys.executable, "-m", "tests.e2e.node", "-v", "-rsx")
_FILES = sorted(Path(__file__).with_name("node").glob("test_*.py"))
PARTS = {
    "pods and claims": [file for file in _FILES if file.name not in SUITES],
    "the chart": [file for file in _FILES if file.name in SUITES],
}
END_S = 60.0
"""for it to clean up after an interruption"""


class KubeletSuite:
    """One run. Its output goes to a file, so that it never waits for a reader."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._output = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        self._running = subprocess.Popen(
            [*COMMAND, *(str(file.relative_to(ROOT)) for file in files)],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def wait(self) -> tuple[int, list[str]]:
        """Exit code and lines, once it has ended."""
        code = self._running.wait()
        self._output.seek(0)
        return code, self._output.read().splitlines()

    def stop(self) -> None:
        """Ends it if it still runs."""
        if self._running.poll() is None:
            self._running.send_signal(signal.SIGTERM)
            try:
                self._running.wait(END_S)
            except subprocess.TimeoutExpired:
                self._running.kill()
                self._running.wait()
        self._output.close()
