"""Any configuration file loads, or all its errors are reported with file and line."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import Struct

from tessera.wire.config_file import ConfigError, ConfigFile
from tessera.wire.device_config import dump_device_config, load_device_config
from tessera.wire.node_config import effective, load_node_config, override_for


class Chip(Struct, frozen=True, kw_only=True, rename="camel"):
    chip_name: str
    memory: int = 0
    scaling: float | None = None
    soft: bool = False
    templates: tuple[str, ...] = ()


class Section(Struct, frozen=True, kw_only=True, rename="camel"):
    common_word: str = ""
    log_level: str | int | None = None
    chips: list[Chip] = []
    anything: Any = None


T = TypeVar("T")

SCHEMAS = {"nvidia": Section, "vnpus": list[Chip]}

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.sampled_from(
    [
        "true",
        "no",
        "~",
        "null",
        "012",
        "1e5",
        "1.",
        ".5",
        "5",
        "<<",
        "=",
        "*a",
        "&a",
        "!x",
        "- a",
        "a: b",
        "#",
        "'",
        '"',
    ]
)
numbers = st.integers(0, 2**31 - 1)
shares = st.floats(allow_nan=False, allow_infinity=False)
chips = st.builds(
    Chip, chip_name=texts, memory=numbers, scaling=st.none() | shares, soft=st.booleans(), templates=st.tuples(texts)
)
scalars = st.none() | st.booleans() | numbers | shares | texts
plain_trees = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4), max_leaves=20
)
sections = st.builds(
    Section, common_word=texts, log_level=st.none() | texts | numbers, chips=st.lists(chips, max_size=3)
)


@given(nvidia=sections, vnpus=st.lists(chips, min_size=1, max_size=3))
def test_a_dumped_configuration_is_read_back(nvidia: Section, vnpus: list[Chip]) -> None:
    written = {"nvidia": nvidia, "vnpus": vnpus}
    assert load_device_config(dump_device_config(written), file="f", schemas=SCHEMAS) == written


@given(plain_trees)
def test_what_the_standard_reader_of_json_reads_is_read_the_same(tree: Any) -> None:
    for text in (json.dumps(tree), json.dumps(tree, indent="\t", ensure_ascii=False)):
        found = ConfigFile(text, file="f", is_json=True)
        assert found.value == json.loads(text)
        found.check()


@given(plain_trees)
def test_json_is_read_as_yaml_too(tree: Any) -> None:
    # Pairs of surrogates are how JSON alone writes letters beyond 16 bits.
    text = json.dumps(tree, ensure_ascii=True).replace("\\ud", "d")
    found = ConfigFile(text, file="f")
    assert found.value == json.loads(text)
    found.check()


NAMES = ["nvidia", "vnpus", "chips", "chipName", "memory", "5", "-1", "1e999", ".nan", "true", "~"]
MARKS = [": ", ":\n", "\n", "- ", "  ", "[", "]", "{", "}", ", ", "&a ", "*a", "!x ", "? ", "| ", "> ", "'", '"', "\\"]
OTHERS = ["#", "---\n", "...\n", "%", "\t"]
fragments = st.lists(st.sampled_from([*NAMES, *MARKS, *OTHERS]) | st.text(max_size=5), max_size=40).map("".join)


def loaded(load: Callable[[], T]) -> T | None:
    """The value, or None where the file was refused as files are refused."""
    try:
        return load()
    except ConfigError as error:
        problems = error.problems
    assert problems
    assert all(problem.file == "f" and problem.text for problem in problems)
    return None


@given(fragments | st.text())
@example("a: &a [*a]")
@example("? {a: b}\n: c")
def test_any_text_is_a_device_configuration_or_says_why_not(text: str) -> None:
    values = loaded(lambda: load_device_config(text, file="f", schemas=SCHEMAS))
    assert (values or {}).keys() <= SCHEMAS.keys()


@given(plain_trees)
def test_any_tree_is_a_device_configuration_or_says_why_not(tree: Any) -> None:
    text = yaml.safe_dump({"nvidia": tree, "vnpus": [tree]})
    loaded(lambda: load_device_config(text, file="f", schemas=SCHEMAS))


keys = st.sampled_from(
    [
        "name",
        "operatingmode",
        "devicesplitcount",
        "devicememoryscaling",
        "libcudaloglevel",
        "filterdevices",
        "migstrategy",
    ]
)
entries = st.dictionaries(keys, plain_trees | st.sampled_from(["mig", "mps", "none", {"uuid": ["a"]}]))


@given(st.lists(entries, max_size=3).map(lambda made: json.dumps({"nodeconfig": made})) | fragments | st.text())
def test_any_text_is_a_node_configuration_or_says_why_not(text: str) -> None:
    overrides = loaded(lambda: load_node_config(text, file="f")) or []
    for node in {entry.name for entry in overrides}:
        settings = effective({}, override_for(overrides, node))
        assert settings.mode in ("hami-core", "mig", "mps")
        assert settings.split_count >= 0
