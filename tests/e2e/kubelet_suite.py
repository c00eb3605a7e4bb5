"""The suite of a real kubelet (`tests/e2e/node`), started beside the other tests because it mostly waits.

It runs in a process of its own, because namespaces are of whole processes, and in a session of its own, so that it is
told of an interruption once and has time to clean up.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMMAND = (sys.executable, "-m", "tests.e2e.node", "-v", "-rsx")
END_S = 60.0
"""for it to clean up after an interruption"""


class KubeletSuite:
    """One run. Its output goes to a file, so that it never waits for a reader."""

    def __init__(self, command: tuple[str, ...] = COMMAND) -> None:
        self._output = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        self._running = subprocess.Popen(
            command,
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
