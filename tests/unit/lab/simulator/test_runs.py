from __future__ import annotations

from pathlib import Path

import pytest

from tessera_lab.simulator.runs import QUIET_S, Progress, ResultsError, ResultsFile, spoken


def test_results_are_there_after_an_interrupt(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    ResultsFile.open(path, purpose="one").add("a", {"allocated": 96.5})
    again = ResultsFile.open(path, purpose="one")
    assert again.results == {"a": {"allocated": 96.5}}
    again.add("b", [1, 2])
    assert ResultsFile.open(path, purpose="one").results == {"a": {"allocated": 96.5}, "b": [1, 2]}


def test_a_line_that_was_cut_off_is_dropped_and_the_next_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    ResultsFile.open(path, purpose="one").add("a", 1)
    with path.open("a") as file:
        file.write('{"key": "b", "res')
    again = ResultsFile.open(path, purpose="one")
    assert again.results == {"a": 1}
    again.add("c", 3)
    assert ResultsFile.open(path, purpose="one").results == {"a": 1, "c": 3}


def test_results_of_other_options_are_not_mixed(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    ResultsFile.open(path, purpose="one")
    with pytest.raises(ResultsError, match="other options"):
        ResultsFile.open(path, purpose="two")


@pytest.mark.parametrize("text", ["no json\n", "[]\n", '{"purpose": "one"}\n{"key": 1}\n'])
def test_another_file_is_refused_and_kept(tmp_path: Path, text: str) -> None:
    path = tmp_path / "notes.txt"
    path.write_text(text)
    with pytest.raises(ResultsError, match="not a file of results"):
        ResultsFile.open(path, purpose="one")
    assert path.read_text() == text


def test_without_a_file_results_are_only_remembered() -> None:
    kept = ResultsFile.open(None, purpose="one")
    kept.add("a", 1)
    assert kept.results == {"a": 1}
    assert not kept.is_file


def test_the_estimate_follows_the_runs_that_are_done() -> None:
    times = iter([0.0, 1.0, QUIET_S, 2 * QUIET_S])
    said: list[str] = []
    progress = Progress(4, said.append, lambda: next(times))
    for name in "abc":
        progress.step(name)
    assert said == ["2 of 4 runs, about 5 s left (b)", "3 of 4 runs, about 3 s left (c)"]


@pytest.mark.parametrize(("seconds", "text"), [(45.0, "45 s"), (720.0, "12 min"), (7_500.0, "2 h 5 min")])
def test_times_are_spoken(seconds: float, text: str) -> None:
    assert spoken(seconds) == text
