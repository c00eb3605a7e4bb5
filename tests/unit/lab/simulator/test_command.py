from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tessera.cli import main


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["simulate", "trace", *arguments])


def test_policies_are_compared_in_json(tmp_path: Path) -> None:
    plot = tmp_path / "plot.svg"
    result = run(
        "--synthetic", "3", "--policy", "fragmentation,best-fit", "--seeds", "1,3", "--arrival", "0.5,1.0",
        "--jobs", "1", "--plot", str(plot), "-o", "json",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert set(report) == {"fragmentation", "best-fit"}
    figures = report["fragmentation"]["synthetic-3-1"]
    assert set(figures) == {"0.5", "1.0"}
    assert set(figures["1.0"]) == {"allocation_percent", "sd"}
    assert plot.read_text().startswith("<svg")


def test_a_series_goes_on_where_it_was_interrupted_and_a_page_shows_it(tmp_path: Path) -> None:
    results, page = tmp_path / "runs.jsonl", tmp_path / "page.html"
    both = ("--synthetic", "2", "--policy", "best-fit", "--jobs", "1", "--resume", str(results))
    assert run(*both, "--seeds", "1").exit_code == 0
    first = results.read_text()
    result = run(*both, "--seeds", "1-2", "--html", str(page))
    assert result.exit_code == 0, result.output
    assert results.read_text().startswith(first)
    assert len(results.read_text().splitlines()) == len(first.splitlines()) + 1
    assert page.read_text().count("<svg") == 1
    other = run(*both, "--seeds", "1", "--shuffle-nodes")
    assert other.exit_code == 2
    assert "other options" in other.output


def test_a_written_trace_is_replayed_with_its_times(tmp_path: Path) -> None:
    assert run("--synthetic", "2", "--write", str(tmp_path)).exit_code == 0
    result = run(
        "--nodes", str(tmp_path / "nodes.csv"), "--pods", str(tmp_path / "pods.csv"), "--seeds", "1", "--churn",
        "--jobs", "1",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "backlog" in result.output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "--synthetic"),
        (["--synthetic", "2", "--policy", "magic"], "unknown magic"),
        (["--synthetic", "2", "--seeds", "a"], "list of seeds"),
        (["--synthetic", "2", "--arrival", "0"], "list of arrivals"),
        (["--nodes", "none.csv", "--pods", "none.csv"], "cannot be read"),
    ],
)
def test_mistakes_are_explained(arguments: list[str], says: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert says in result.output


def test_a_plot_that_cannot_be_written_costs_no_figures(tmp_path: Path) -> None:
    result = run("--synthetic", "2", "--seeds", "1", "--policy", "best-fit", "--plot", str(tmp_path / "no" / "p.svg"))
    assert result.exit_code == 2
    assert "best-fit" in result.output
    assert "cannot write " in result.output
