"""The contract of the embedded API server, identical, on a real one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.e2e.conftest import Tell
from tests.e2e.control_plane import ControlPlane

ROOT = Path(__file__).resolve().parents[2]


WORKLOADS = tuple(f"{kind}-controller" for kind in ("deployment", "replicaset", "statefulset", "job"))


@pytest.fixture
def apiserver(tools: Mapping[str, Path], tmp_path: Path) -> Iterator[ControlPlane]:
    """Without controllers of workloads: what they do between two requests is no part of the contract."""
    found = ControlPlane(tmp_path, tools, without=WORKLOADS)
    try:
        found.start()
        yield found
    finally:
        found.stop()


def test_the_contract_holds_on_a_real_apiserver(apiserver: ControlPlane, tools: Mapping[str, Path], tell: Tell) -> None:
    """In a process of its own: a suite that chooses its server by the environment must not see ours."""
    path = os.pathsep.join((str(tools["kubectl"].parent), os.environ["PATH"]))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "tests/contract", "-q", "-rs", "-p", "no:cacheprovider"],
        cwd=ROOT,
        env={**os.environ, "PATH": path, "TESSERA_CONTRACT_KUBECONFIG": str(apiserver.kubeconfig())},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "skipped" not in done.stdout, done.stdout
    tell(f"{'contract suite':<24} {done.stdout.splitlines()[-1]}")
