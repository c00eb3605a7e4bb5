"""The summary at the end of `make e2e`."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e import summary


def report(nodeid: str, *, seconds: float = 1.0, **more: Any) -> pytest.TestReport:
    given = {"outcome": "passed", "longrepr": None, "when": "call"} | more
    return pytest.TestReport(nodeid, ("f.py", 1, "t"), {}, duration=seconds, **given)


def test_every_suite_has_a_line_and_every_skip_its_reason() -> None:
    skipped = report("e2e/test_node_real.py::t", outcome="skipped", longrepr=("f.py", 1, "Skipped: no runc here"))
    found = summary.lines(
        {
            "passed": [report("e2e/test_chart_real.py::a"), report("e2e/test_chart_real.py::b", seconds=2.4)],
            "failed": [report("e2e/test_chart_real.py::c", outcome="failed", longrepr="why")],
            "skipped": [skipped],
        }
    )
    assert [" ".join(line.split()) for line in found] == [
        "chart 2 passed, 1 failed in 4 s",
        "node 1 skipped in 1 s",
        "skipped: node, 1 of 1: no runc here",
    ]


def test_a_run_without_skips_says_so_and_one_without_tests_says_nothing() -> None:
    assert summary.lines({"passed": [report("e2e/test_chart_real.py::a")]})[-1] == "nothing was skipped"
    assert summary.lines({}) == []
