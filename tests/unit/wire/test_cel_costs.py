"""What selectors are charged: by the work that they do, whatever it is, and no more than they may."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

import pytest

from tessera.core.model.devices import Attribute, Published
from tessera.core.model.published_cards import CLUSTER_COST
from tessera.wire.cel import AllOf, Selector, compile_selector
from tessera.wire.cel.functions import BadPattern, check_pattern, matches
from tessera.wire.cel.syntax import MAX_LENGTH, MAX_PARTS
from tessera.wire.cel.values import (
    BAD_PATTERN,
    MAX_COST,
    MAX_TEXT,
    PATTERN_CHARACTER,
    PATTERN_STATE,
    SEARCHED_STATES,
    UNICODE_CLASS,
    Meter,
    TooCostly,
    add,
    contains,
    equal,
    less,
)

DRIVER = "gpu.tessera.io"
G = f"device.attributes['{DRIVER}']"
NVIDIA = "device.attributes['gpu.nvidia.com']"
CARD = Published(
    common=(
        Attribute(f"{DRIVER}/model", "string", "NVIDIA H200"),
        Attribute(f"{DRIVER}/far", "string", "\u00e4" * 64),
        Attribute("gpu.nvidia.com/architecture", "string", "Hopper"),
        Attribute("gpu.nvidia.com/cudaComputeCapability", "version", "9.0.0"),
        Attribute("gpu.nvidia.com/driverVersion", "version", "580.65.6"),
        Attribute("gpu.nvidia.com/productName", "string", "NVIDIA H100 80GB HBM3"),
        Attribute("gpu.nvidia.com/type", "string", "gpu"),
    ),
    own=(Attribute(f"{DRIVER}/uuid", "string", "GPU-1"),),
    capacity=((f"{DRIVER}/memory", 80 * 2**30), ("gpu.nvidia.com/memory", 80 * 2**30)),
)
CALLS_OF_A_UNIT = 2
"""of Python functions that one unit pays for, at most; what C code does is priced by size"""


def grown(value: str, times: int) -> str:
    """Put together with itself until it is 4 ** `times` as long, and not the same on all devices."""
    text = value
    for _ in range(times):
        text = f"cel.bind(t, {text}, t + t + t + t)"
    return text


def shared(item: str, *, sharing: int = 8, depth: int = 8) -> str:
    """Lists in lists that share their parts."""
    text = "a == b"
    for _ in range(depth):
        text = f"cel.bind(a, [{','.join('a' * sharing)}], cel.bind(b, [{','.join('b' * sharing)}], {text}))"
    return f"cel.bind(a, {item}, cel.bind(b, {item}, {text}))"


def calls_of(work: Callable[[], object]) -> int:
    """How many Python functions a piece of work calls."""
    counted = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal counted
        counted += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return counted


def cost(text: str) -> int:
    answer = AllOf(DRIVER, (text,)).answer(CARD)
    assert not answer.is_too_costly
    return answer.cost


def refuse_pattern(pattern: str, meter: Meter) -> None:
    with pytest.raises(BadPattern):
        check_pattern(pattern, meter)


MODELS, LONG = grown(f"[{G}.model]", 5), grown(f"{G}.model", 4)
RANGES = "".join(f"{letter}-{letter}" for letter in "abcdefghijk")
HOSTILE = {
    "lists that share their parts": shared(f"[{G}.model]"),
    "empty lists that share their parts": shared("[]"),
    "== of long lists": f"cel.bind(x, {grown(f'[{G}.model]', 6)}, x == x)",
    "in a long list": f"cel.bind(x, {grown(f'[{G}.model]', 6)}, 'a' in x)",
    "in lists of long lists": f"cel.bind(x, {MODELS}, [x, x, x] in [[x, x, 1], [x, x, 2], [x, x, x]])",
    "lists that are put together": f"cel.bind(x, {MODELS}, [{','.join('1' * 30)}].all(i, size(x + x + x) > 0))",
    "lowerAscii()": f"cel.bind(x, {grown(f'{G}.far', 3)}, [1, 2, 3, 4, 5, 6].all(i, x.lowerAscii() != ''))",
    "contains()": f"cel.bind(x, {LONG}, [1, 2, 3].all(i, !x.contains(x.lowerAscii())))",
    "a pattern": f"cel.bind(x, {LONG}, x.matches('(a|N|V|I|D|A| |H|2|0){{60}}x'))",
    "a pattern with many ranges": f"{LONG}.matches('(?i)[{RANGES}]{{60}}')",
    "computed patterns": f"[1, 2, 3, 4, 5, 6].all(i, !{G}.model.matches({grown(f'{G}.uuid', 3)}))",
    "failures": f"[{','.join('1' * 300)}].exists(x, {G}.nothing == x)",
    "quantities": f"[{','.join('1' * 300)}].exists(x, isQuantity({G}.model))",
    "loops in loops": f"[{','.join('1' * 99)}].all(x, [{','.join('1' * 99)}].all(y, x == y && {G}.model != ''))",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_work_ends_when_the_budget_is_spent_and_nothing_gets_over_that(text: str) -> None:
    for whole in (text, f"{text} || true", f"true || {text}", f"!(({text}) && false)", f"cel.bind(z, {text}, true)"):
        found = compile_selector(whole)
        if isinstance(found, str):
            assert found == "it takes too much work, whatever the device is"
            continue
        selectors = AllOf(DRIVER, (whole,))
        assert calls_of(partial(selectors.answer, CARD)) < CALLS_OF_A_UNIT * MAX_COST
        answer = selectors.answer(CARD)
        decides_before = whole.startswith("true ||")
        assert answer.accepts is decides_before
        assert answer.is_too_costly is not decides_before


@pytest.mark.parametrize(
    ("small", "large", "more"),
    [
        (grown(f"[{G}.model]", 1), grown(f"[{G}.model]", 4), 16),
        ("'a'", grown(f"{G}.model", 4), 10),
        (f"{G}.model.lowerAscii()", f"{grown(f'{G}.model', 4)}.lowerAscii()", 100),
        (f"{G}.far.upperAscii()", f"{grown(f'{G}.far', 3)}.upperAscii()", 3000),
    ],
)
def test_what_is_larger_costs_more(small: str, large: str, more: int) -> None:
    assert cost(f"cel.bind(x, {large}, true)") - cost(f"cel.bind(x, {small}, true)") >= more


@pytest.mark.parametrize(
    ("work", "least"),
    [
        (lambda meter: equal(meter, (1,) * MAX_TEXT, (1,) * MAX_TEXT), MAX_TEXT),
        (lambda meter: equal(meter, ((),) * MAX_TEXT, ((),) * MAX_TEXT), MAX_TEXT),
        (lambda meter: equal(meter, "a" * MAX_TEXT, "a" * MAX_TEXT), MAX_TEXT // 128),
        (lambda meter: contains(meter, (1,) * MAX_TEXT, 2), MAX_TEXT),
        (lambda meter: contains(meter, {}, "a" * MAX_TEXT), MAX_TEXT // 128),
        (lambda meter: less(meter, "a" * MAX_TEXT, "a" * MAX_TEXT), MAX_TEXT // 128),
        (lambda meter: add(meter, (1,) * 2000, (1,) * 2000), 500),
        (lambda meter: add(meter, "a" * 2000, "a" * 2000), 30),
        (lambda meter: check_pattern("(a{9}){9}", meter), 81 * PATTERN_STATE),
        (lambda meter: check_pattern("a" * 99, meter), 99 * PATTERN_CHARACTER),
        (lambda meter: check_pattern(r"\pL\PN", meter), 2 * UNICODE_CLASS),
        (lambda meter: refuse_pattern(".{1000}", meter), BAD_PATTERN),
        (lambda meter: matches("ab" * 999, "ab*c", meter), 3 * 1998 // SEARCHED_STATES),
    ],
)
def test_no_operation_is_free(work: Callable[[Meter], object], least: int) -> None:
    meter = Meter(10**6)
    work(meter)
    assert meter.spent >= least
    with pytest.raises(TooCostly):
        work(Meter(least - 1))


def test_a_list_that_all_devices_share_is_looked_up_and_not_searched() -> None:
    many = ", ".join(f"'GPU-{number:032}'" for number in range(250))
    assert cost(f"{G}.uuid in [{many}]") <= cost(f"{G}.uuid in ['GPU-2']") + 5


def test_what_a_selector_is_charged_depends_on_no_cache() -> None:
    texts = [f"isSemver({G}.model) || {G}.model.matches('^N.*' + '0$')", f"quantity('1Gi') == {G}.model || true"]
    first = [AllOf(DRIVER, (text,)).answer(CARD) for text in texts]
    compile_selector.cache_clear()
    assert [AllOf(DRIVER, (text, "true")).answer(CARD).cost - 3 for text in texts] == [each.cost for each in first]


def test_the_selectors_of_a_request_have_one_budget() -> None:
    dear = f"[{','.join('1' * 250)}].all(x, {G}.model != '')"
    assert 0.2 * MAX_COST < cost(dear) < MAX_COST
    assert AllOf(DRIVER, tuple(f"{dear} && {i} < 99" for i in range(9))).answer(CARD).is_too_costly


def test_only_what_is_read_is_looked_at() -> None:
    reads = AllOf(DRIVER, (f"{G}.model == 'x'",)).reads
    other = Published(common=CARD.common[:1], own=(), capacity=())
    assert reads(CARD) == reads(other)
    assert AllOf(DRIVER, (f"{G}.uuid == 'x'",)).reads(CARD) != AllOf(DRIVER, (f"{G}.uuid == 'x'",)).reads(other)


@pytest.mark.parametrize("text", ["'gpu.nvidia.com' in device.attributes", "'gpu.nvidia.com' in device.capacity"])
def test_which_domains_there_are_is_read_too(text: str) -> None:
    selectors = AllOf(DRIVER, (text,))
    assert not selectors.reads_own
    assert selectors.answer(CARD).accepts
    assert not selectors.answer(Published(common=CARD.common[:2])).accepts


# -- reading


@pytest.mark.parametrize(
    "text",
    [
        f"[{'1,' * (MAX_LENGTH // 2 - 10)}] == []",
        f"[{'[],' * (MAX_LENGTH // 3 - 10)}] == []",
        f"[{'1<1,' * (MAX_LENGTH // 4 - 10)}] == []",
        "||".join(["!true"] * (MAX_LENGTH // 8)),
        "||".join(f"'a'.matches('(a{{9{i % 10}}}){{9}}{i}')" for i in range(300)),
        "(" * MAX_LENGTH,
        "a." * (MAX_LENGTH // 2),
    ],
)
def test_a_long_expression_is_refused_at_little_cost(text: str) -> None:
    assert len(text) <= MAX_LENGTH
    assert isinstance(compile_selector.__wrapped__(text), str)
    assert calls_of(lambda: compile_selector.__wrapped__(text)) < 60 * MAX_PARTS


# -- what people write


@pytest.mark.parametrize(
    "text",
    [
        "device.driver == 'gpu.tessera.io'",
        f'{NVIDIA}.productName.lowerAscii().matches("^.*h100.*$")',
        f"{NVIDIA}.productName.matches('(?i)^NVIDIA (A100|H100|H200|B200)( SXM[45]| PCIe)?.*(40|80|141)GB.*$')",
        "device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('40Gi')) >= 0",
        f"{NVIDIA}.type == 'gpu' && {NVIDIA}.architecture in ['Ampere', 'Hopper', 'Blackwell']",
        f"{NVIDIA}.driverVersion.isGreaterThan(semver('570.0.0'))"
        f" && {NVIDIA}.cudaComputeCapability.compareTo(semver('9.0.0')) >= 0",
        f"['h200', 'b200', 'h100'].exists(m, {NVIDIA}.productName.lowerAscii().matches('.*' + m + '.*'))",
        f"cel.bind(gpu, {NVIDIA}, has(gpu.productName) && !gpu.productName.startsWith('Tesla'))",
        " || ".join(f"{NVIDIA}.productName == 'NVIDIA {name}'" for name in "ABCDEFGHIJKLMNOPQRSTUVWXYZ")
        + f" || {NVIDIA}.type == 'gpu'",
    ],
)
def test_what_people_write_costs_a_part_of_what_it_may(text: str) -> None:
    assert isinstance(compile_selector(text), Selector)
    answer = AllOf(DRIVER, ("device.driver == 'gpu.tessera.io'", text)).answer(CARD)
    assert answer.accepts
    assert answer.cost < 0.6 * MAX_COST


@pytest.mark.parametrize(
    "text", [f"{G}.uuid in ['GPU-1', 'GPU-2']", f"{G}.uuid.startsWith('GPU-1')", f"{G}.uuid != 'x' && {G}.model != 'x'"]
)
def test_cards_can_be_chosen_by_uuid_in_the_largest_clusters(text: str) -> None:
    selectors = AllOf(DRIVER, ("device.driver == 'gpu.tessera.io'", text))
    assert selectors.reads_own
    assert 2 * 40_000 * selectors.answer(CARD).cost < CLUSTER_COST, "by each of two requests"
