"""The lists in the chart and the docs are those of the code."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tessera.core.policies import POLICIES
from tests.unit.chart.test_values import VALUES, merged, wrong
from tools import generate


def test_regenerating_changes_nothing() -> None:
    assert [str(path.relative_to(generate.ROOT)) for path in generate.outdated()] == [], "run `make generate`"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The generated files, to be changed."""
    for name in generate.FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(generate.ROOT / name, tmp_path / name)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "listed"),
    [
        ("charts/tessera/values.schema.json", '"fragmentation"'),
        ("charts/tessera/values.yaml", "  kunlun: {enabled: false"),
        ("charts/tessera/templates/_devices.tpl", "kunlun:"),
        ("docs/user-guide.md", "| `numa` |"),
        ("docs/user-guide.md", "| Kunlun (`kunlun`) |"),
        ("docs/reference.md", "| `--node-lock "),
        ("docs/reference.md", "| `--cdi-annotation-prefix "),
        ("docs/reference.md", "| `--resync-interval "),
        ("docs/reference.md", "| `tessera_nominations` "),
        ("docs/reference.md", "| `tessera_agent_allocations_total{result}` "),
        ("docs/reference.md", "| `tessera_gpu_unused_seconds_total"),
    ],
)
def test_a_list_that_was_changed_by_hand_is_found_and_mended(copy: Path, name: str, listed: str) -> None:
    path = copy / name
    good = path.read_text(encoding="utf-8")
    assert listed in good
    path.write_text(good.replace(listed, listed.replace("n", "m")), encoding="utf-8")
    assert generate.outdated(copy) == {path: good}


@pytest.mark.parametrize("mark", ["<!-- generated: policies -->", "<!-- end -->"])
def test_a_page_that_lost_a_mark_is_an_error(copy: Path, mark: str) -> None:
    path = copy / "docs/user-guide.md"
    path.write_text(path.read_text(encoding="utf-8").replace(mark, ""), encoding="utf-8")
    with pytest.raises(generate.GenerateError, match=r"docs/user-guide\.md: .* found 0 times"):
        generate.outdated(copy)


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_can_be_chosen_in_the_charts_values(name: str) -> None:
    def chosen(key: str, value: str) -> list[str]:
        over: dict[str, Any] = {"scheduler": {"defaultSchedulerPolicy": {key: value}}}
        return wrong(merged(VALUES, over))

    assert bool(chosen("nodeSchedulerPolicy", name)) is (name not in generate.node_policies())
    assert chosen("gpuSchedulerPolicy", name) == []
    assert chosen("gpuSchedulerPolicy", f"{name}, spread") == []


def test_every_vendor_can_be_switched_on_in_the_charts_values_and_is_off() -> None:
    text = (generate.ROOT / generate.CHART / "values.yaml").read_text(encoding="utf-8")
    devices = yaml.safe_load(text)["devices"]
    assert sorted(devices) == generate.chart_vendors()
    assert {name: values["enabled"] for name, values in devices.items() if name != "nvidia"} == dict.fromkeys(
        (name for name in generate.chart_vendors() if name != "nvidia"), False
    )
