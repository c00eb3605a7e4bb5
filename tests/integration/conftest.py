"""Times that integration tests shorten, because they pass for real."""

from __future__ import annotations

import pytest

from tessera.kube.backoff import Backoff
from tessera.node.health import hardware_watch
from tessera_lab.sandbox.scheduling import queue

BACKOFF = Backoff(initial=0.1, cap=10.0)
SCAN_GAP_S = 0.1


@pytest.fixture(autouse=True)
def _impatient_kube_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod whose bind failed is tried again soon, as with `podInitialBackoffSeconds` of a kube-scheduler."""
    monkeypatch.setattr(queue, "BACKOFF", BACKOFF)


@pytest.fixture(autouse=True)
def _frequent_scans(monkeypatch: pytest.MonkeyPatch) -> None:
    """A card that changed its health is looked at again soon."""
    monkeypatch.setattr(hardware_watch, "GAP_S", SCAN_GAP_S)
