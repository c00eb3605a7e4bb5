"""What the rounds of the cluster benchmark come to."""

from __future__ import annotations

import pytest

from bench.cluster import BARE, NOOP, TESSERA, Round, figures, judged


def done(pods_per_s: float, *, writes: float = 1.0, work: float = 10.0) -> Round:
    return Round(pods_per_s, writes_per_pod=writes, events_per_pod=2.0, work={"extender": work})


def test_a_ratio_is_made_of_rounds_that_follow_each_other_and_the_middle_half_counts() -> None:
    seen = {
        BARE: [done(200)],
        NOOP: [done(100, work=5), done(50, work=5), done(80, work=5), done(80, work=5)],
        TESSERA: [done(90), done(50), done(40, writes=1.5), done(160)],
    }
    found = figures(16, seen)
    assert (found["preload"], found["ratios"], found["ratio"]) == (16, [0.9, 1.0, 0.5, 2.0], 0.95)
    assert [found[f"{side}_pods_per_s"] for side in seen] == [200, 80, 70]
    # A mean would hide the round in which something was written twice.
    assert found["writes_per_pod"] == 1.5
    assert found["work_ratio"] == 0.5


@pytest.mark.parametrize(
    ("ratio", "writes", "kept"), [(0.95, 1.0, True), (1.2, 1.0, True), (0.949, 1.0, False), (1.0, 1.01, False)]
)
def test_the_budget_is_kept_where_both_loads_keep_it(ratio: float, writes: float, kept: bool) -> None:
    good = {"preload": 0, "ratio": 1.0, "writes_per_pod": 1.0}
    found, text = judged([good, {"preload": 16, "ratio": ratio, "writes_per_pod": writes}])
    assert found is kept
    assert ("BROKEN" in text) is not kept
