"""Failpoints: off in every process but the one whose environment names them."""

from __future__ import annotations

import os
import signal

import pytest

from tessera.services.failpoints import VARIABLE, Failpoint, failpoint


@pytest.fixture
def signals(monkeypatch: pytest.MonkeyPatch) -> list[signal.Signals]:
    """The signals that this process would have sent to itself."""
    sent: list[signal.Signals] = []

    def send(pid: int, number: signal.Signals) -> None:
        assert pid == os.getpid()
        sent.append(number)

    monkeypatch.setattr(os, "kill", send)
    return sent


@pytest.mark.parametrize("environ", [{}, {VARIABLE: ""}, {VARIABLE: "bind.after-write=kill"}])
def test_a_point_that_is_not_named_does_nothing(environ: dict[str, str], signals: list[signal.Signals]) -> None:
    failpoint(Failpoint.BEFORE_WRITE, environ)()
    assert signals == []


def test_a_point_is_hit_once_at_its_count(signals: list[signal.Signals]) -> None:
    hit = failpoint(Failpoint.BEFORE_WRITE, {VARIABLE: "bind.before-write=kill@3"})
    hit()
    hit()
    assert signals == []
    hit()
    hit()
    assert signals == [signal.SIGKILL]


def test_several_points_are_separated_by_commas(signals: list[signal.Signals]) -> None:
    environ = {VARIABLE: "bind.after-write=kill@2, filter.after-reserve=stop"}
    failpoint(Failpoint.AFTER_WRITE, environ)()
    failpoint(Failpoint.AFTER_RESERVE, environ)()
    assert signals == [signal.SIGSTOP]


@pytest.mark.parametrize(
    "text", ["bind=kill", "bind.before-write", "bind.before-write=exit", "bind.before-write=kill@0"]
)
def test_a_variable_that_cannot_be_understood_ends_the_start(text: str) -> None:
    with pytest.raises(ValueError, match=VARIABLE):
        failpoint(Failpoint.AFTER_WRITE, {VARIABLE: text})
