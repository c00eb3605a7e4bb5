"""What is wrong with the agent's configuration comes in one message; what is odd is said."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tessera.node.configuration import LAST_GOOD as KEPT
from tessera.node.configuration import save_last_good
from tests.support.agent import JSON, YAML, Files, node_json, problems, told

LAST_GOOD = "/var/lib/tessera/node-config.json"


# -- what is wrong

BAD: list[tuple[str, str]] = [
    ("device-list-strategy=envvar,x", "--device-list-strategy: expected envvar or"),
    ("device-list-strategy=,", "--device-list-strategy: expected at least one strategy"),
    ("cdi-annotation-prefix=x", "--cdi-annotation-prefix: expected a domain and a slash"),
    ("library-version=../../etc", "--library-version: expected a version"),
    ("device-memory-scaling=10001", "--device-memory-scaling: expected a number from 0 to 1000"),
    ("inventory=simulated", "--simulate: goes with --inventory simulated"),
    ("inventory=some", "--inventory: expected auto or nvml"),
    ("simulate=", "--simulate: expected a text"),
    ("device-discovery-strategy=tegra", "Tegra GPUs are not served"),
    ("device-discovery-strategy=x", "expected auto or nvml"),
    ("node-config-file=", "--node-config-file: expected a text"),
]


@pytest.mark.parametrize(("argument", "text"), BAD)
def test_a_bad_flag_is_one_problem_that_names_it(argument: str, text: str) -> None:
    (problem,) = problems(argument)
    assert text in problem


def test_all_problems_come_at_once() -> None:
    found = problems("hook-path=x", "inventory=y", yaml="nvidia: 3", GDS_ENABLED="maybe")
    assert len(found) == 4
    assert any(text.startswith("GDS_ENABLED: expected true or false") for text in found)


def test_a_node_without_a_name_is_told_what_to_do() -> None:
    (problem,) = problems(NODE_NAME="")
    assert "NODE_NAME from spec.nodeName" in problem
    (problem,) = problems(NODE_NAME="ö")
    assert problem.startswith("NODE_NAME: expected a name")


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (PermissionError(13, "Permission denied"), "cannot read device-config.yaml: Permission denied"),
        (FileNotFoundError(2, "No such file or directory"), "cannot read device-config.yaml: No such file"),
        (UnicodeDecodeError("utf-8", b"", 0, 1, "x"), "it is not UTF-8 text"),
        ("", "all configurations are empty"),
        ("flags: {migStrategy: none}", "all configurations are empty"),
        ("nvidia: {deviceSplitCoun: 3}", 'unknown key "deviceSplitCoun"'),
        ("nvidia: {deviceSplitCount: -3}", "deviceSplitCount"),
        ("nvidia: {migProfileAllowlist: [{models: [A30]}]}", "must define models and profiles"),
        ("nvidia: {migProfileAllowlist: [{models: [A30], profiles: [1x]}]}", 'invalid MIG profile "1x"'),
        ("nvidia: {deviceSplitCount: 1}\nversion: v2", "device-config.yaml:2: version: expected v1, found the text"),
        ("nvidia: {deviceSplitCount: 1}\nflags: {migStrategy: half}", "device-config.yaml:2: flags.migStrategy"),
        (
            "nvidia: {deviceSplitCount: 1}\nflags: {gdsEnabled: 7}",
            'flags.gdsEnabled: expected true or false, found "7"',
        ),
        ("nvidia: {deviceSplitCount: 1}\nflags: {plugin: {passDeviceSpecs: {}}}", "expected a value, found a table"),
        ("nvidia: {deviceSplitCount: 1}\nflags: {plugin: {deviceListStrategy: [[x]]}}", "expected envvar or"),
        ("nvidia: {deviceSplitCount: 1}\nflags: {plugin: {deviceListStrategy: ['a,b']}}", "expected a value, found a"),
        ("nvidia: [", "device-config.yaml:"),
    ],
)
def test_a_yaml_file_that_was_named_and_cannot_be_used_is_a_problem(
    file: str | OSError | UnicodeError, text: str
) -> None:
    (problem,) = problems(f"config-file={YAML}", files={YAML: file})
    assert text in problem


def test_a_mistake_in_another_vendors_section_does_not_stop_this_agent() -> None:
    yaml = "nvidia: {deviceSplitCount: 4}\nhygon: {nonsense: 3}\nvnpus: 7\n"
    assert told(yaml=yaml).settings.node.split_count == 4
    assert told(yaml="hygon: {resourceCountName: hygon.com/dcu}").settings.node.split_count == 10


# -- the node's own file


def test_a_missing_node_file_is_nothing_unusual_unless_a_flag_names_it() -> None:
    assert told(yaml="nvidia: {deviceSplitCount: 1}").warnings == ()
    found = told("node-config-file=/n.json", yaml="nvidia: {deviceSplitCount: 1}")
    assert (found.files, found.node_config) == ((YAML, "/n.json"), "{}")
    assert any("/n.json does not exist" in text for text in found.warnings)


BROKEN: list[str | OSError | UnicodeError] = [
    "{",
    '{"nodeconfig": [{"name": "n1", "operatingmode": "magic"}]}',
    '{"nodeconfig": [{"name": "n1", "devicesplitcount": "many"}]}',
    PermissionError(13, "Permission denied"),
    UnicodeDecodeError("utf-8", b"", 0, 1, "x"),
]


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: str(broken)[:60])
def test_while_the_node_file_is_broken_the_last_good_one_holds(broken: str | OSError | UnicodeError) -> None:
    good = node_json(operatingmode="mig", filterdevices={"index": [0]})
    found = told(yaml="nvidia: {deviceSplitCount: 4}", files={JSON: broken, LAST_GOOD: good})
    assert (found.settings.node.mode, found.settings.node.filtered.index) == ("mig", (0,))
    assert (found.settings.node.split_count, found.node_config) == (4, None)
    assert "the last good one stays in force" in found.faults[-1]
    assert JSON in found.faults[0]


@pytest.mark.parametrize("before", [None, "{", UnicodeDecodeError("utf-8", b"", 0, 1, "x")])
def test_a_broken_node_file_without_a_good_one_leaves_the_other_sources_in_force(
    before: str | UnicodeError | None,
) -> None:
    files: Files = {JSON: "{"} | ({LAST_GOOD: before} if before is not None else {})
    found = told(yaml="nvidia: {deviceSplitCount: 4}", files=files)
    assert (found.settings.node.mode, found.settings.node.split_count) == ("hami-core", 4)
    assert "the node has no own settings" in found.faults[-1]


def test_a_good_node_file_is_worth_keeping() -> None:
    text = node_json(operatingmode="mps")
    found = told(json=text)
    assert (found.node_config, found.settings.node.mode, found.faults) == (text, "mps", ())


def test_what_was_kept_is_there_with_its_folder(tmp_path: Path) -> None:
    save_last_good("{}", tmp_path / "a" / "b")
    save_last_good('{"nodeconfig": []}', tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b" / KEPT).read_text() == '{"nodeconfig": []}'
    assert os.listdir(tmp_path / "a" / "b") == [KEPT]


def test_where_it_cannot_be_kept_nothing_is_left_behind(tmp_path: Path) -> None:
    (tmp_path / KEPT).mkdir()
    with pytest.raises(OSError, match="directory"):
        save_last_good("{}", tmp_path)
    assert os.listdir(tmp_path) == [KEPT]


# -- what is odd

ODD: list[tuple[dict[str, Any], str]] = [
    ({"yaml": "sharing: {mps: {resources: []}}"}, "sharing.mps: has no effect; set operatingmode to mps"),
    ({"yaml": "sharing: {timeSlicing: {}}"}, "sharing.timeSlicing: has no effect; cards are shared by"),
    ({"yaml": "sharing: {magic: 1}"}, "sharing.magic: has no effect; it is not known here"),
    ({"yaml": "resources: {gpus: []}"}, "resources: has no effect"),
    ({"yaml": "imex: {required: true}"}, "imex: has no effect"),
    ({"yaml": "flags: {mpsRoot: /x}"}, "flags.mpsRoot: has no effect"),
    ({"yaml": "flags: {plugin: {cdiFeatureFlags: x}}"}, "flags.plugin.cdiFeatureFlags: has no effect"),
    (
        {"yaml": "flags: {migStrategy: mixed}", "json": node_json(operatingmode="mig")},
        "MIG strategy mixed has no effect",
    ),
    ({"IMEX_CHANNEL_IDS": "0"}, "--imex-channel-ids has no effect"),
    ({"json": node_json(devicesplitcount=0)}, "the device split count is 0"),
    ({"DEVICE_MEMORY_SCALING": "0"}, "the device memory scaling is 0"),
]


@pytest.mark.parametrize(("given", "text"), ODD, ids=lambda value: value if isinstance(value, str) else "")
def test_what_has_no_effect_is_said_and_never_a_reason_to_stop(given: dict[str, Any], text: str) -> None:
    yaml = f"nvidia: {{deviceCoreScaling: 1}}\n{given.pop('yaml', '')}"
    found = told(yaml=yaml, **given)
    (warning,) = found.warnings
    assert text in warning


def test_cards_that_are_cut_by_mig_cannot_be_told_in_the_text_form() -> None:
    given: dict[str, Any] = {"yaml": "nvidia: {deviceCoreScaling: 1}", "json": node_json(operatingmode="mig")}
    (warning,) = told("text-registration=true", **given).warnings
    assert "--text-registration has no MIG profiles" in warning
    assert told(**given).warnings == ()


def test_what_asks_for_nothing_is_not_worth_a_word() -> None:
    yaml = "nvidia: {deviceSplitCount: 1}\nversion: v1\nflags: {plugin: }\nsharing:\nresources:\nimex:\n"
    assert told("imex-required=false", yaml=yaml, IMEX_CHANNEL_IDS="").warnings == ()
    assert told(yaml="nvidia: {deviceSplitCount: 1}\nflags: 3\nsharing: 4").warnings == ()


# -- ResourceClaims


@pytest.mark.parametrize(
    ("arguments", "given", "said"),
    [
        (("mig-strategy=single",), {}, "--mig-strategy"),
        ((), {"json": node_json(migstrategy="mixed")}, "--mig-strategy"),
        (("device-list-strategy=envvar,cdi-annotations",), {}, "cdi-cri"),
    ],
)
def test_what_claims_cannot_have_is_refused_with_them_alone(
    arguments: tuple[str, ...], given: dict[str, Any], said: str
) -> None:
    (problem,) = problems("dra=true", *arguments, **given)
    assert problem.startswith("--dra")
    assert said in problem
    assert told(*arguments, **given).settings.dra is False


def test_in_mode_mig_the_strategy_has_no_effect_with_claims_either() -> None:
    assert told("dra=true", json=node_json(operatingmode="mig", migstrategy="mixed")).settings.dra is True


def test_an_allocator_of_claims_needs_claims() -> None:
    (problem,) = problems("dra-allocator=tessera")
    assert problem == "--dra-allocator: needs --dra, which publishes the cards to claims"
    assert told("dra=true", "dra-allocator=tessera").settings.serves_both
    assert not told("dra-allocator=kube-scheduler").settings.dra
