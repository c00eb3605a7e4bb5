"""All obstacles to a kubelet on this machine are reported at once, with remedies."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.e2e.node import machine

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="kubelet runs on Linux only")


@LINUX
def test_every_obstacle_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "PLACES_OF_PROGRAMS", (str(tmp_path),))
    monkeypatch.setattr(machine, "CNI_FOLDERS", (tmp_path,))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = machine.obstacles()
    assert [text.partition(" here")[0] for text in found] == [
        *(f"no {name}" for name in machine.PROGRAMS),
        "no runc",
        "no network plugins ptp, host-local, loopback",
        "no static busybox",
        "containers need root",
    ]
    assert sum("make packages" in text for text in found) == 3


@LINUX
def test_a_program_that_needs_libraries_is_not_static(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\n")
    assert not machine.is_static(script)
    assert not machine.is_static(Path("/bin/sh").resolve())
