"""Selectors of devices: values as CEL has them, failures that do not match, and what is refused by name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tessera.core.model.devices import Attribute, Published
from tessera.wire.cel import AllOf, Selector, compile_selector
from tessera.wire.cel.functions import FUNCTIONS, METHODS, BadPattern, matches
from tessera.wire.cel.syntax import MAX_LENGTH, MAX_PARTS
from tessera.wire.cel.values import Meter
from tests.support.claims import FAILED, FALSE, TRUE, G

DRIVER = "gpu.tessera.io"
CARD = Published(
    common=(
        Attribute(f"{DRIVER}/computeCapability", "version", "9.0.0"),
        Attribute(f"{DRIVER}/driverVersion", "version", "580.65.6"),
        Attribute(f"{DRIVER}/index", "int", 1),
        Attribute(f"{DRIVER}/model", "string", "NVIDIA H200"),
        Attribute(f"{DRIVER}/spare", "bool", True),
        Attribute("resource.kubernetes.io/pcieRoot", "string", "pci0000:00"),
    ),
    own=(Attribute(f"{DRIVER}/uuid", "string", "GPU-1"),),
    capacity=((f"{DRIVER}/cores", 100), (f"{DRIVER}/memory", 140 * 2**30)),
    shared=True,
)
REFUSED = {
    "": "ends too early",
    "true true": '"true" at character 6',
    "(true": "ends too early",
    "devices.driver == 'x'": "the name devices",
    "device.name == 'x'": "device.name",
    "device": "as a whole",
    "device.attributes == device.attributes": "as a whole",
    f"{G} == {G}": "as a whole",
    f"{G}.size() == 1": "as a whole",
    f"{G}.exists(k, true)": "as a whole",
    "has(device.attributes)": "has(device.attributes)",
    "has(device)": "has() takes a field",
    "device.attributes['x'].?y.orValue(true)": '"?"',
    "1.5 == 1.5": '"1.5',
    "1u == 1u": '"1u',
    "{'a': 1} == {'a': 1}": '"{',
    "null == null": '"null"',
    "'a'.split(',') == []": "the method split()",
    "dyn(1) == 1": "the function dyn()",
    "quantity('1', '2')": "the function quantity() with 2 arguments",
    "'a'.matches('(?=a)')": "the pattern of matches(): invalid perl operator: (?=",
    "'a": "a string without an end",
    "'\\q'": "the escape",
    "99999999999999999999 == 1": "too large",
    "[1].map(x, x) == [1]": "the method map()",
    "cel.bind(1, 2, true)": "cel.bind() takes",
    "(" * 30 + "true" + ")" * 30: "nested more than",
    "!" * 30 + "true": "nested more than",
    "1" + "+1" * 100 + " == 1": "steps deep",
    "true" + " " * MAX_LENGTH: "characters",
    "true \\ false": "cannot be read",
    f"'{'a' * 4000}'.matches('(a{{50}}){{10}}')": "too much work",
    f"[{'1,' * MAX_PARTS}].exists(x, x == 2)": "parts",
}


def meter() -> Meter:
    return Meter(100_000)


def selector(text: str) -> Selector:
    found = compile_selector(text)
    assert isinstance(found, Selector), found
    return found


@pytest.mark.parametrize("text", TRUE)
def test_matches(text: str) -> None:
    assert selector(text).accepts(CARD, driver=DRIVER)


@pytest.mark.parametrize("text", FALSE)
def test_does_not_match(text: str) -> None:
    assert selector(text).accepts(CARD, driver=DRIVER) is False


@pytest.mark.parametrize("text", FAILED)
def test_a_failure_is_no_match_and_its_opposite_none_either(text: str) -> None:
    assert not selector(text).accepts(CARD, driver=DRIVER)
    assert not selector(f"!({text})").accepts(CARD, driver=DRIVER)


@pytest.mark.parametrize(("text", "reason"), REFUSED.items(), ids=[text[:30] for text in REFUSED])
def test_the_rest_of_the_language_is_refused_by_name(text: str, reason: str) -> None:
    found = compile_selector(text)
    assert isinstance(found, str)
    assert reason in found


@pytest.mark.parametrize(
    ("text", "reads_own"),
    [
        (f"{G}.model == 'GPU-1'", False),
        (f"{G}.uuid == 'GPU-1'", True),
        (f"has({G}.uuid)", True),
        (f"{G}['uuid'] == 'GPU-1'", True),
        (f"'uuid' in {G}", True),
        (f"{G}['uu' + 'id'] == 'GPU-1'", True),
        (f"cel.bind(g, {G}, g.uuid == 'GPU-1')", True),
        ("device.attributes['resource.kubernetes.io'].pciBusID == '0000:01:00.0'", True),
        ("'uuid' in device.attributes || 'uuid' == 'uuid'", False),
    ],
)
def test_what_is_the_cards_own_is_known_to_be_read(text: str, reads_own: bool) -> None:
    assert AllOf(DRIVER, ("true", text)).reads_own is reads_own


def test_several_selectors_must_all_match() -> None:
    assert AllOf(DRIVER, ("true", f"{G}.index == 1")).answer(CARD).accepts
    assert not AllOf(DRIVER, ("true", f"{G}.index == 2")).answer(CARD).accepts
    assert AllOf(DRIVER).answer(CARD).accepts


# -- regular expressions


@pytest.mark.parametrize(
    ("pattern", "text"),
    [("a{,2}", "a{,2}"), ("^[[:alpha:]]+$", "x"), (r"\bH100\b", "NVIDIA H100 80GB"), ("(?i)É", "é"), (r"^\pL+$", "Äé")],
)
def test_patterns_are_those_of_re2(pattern: str, text: str) -> None:
    assert matches(text, pattern, meter())
    assert not matches("a1", pattern, meter())


@pytest.mark.parametrize("pattern", ["(", "a**", "a{3,2}", "(?=a)", r"\1", "[b-a]", "\\", "((a{100}){100})", r"a\C"])
def test_other_patterns_are_refused(pattern: str) -> None:
    with pytest.raises(BadPattern):
        matches("a", pattern, meter())


def test_a_pattern_that_would_take_pythons_engine_years_is_answered_at_once() -> None:
    assert matches("a" * 60 + "b", "^(a+)+$", meter()) is False


def test_half_a_surrogate_pair_is_a_letter_that_is_not_there() -> None:
    assert matches("a", "a|\ud800", meter())
    assert not matches("\ud800", "a", meter())


# -- the page that lists what is there

PAGE = (Path(__file__).parents[3] / "docs/claims.md").read_text().partition("\n## Selectors\n")[2]
OPERATORS = frozenset(["==", "!=", "<", "<=", ">", ">=", "+", "-", "*", "/", "%", "!"]) | {"negate"}


def test_the_examples_of_the_page_are_served() -> None:
    (block,) = re.findall(r"^```\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert [line for line in block.splitlines() if not isinstance(compile_selector(line), Selector)] == []
    assert len(block.splitlines()) > 4


def test_the_page_lists_every_function_and_method() -> None:
    listed = set(re.findall(r"`([a-zA-Z]+)`", PAGE))
    assert {*FUNCTIONS, *METHODS} - OPERATORS <= listed
