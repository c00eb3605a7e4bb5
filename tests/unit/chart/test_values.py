"""The chart's values: what the schema says of them, without Helm."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

import tessera
from tessera.host.simulated.description import parse_description
from tessera.scheduler.configuration import chart_sections
from tests.unit.chart.schemas import problems

CHART = Path(__file__).parents[3] / "charts" / "tessera"
SCHEMA = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
VALUES = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
EXAMPLES = sorted((CHART / "examples").glob("*.yaml"))
WITHOUT_DEFAULT = {
    "/scheduler/podDisruptionBudget/maxUnavailable",
    # Their chips are a list; there is no section to be changed key by key.
    "/devices/iluvatar/config",
}


def wrong(values: Any) -> list[str]:
    return sorted(problems(values, SCHEMA, SCHEMA))


def merged(values: Any, over: Any) -> Any:
    """As Helm does it: null takes a value away."""
    if not isinstance(values, dict) or not isinstance(over, dict):
        return over
    every = {**values, **{name: merged(values.get(name), value) for name, value in over.items()}}
    return {name: value for name, value in every.items() if value is not None or name not in over}


def declared(schema: Any, path: str = "") -> Iterator[str]:
    """The values that the schema names."""
    schema = SCHEMA["definitions"][schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    for name, inner in schema.get("properties", {}).items():
        yield f"{path}/{name}"
        yield from declared(inner, f"{path}/{name}")


def has(values: Any, path: str) -> bool:
    for name in path.split("/")[1:]:
        if not isinstance(values, dict) or name not in values:
            return False
        values = values[name]
    return True


def test_the_defaults_are_what_the_schema_says() -> None:
    assert wrong(VALUES) == []


def test_every_value_that_may_be_set_has_a_default_that_documents_it() -> None:
    assert {path for path in declared(SCHEMA) if not has(VALUES, path)} == WITHOUT_DEFAULT


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_examples_are_what_the_schema_says(path: Path) -> None:
    assert wrong(merged(VALUES, yaml.safe_load(path.read_text(encoding="utf-8")))) == []


@pytest.mark.parametrize(
    ("over", "path"),
    [
        ({"schedular": {}}, "/schedular"),
        ({"scheduler": {"replica": 2}}, "/scheduler/replica"),
        ({"scheduler": {"replicas": 0}}, "/scheduler/replicas"),
        ({"scheduler": {"replicas": True}}, "/scheduler/replicas"),
        (
            {"scheduler": {"defaultSchedulerPolicy": {"gpuSchedulerPolicy": "spred"}}},
            "/scheduler/defaultSchedulerPolicy",
        ),
        ({"scheduler": {"admissionWebhook": {"failurePolicy": "Warn"}}}, "/scheduler/admissionWebhook/failurePolicy"),
        ({"scheduler": {"defrag": {"evictionsPerHour": 0}}}, "/scheduler/defrag/evictionsPerHour"),
        ({"scheduler": {"defrag": {"patience": "long"}}}, "/scheduler/defrag/patience"),
        ({"devicePlugin": {"deviceSplitCount": "ten"}}, "/devicePlugin/deviceSplitCount"),
        ({"devicePlugin": {"deviceMemoryScaling": 0}}, "/devicePlugin/deviceMemoryScaling"),
        ({"devicePlugin": {"deviceListStrategy": "env"}}, "/devicePlugin/deviceListStrategy"),
        ({"devicePlugin": {"nvidiaNodeSelector": {"gpu": True}}}, "/devicePlugin/nvidiaNodeSelector/gpu"),
        ({"devices": {"nvidia": {"gpuCorePolicy": "none"}}}, "/devices/nvidia/gpuCorePolicy"),
        ({"devices": {"nvida": {}}}, "/devices/nvida"),
        ({"resourceName": "gpu"}, "/resourceName"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_mistakes_are_found(over: dict[str, Any], path: str) -> None:
    (found,) = wrong(merged(VALUES, over))
    assert found.startswith(path)


def test_the_chart_installs_this_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert chart["appVersion"] == chart["version"] == tessera.__version__


def test_the_chart_ships_the_lists_that_the_scheduler_has_built_in() -> None:
    own = msgspec.to_builtins(chart_sections())
    lists = {
        "iluvatars": own["iluvatars"],
        "mig-profiles": own["nvidia"]["migProfileAllowlist"],
        "vnpus": own["vnpus"]["configs"],
    }
    for name, expected in lists.items():
        shipped = yaml.safe_load((CHART / "files" / f"{name}.yaml").read_text(encoding="utf-8"))
        assert shipped == json.loads(json.dumps(expected)), name


def test_the_simulated_cards_of_the_example_are_what_the_agent_reads() -> None:
    values = yaml.safe_load((CHART / "examples" / "simulated-cards.yaml").read_text(encoding="utf-8"))
    found = parse_description(yaml.safe_dump(values["devicePlugin"]["simulate"]), file="cards.yaml")
    assert [(group.model, group.count) for group in found.cards] == [("H200", 8)]
