"""Whatever a selector says, it is refused or answered at little cost, and shared answers are those of each card."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tessera.core.model.devices import Attribute, Published
from tessera.wire.cel import Selector, compile_selector
from tessera.wire.cel.functions import BadPattern, matches
from tessera.wire.cel.selectors import EVERYTHING
from tessera.wire.cel.values import Meter

DRIVER = "gpu.tessera.io"
MAX_CALLS = 100_000
"""of Python functions for one text, compiling and evaluating; ordinary ones take hundreds"""

WORDS = st.sampled_from(
    ["device", ".attributes", ".driver", "['gpu.tessera.io']", ".model", ".uuid", ".index", "(", ")", "[", "]", ",",
     "'a'", "1", "true", "false", "&&", "||", "!", "==", "<", "in", "+", "*", "?", ":", "-", "has(", "cel.bind(", "x",
     ".exists(x,", ".all(x,", ".matches(", "'(a*)*$'", "size(", "quantity('1Gi')", "semver('1.2.3')", ".compareTo(",
     " in device.attributes", "'gpu.tessera.io'", "'other.example'", " ", "//", "\n", "'"]
)  # fmt: skip


def card(model: str = "H200", uuid: str = "GPU-1") -> Published:
    return Published(
        common=(Attribute(f"{DRIVER}/index", "int", 1), Attribute(f"{DRIVER}/model", "string", model)),
        own=(Attribute(f"{DRIVER}/uuid", "string", uuid),),
        capacity=((f"{DRIVER}/memory", 2**30),),
    )


def meter() -> Meter:
    return Meter(100_000)


def calls_of(work: Callable[[], object]) -> int:
    """How many Python functions a piece of work calls: what it costs, on any machine."""
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


@given(st.one_of(st.text(max_size=200), st.lists(WORDS, max_size=40).map("".join)))
def test_any_text_is_answered_at_little_cost(text: str) -> None:
    def judge() -> None:
        found = compile_selector.__wrapped__(text)
        if isinstance(found, Selector):
            assert found.accepts(card(), driver=DRIVER) in (True, False)
        else:
            assert found

    assert calls_of(judge) < MAX_CALLS


@given(st.integers(1, 12), st.sampled_from(["exists", "all"]), st.integers(1, 40))
def test_loops_in_loops_end(depth: int, loop: str, size: int) -> None:
    items = f"[{','.join('1' * size)}]"
    text = "x == 2" if loop == "exists" else "x == 1 && 'aaaaaaaaaaaaaaaa'.matches('a{16}')"
    for _ in range(depth):
        text = f"{items}.{loop}(x, {text})"
    found = compile_selector(text)
    if isinstance(found, Selector):
        assert calls_of(lambda: found.accepts(card(), driver=DRIVER)) < MAX_CALLS


@given(st.integers(1, 20))
def test_texts_that_double_and_double_do_not_grow(depth: int) -> None:
    text = "x.size() > 0"
    for _ in range(depth):
        text = f"cel.bind(x, x + x, {text})"
    found = compile_selector(f"cel.bind(x, '{'a' * 100}', {text})")
    assert isinstance(found, Selector)
    assert found.accepts(card(), driver=DRIVER) is (depth <= 5)


@given(st.text(alphabet="ab()[]|*+?{}1,^$.\\-d", max_size=30), st.text(alphabet="ab1-", max_size=80))
def test_any_pattern_is_answered_at_little_cost(pattern: str, text: str) -> None:
    def search() -> None:
        with suppress(BadPattern):
            matches(text, pattern, meter())

    assert calls_of(search) < MAX_CALLS


@given(st.lists(WORDS, max_size=30).map("".join), st.sampled_from(["A100", "H200"]))
def test_a_selector_that_does_not_read_what_is_the_cards_own_does_not_depend_on_it(text: str, model: str) -> None:
    found = compile_selector(text)
    if isinstance(found, Selector) and not found.reads_own:
        whole = card(model)
        shared = Published(common=whole.common, capacity=whole.capacity)
        assert found.accepts(whole, driver=DRIVER) is found.accepts(shared, driver=DRIVER)


@given(st.lists(WORDS, max_size=30).map("".join))
def test_what_is_not_read_does_not_matter(text: str) -> None:
    found = compile_selector(text)
    if isinstance(found, Selector):
        whole = replace(card(), common=(*card().common, Attribute("other.example/x", "int", 1)))
        assert found.answer(whole, driver=DRIVER) is found.evaluate(EVERYTHING.at(whole).values(DRIVER))
