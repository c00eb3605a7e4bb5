from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench import families
from bench.families import ARRIVALS, FEWEST, OURS, SEEDS, SIMPLE, WAITING, FamilyRun, plotted, verdicts
from tessera_lab.simulator.runs import ResultsFile


def runs_and_results(
    ours: float, others: float, *, waits: tuple[float, float] = (1.0, 1.0), pods: int = FEWEST
) -> tuple[list[FamilyRun], ResultsFile]:
    runs = [FamilyRun("small", policy, 1, churn=False) for policy in (OURS, *SIMPLE)]
    kept = ResultsFile.open(None, purpose="test")
    for run in runs:
        kept.add(run.key, {str(arrival): ours if run.policy == OURS else others for arrival in ARRIVALS})
    for policy, wait in zip((OURS, WAITING), waits, strict=True):
        run = FamilyRun("small", policy, 1, churn=True)
        runs.append(run)
        kept.add(run.key, {"mean": 1.0, "p95": 1.0, "by_cards": {"8": wait}, "pods": {"8": pods}})
    return runs, kept


@pytest.mark.parametrize(("ours", "kept"), [(96.0, True), (95.91, True), (95.89, False)])
def test_a_tenth_of_a_point_is_the_margin(ours: float, kept: bool) -> None:
    found = list(verdicts("small", *runs_and_results(ours, 96.0)))
    assert [each.kept for each in found if "allocated" in each.what] == [kept] * len(ARRIVALS)


@pytest.mark.parametrize(
    ("losses", "word"),
    [
        ([0.5] * SEEDS, "LOST"),
        ([5.0, *[0.0] * (SEEDS - 1)], "even"),
        ([5.0, *[0.0] * (SEEDS - 2)], "LOST"),
        ([0.0] * SEEDS, "ok"),
    ],
    ids=["every seed loses", "one seed decides", "too few seeds to say", "no seed loses"],
)
def test_what_chance_explains_is_no_loss(losses: list[float], word: str) -> None:
    runs = [FamilyRun("small", policy, seed, churn=False) for seed in range(len(losses)) for policy in (OURS, *SIMPLE)]
    results = {
        run.key: dict.fromkeys(map(str, ARRIVALS), 96.0 - (losses[run.seed] if run.policy == OURS else 0.0))
        for run in runs
    }
    found = list(verdicts("small", runs, ResultsFile(None, results)))
    assert {str(each).split()[0] for each in found} == {word}
    assert all(each.kept == (word != "LOST") for each in found)


def test_a_policy_that_is_clearly_ahead_wins_though_another_one_is_better_by_chance() -> None:
    runs = [FamilyRun("small", policy, seed, churn=False) for seed in range(SEEDS) for policy in (OURS, *SIMPLE)]
    allocated = {OURS: 95.0, "first-fit": 95.5}
    results = {
        run.key: dict.fromkeys(
            map(str, ARRIVALS),
            # One seed gives FGD all that it is ahead.
            95.0 + SEEDS * (run.seed == 0) if run.policy == "fgd" else allocated.get(run.policy, 90.0),
        )
        for run in runs
    }
    found = list(verdicts("small", runs, ResultsFile(None, results)))
    assert [(each.kept, each.other) for each in found] == [(False, 95.5)] * len(ARRIVALS)


@pytest.mark.parametrize(
    ("waits", "pods", "lost"), [((1.0, 1.0), FEWEST, 0), ((1.1, 1.0), FEWEST, 1), ((9.0, 1.0), 3, 0)]
)
def test_each_size_of_which_there_are_enough_pods_may_not_wait_longer(
    waits: tuple[float, float], pods: int, lost: int
) -> None:
    found = list(verdicts("small", *runs_and_results(96.0, 96.0, waits=waits, pods=pods)))
    assert sum(not each.kept for each in found) == lost


def test_waits_are_judged_without_saturation_and_say_of_how_many_pods() -> None:
    runs, kept = runs_and_results(96.0, 96.0)
    found = list(verdicts("small", [run for run in runs if run.churn], kept))
    assert [each.what for each in found] == ["mean wait, s", "p95 wait, s", f"mean wait, 8 cards, {FEWEST} pods, s"]


def test_openb_traces_must_be_above_fgd() -> None:
    runs, kept = runs_and_results(96.0, 96.0)
    renamed = [FamilyRun("default", run.policy, 1, churn=run.churn) for run in runs]
    results = ResultsFile(None, {new.key: kept.results[run.key] for new, run in zip(renamed, runs, strict=True)})
    lost = [each.what for each in verdicts("default", renamed, results) if not each.kept]
    assert lost == ["above FGD at 100%", "above FGD at 110%", "above FGD at 130%"]


def test_every_family_gets_a_panel() -> None:
    tree = ElementTree.fromstring(plotted(["small"], *runs_and_results(96.0, 95.0)))
    assert len(list(tree)) == 1


def test_a_check_that_was_done_already_runs_nothing_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "families.jsonl"
    kept = ResultsFile.open(path, purpose="bench.families")
    for key, result in runs_and_results(90.0, 96.0)[1].results.items():
        kept.add(key, result)
    assert families.main(["--family", "small", "--seeds", "1", "--results", str(path), "--check"]) == 1
    assert "LOST small" in capsys.readouterr().out
    assert len(path.read_text().splitlines()) == len(kept.results) + 1
