"""The figures of the cluster benchmark."""

from __future__ import annotations

import json
import random
import statistics

import pytest

from bench.cluster import figures, judged, middle_mean, parse, standard_error
from bench.cluster_rounds import BARE, NOOP, TESSERA, Round


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
    ("ratio", "writes", "kept"), [(0.85, 1.0, True), (1.2, 1.0, True), (0.849, 1.0, False), (1.0, 1.01, False)]
)
def test_the_budget_is_kept_where_both_loads_keep_it(ratio: float, writes: float, kept: bool) -> None:
    good = {"preload": 0, "ratio": 1.0, "ratio_error": 0.01, "writes_per_pod": 1.0}
    found, text = judged([good, good | {"preload": 16, "ratio": ratio, "writes_per_pod": writes}])
    assert found is kept
    assert ("BROKEN" in text) is not kept


def test_the_error_of_a_ratio_is_that_of_all_rounds_but_single_bad_ones_do_not_matter() -> None:
    assert standard_error([0.9]) is None
    assert standard_error([1.0] * 8) == 0
    few = [0.9, 0.95, 1.0, 1.05]
    errors = [standard_error(few * times) or 0.0 for times in (1, 4, 16)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] > 0
    assert standard_error([*few, 1.0, 0.96, 0.98, 7.0]) == standard_error([*few, 1.0, 0.96, 0.98, 1.1])


def test_the_error_is_what_many_runs_show() -> None:
    rounds = random.Random(1)
    runs = [[rounds.gauss(1, 0.1) for _ in range(20)] for _ in range(400)]
    shown = statistics.stdev(middle_mean(run) for run in runs)
    assert statistics.fmean(standard_error(run) or 0.0 for run in runs) == pytest.approx(shown, rel=0.15)


def test_one_round_says_nothing_about_its_error() -> None:
    found = figures(0, {BARE: [], NOOP: [done(100)], TESSERA: [done(96)]})
    assert json.loads(json.dumps(found, allow_nan=False))["ratio_error"] is None
    assert judged([found])[0]


@pytest.mark.parametrize(
    "arguments", [["--rounds", "0"], ["--preload", "-1"], ["--bare-rounds", "-1"], ["--limit", "0"], ["--pods", "many"]]
)
def test_what_makes_no_sense_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(arguments)
    assert ended.value.code == 2
    assert "error: " in capsys.readouterr().err
