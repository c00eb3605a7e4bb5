"""What `make e2e` says at its end: which suites ran, how many tests of each, and what was skipped, with the reason.

Reads only what pytest reported. A suite is a file; suites that run in processes of their own tell a line themselves.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import PurePath

import pytest

OUTCOMES = ("passed", "failed", "error", "skipped", "xfailed", "xpassed")
WIDTH = 24


def lines(reports: Mapping[str, Iterable[object]]) -> list[str]:
    """`reports` by outcome, as pytest's terminal keeps them."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    seconds: defaultdict[str, float] = defaultdict(float)
    reasons: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for outcome in OUTCOMES:
        for report in reports.get(outcome, ()):
            suite = _suite(report)
            counts[suite][outcome] += 1
            if isinstance(report, pytest.TestReport):
                seconds[suite] += report.duration
            if outcome == "skipped":
                reasons[suite][_reason(report)] += 1
    said = [
        f"{suite:<{WIDTH}} {', '.join(f'{count} {outcome}' for outcome, count in counts[suite].items())}"
        f" in {seconds[suite]:.0f} s"
        for suite in sorted(counts)
    ]
    left_out = [
        f"skipped: {suite}, {count} of {counts[suite].total()}: {reason}"
        for suite in sorted(reasons)
        for reason, count in sorted(reasons[suite].items())
    ]
    return [*said, *(left_out or ["nothing was skipped"] * bool(said))]


def _suite(report: object) -> str:
    path = PurePath(str(getattr(report, "nodeid", "")).partition("::")[0])
    return path.stem.removeprefix("test_").removesuffix("_real").replace("_", " ")


def _reason(report: object) -> str:
    """A skip is reported as its place and its text."""
    found = getattr(report, "longrepr", "")
    text = found[2] if isinstance(found, tuple) else str(found)
    return str(text).removeprefix("Skipped: ")
