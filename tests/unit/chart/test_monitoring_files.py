"""The dashboards and alerts of the chart, as far as they can be judged without Prometheus; tests/e2e does the rest."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from tools.chart import CHART

ROOT = Path(__file__).parents[3]
DASHBOARDS = sorted((CHART / "files" / "dashboards").glob("*.json"))
RULES = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())["groups"][0]["rules"]
COLUMNS = 24
"""of Grafana's grid"""


@pytest.fixture(params=DASHBOARDS, ids=lambda path: path.stem)
def dashboard(request: pytest.FixtureRequest) -> Any:
    return json.loads(request.param.read_text())


def test_every_panel_has_its_own_place_and_number(dashboard: Any) -> None:
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for one, other in combinations([panel["gridPos"] for panel in panels], 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or below
        assert one["x"] + one["w"] <= COLUMNS


def test_every_query_goes_to_the_chosen_data_source(dashboard: Any) -> None:
    variables = [variable["name"] for variable in dashboard["templating"]["list"]]
    assert variables[0] == "datasource"
    for panel in dashboard["panels"]:
        if panel["type"] != "row":
            assert panel["datasource"]["uid"] == "${datasource}"
            assert panel["targets"]


def test_every_alert_is_documented_and_says_what_to_do() -> None:
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    assert len({rule["alert"] for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert f"| `{rule['alert']}` | {rule['labels']['severity']} |" in page
        assert rule["annotations"].keys() == {"summary", "description"}
