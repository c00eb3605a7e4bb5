from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tessera.wire.config_file import ConfigError
from tessera.wire.node_config import (
    CardModes,
    DeviceFilter,
    MigStrategy,
    NodeOverride,
    NodeSettings,
    effective,
    load_node_config,
    override_for,
)

EVERYTHING: dict[str, Any] = {
    "name": "node-a",
    "operatingmode": "mig",
    "devicememoryscaling": 1.5,
    "devicecorescaling": 2,
    "devicesplitcount": 4,
    "preconfigureddevicememory": 8192,
    "libcudaloglevel": "3",
    "enablenumatopology": True,
    "migstrategy": "mixed",
    "filterdevices": {"uuid": ["GPU-1"], "index": [0, 7]},
    "enablegetpreferredallocation": False,
    "cardmodes": [{"operatingmode": "mps", "uuid": ["GPU-2"], "index": [3]}],
}

EVERYWHERE = {
    "split_count": 5,
    "memory_scaling": 3.0,
    "core_scaling": 4.0,
    "preconfigured_memory": 1024,
    "log_level": 2,
    "numa_topology": True,
    "mig_strategy": "single",
}


def load(*entries: dict[str, Any]) -> list[NodeOverride]:
    return load_node_config(msgspec.json.encode({"nodeconfig": entries}).decode(), file="config.json")


def on_node_a(*entries: dict[str, Any], everywhere: dict[str, Any] = EVERYWHERE) -> NodeSettings:
    return effective(everywhere, override_for(load(*entries), "node-a"))


def test_an_entry_sets_everything_on_its_node() -> None:
    assert on_node_a(EVERYTHING) == NodeSettings(
        split_count=4,
        memory_scaling=1.5,
        core_scaling=2.0,
        preconfigured_memory=8192,
        log_level="3",
        numa_topology=True,
        mode="mig",
        mig_strategy="mixed",
        filtered=DeviceFilter(uuid=("GPU-1",), index=(0, 7)),
        preferred_allocation=False,
        card_modes=(CardModes(mode="mps", uuid=("GPU-2",), index=(3,)),),
    )


FROM_EVERYWHERE = NodeSettings(
    split_count=5,
    memory_scaling=3.0,
    core_scaling=4.0,
    preconfigured_memory=1024,
    log_level="2",
    numa_topology=True,
    mig_strategy="single",
)


@pytest.mark.parametrize("entries", [[], [EVERYTHING | {"name": "node-b"}], [{"name": "node-a"}], [{"name": ""}]])
def test_without_an_entry_of_its_own_a_node_has_what_all_nodes_have(entries: list[dict[str, Any]]) -> None:
    assert on_node_a(*entries) == FROM_EVERYWHERE


def test_where_nothing_is_configured_the_defaults_hold() -> None:
    settings = on_node_a(everywhere=dict.fromkeys(EVERYWHERE))
    assert settings == NodeSettings()
    assert (settings.split_count, settings.memory_scaling, settings.core_scaling) == (10, 1.0, 1.0)
    assert (settings.log_level, settings.mode, settings.mig_strategy) == ("", "hami-core", "none")


@pytest.mark.parametrize(
    ("key", "zero", "setting", "value"),
    [
        ("devicesplitcount", 0, "split_count", 0),
        ("devicememoryscaling", 0, "memory_scaling", 0.0),
        ("devicecorescaling", 0.0, "core_scaling", 0.0),
        ("preconfigureddevicememory", 0, "preconfigured_memory", 0),
        ("libcudaloglevel", "", "log_level", ""),
        ("libcudaloglevel", 0, "log_level", "0"),
        ("enablenumatopology", False, "numa_topology", False),
        ("filterdevices", {"uuid": [], "index": []}, "filtered", DeviceFilter()),
        ("filterdevices", {}, "filtered", DeviceFilter()),
    ],
)
def test_a_key_that_is_present_overrides_even_with_zero(key: str, zero: Any, setting: str, value: object) -> None:
    assert getattr(on_node_a(EVERYTHING, {"name": "node-a", key: zero}), setting) == value


def test_a_key_that_is_null_is_absent() -> None:
    assert on_node_a(dict.fromkeys(EVERYTHING) | {"name": "node-a"}) == FROM_EVERYWHERE


def test_of_several_entries_each_later_one_changes_only_what_it_names() -> None:
    settings = on_node_a(
        {"name": "node-a", "devicesplitcount": 4, "operatingmode": "mps"},
        {"name": "node-b", "devicesplitcount": 6},
        {"name": "node-a", "devicesplitcount": 8},
    )
    assert (settings.split_count, settings.mode) == (8, "mps")


@pytest.mark.parametrize(
    ("key", "setting", "kept"), [("operatingmode", "mode", "mig"), ("migstrategy", "mig_strategy", "mixed")]
)
def test_an_empty_word_names_no_mode_and_changes_none(key: str, setting: str, kept: str) -> None:
    assert getattr(on_node_a(EVERYTHING, {"name": "node-a", key: ""}), setting) == kept


def test_an_override_with_an_empty_mode_leaves_the_default() -> None:
    settings = effective({}, NodeOverride(name="a", mode="", mig_strategy=""))
    assert settings == NodeSettings()


def test_the_case_of_keys_does_not_matter() -> None:
    text = '{"nodeConfig": [{"Name": "node-a", "operatingMode": "mps"}]}'
    assert load_node_config(text, file="config.json") == [NodeOverride(name="node-a", mode="mps")]


@pytest.mark.parametrize("text", ["{}", '{"nodeconfig": null}', '{"nodeconfig": []}'])
def test_a_file_without_entries_overrides_nothing(text: str) -> None:
    assert load_node_config(text, file="config.json") == []


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ('{"operatingmode": "mig"}', 'nodeconfig[0]: the key "name" is missing'),
        (
            '{"name": "a", "operatingmode": "MIG"}',
            'nodeconfig[0].operatingmode: expected one of "hami-core", "mig", "mps", "none", found the text "MIG"',
        ),
        (
            '{"name": "a", "migstrategy": "all"}',
            'nodeconfig[0].migstrategy: expected one of "mixed", "none", "single", found the text "all"',
        ),
        (
            '{"name": "a", "devicesplitcount": -1}',
            "nodeconfig[0].devicesplitcount: expected a whole number >= 0, found -1",
        ),
        (
            '{"name": "a", "devicememoryscaling": -0.5}',
            "nodeconfig[0].devicememoryscaling: expected a number >= 0.0, found -0.5",
        ),
        (
            '{"name": "a", "enablenumatopology": "true"}',
            'nodeconfig[0].enablenumatopology: expected true or false, found the text "true"',
        ),
        (
            '{"name": "a", "filterdevices": {"index": ["0"]}}',
            'nodeconfig[0].filterdevices.index[0]: expected a whole number, found the text "0"',
        ),
        (
            '{"name": "a", "devicesplitcounts": 1}',
            'nodeconfig[0]: unknown key "devicesplitcounts"; did you mean "devicesplitcount"?',
        ),
    ],
)
def test_a_mistake_is_told_with_line_and_path(entry: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_node_config(f'{{"nodeconfig":\n[{entry}]}}', file="config.json")
    assert str(caught.value) == f"config.json:2: {said}"


@pytest.mark.parametrize(
    "text", ["", "[]", "nodeconfig: []", '{"nodeconfig": {}}', '{"nodeconfig": [5]}', '{"node": []}']
)
def test_a_file_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^config\.json:1: "):
        load_node_config(text, file="config.json")


def test_cards_have_the_mode_of_the_last_entry_that_names_them_or_else_the_nodes() -> None:
    entries = [
        {"operatingmode": "mps", "index": [0, 1]},
        {"operatingmode": "mig", "uuid": ["GPU-b"]},
    ]
    settings = on_node_a({"name": "node-a", "operatingmode": "none", "cardModes": entries})
    assert [settings.mode_of(uuid, index) for uuid, index in (("GPU-a", 0), ("GPU-b", 1), ("GPU-c", 2))] == [
        "mps",
        "mig",
        "none",
    ]
    assert settings.modes == {"none", "mps", "mig"}


@pytest.mark.parametrize("strategy", ["single", "mixed"])
def test_instances_of_an_administrator_are_served_only_where_no_card_has_mode_mig(strategy: MigStrategy) -> None:
    assert NodeSettings(mig_strategy=strategy).serves_instances
    assert not NodeSettings().serves_instances
    assert not NodeSettings(mig_strategy=strategy, mode="mig").serves_instances
    some = (CardModes(mode="mig", index=(0,)),)
    assert not NodeSettings(mig_strategy=strategy, card_modes=some).serves_instances


@pytest.mark.parametrize("entry", [{"index": [0]}, {"operatingmode": "", "index": [0]}, {"operatingmode": "vgpu"}])
def test_an_entry_for_cards_needs_a_mode(entry: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="operatingmode"):
        load({"name": "node-a", "cardmodes": [entry]})
