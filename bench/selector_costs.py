"""Whether what a selector is charged bounds the time that it takes: a search for the worst ratio of the two.

    python -m bench.selector_costs --seconds 300
    python -m bench.selector_costs --seconds 20 --check

Random expressions of the whole language, and changes of the worst ones found so far. Each is evaluated on a card with
many long attributes, with nothing cached, and the fastest of several runs counts. So does reading an expression.
"""

from __future__ import annotations

import argparse
import gc
import random
import re
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import re2

from bench.measurement import Budget, table
from tessera.core.model.devices import Attribute, Published
from tessera.wire.cel import Selector, compile_selector, values
from tessera.wire.cel.selectors import RequestSelectors
from tessera.wire.cel.syntax import MAX_LENGTH
from tessera.wire.cel.values import MAX_COST
from tessera.wire.resource_api import DRIVER

MAX_NS = 150.0
"""of one unit; `costs` means 100, and a busy machine is slower"""
MAX_READ_MS = 50.0
RUNS, AGAIN = 5, 40
KEPT = 24
"""of the worst expressions, which are changed to find worse ones"""
DEEPEST = 7

CARD = Published(
    common=(
        *(Attribute(f"{DRIVER}/text{i}", "string", "aB" * 31 + f"{i:02}") for i in range(16)),
        Attribute(f"{DRIVER}/far", "string", "\u00e4\U0001f600" * 32),
        Attribute(f"{DRIVER}/index", "int", 7),
        Attribute(f"{DRIVER}/spare", "bool", True),
        Attribute(f"{DRIVER}/version", "version", "1.2.3-" + ".".join("ab12")),
    ),
    own=(Attribute(f"{DRIVER}/uuid", "string", "GPU-" + "a" * 60),),
    capacity=((f"{DRIVER}/memory", 80 * 2**30), (f"{DRIVER}/cores", 100)),
)


class Part(NamedTuple):
    """Of an expression: `{}` in the text stands for each of the parts."""

    kind: str
    text: str
    parts: tuple[Part, ...] = ()

    def __str__(self) -> str:
        return self.text.format(*self.parts)


WORDS = re.compile(r"[.]?[a-zA-Z]+[(]|==|!=|<=|<| in |[-+*/?]")
RUNS_OF_TEXT = re.compile(r"(.{1,3}?)\1{7,}")

ATTRIBUTE = f"device.attributes['{DRIVER}']"
FORMS: dict[str, tuple[str, ...]] = {
    "bool": (
        "(<bool> && <bool>)", "(<bool> || <bool>)", "!<bool>", "(<bool> ? <bool> : <bool>)", "(<list> == <list>)",
        "(<list> != <list>)", "(<text> == <text>)", "(<int> < <int>)", "(<text> <= <text>)", "(<text> in <list>)",
        "(<list> in <list>)", "(<int> in <list>)", "<list>.exists(x, <bool>)", "<list>.all(y, <bool>)",
        "<text>.matches(<pattern>)", "<text>.matches(<pattern> + <text>)", "<text>.contains(<text>)",
        "<text>.startsWith(<text>)", "<text>.endsWith(<text>)", "cel.bind(x, <list>, <bool>)",
        "cel.bind(y, <text>, <bool>)", "isQuantity(<text>)", "isSemver(<text>)", "(<quantity> == <quantity>)",
        "<quantity>.isLessThan(<quantity>)", "<version>.isGreaterThan(<version>)", "(<version> == <version>)",
        f"has({ATTRIBUTE}.far)", f"(<text> in {ATTRIBUTE})", "<quantity>.isInteger()",
        "(<bool> || <bool> || <bool> || <bool> || <bool>)", f"{ATTRIBUTE}.missing",
    ),
    "int": (
        "(<int> + <int>)", "(<int> * <int>)", "(<int> / <int>)", "-<int>", "size(<text>)", "<list>.size()",
        "<version>.major()", "<quantity>.compareTo(<quantity>)", "<quantity>.asInteger()", "<list>[<int>]", "y",
        f"{ATTRIBUTE}.index",
    ),
    "text": (
        "(<text> + <text>)", "<text>.lowerAscii()", "<text>.upperAscii()", f"{ATTRIBUTE}.far", f"{ATTRIBUTE}[<text>]",
        f"{ATTRIBUTE}.text0", f"{ATTRIBUTE}.uuid", "x", "y", "cel.bind(y, (<text> + <text>), (y + y + y + y))",
        "(<bool> ? <text> : <text>)", "<list>[<int>]", "device.driver",
    ),
    "list": (
        "[<text>, <text>]", "[<list>, <list>, <list>]", "(<list> + <list>)", "[x, x, x, x, x, x, x, x]",
        "cel.bind(x, <list>, (x + x + x + x))", "cel.bind(x, <list>, [x, x, x, x])", "x", "[<int>, <bool>]",
        "cel.bind(y, <text>, [y, y, y, y, y, y, y, y])", "[<quantity>, <version>]",
        f"cel.bind(x, [{ATTRIBUTE}.text1], <list>)",
    ),
    "quantity": ("quantity(<text>)", "<quantity>.add(<quantity>)", "<quantity>.sub(<int>)",
                 f"device.capacity['{DRIVER}'].memory"),
    "version": ("semver(<text>)", f"{ATTRIBUTE}.version"),
    "pattern": (),
}  # fmt: skip
LEAVES: dict[str, tuple[str, ...]] = {
    "bool": ("true", "false", f"{ATTRIBUTE}.spare"),
    "int": ("0", "9223372036854775807", f"{ATTRIBUTE}.index"),
    "text": (
        f"{ATTRIBUTE}.text0", f"{ATTRIBUTE}.far", "'a'", f"'{'a' * 500}'", f"'{'a' * 500}b'", "'\u00e9\U0001f600'",
        "'1e127'", "'0.0000000000000000000000000000000000000000000000000000001'", "'1.2.3-a.b.c.1.2.3.4.5.6.7.8.9'",
        f"'1.2.3-{'a.' * 120}b'",
    ),
    "list": (f"[{','.join('1' * 120)}]", f"[{ATTRIBUTE}.text0, {ATTRIBUTE}.far]", "[]", "[[]]", f"[{'[],' * 60}]"),
    "quantity": ("quantity('1e100')", "quantity('0.000000001')", f"device.capacity['{DRIVER}'].memory"),
    "version": ("semver('1.2.3')", f"semver('1.2.3-{'1.' * 120}1')", f"{ATTRIBUTE}.version"),
    "pattern": (
        "'^.*a.*$'", "'(a|a|b)*c'", "'(a{50}){10}'", "'[b-zA-Y0-9]*x'", "'(?i)(aB)+c'", "'.*.*.*.*x'", "'[^b]{60}x'",
        "'(((a*)*)*)*b'", "'(|a|b|){20}c'", f"'[{''.join(chr(i) + '-' + chr(i) for i in range(0x100, 0x180))}]+x'",
        r"r'\\w+\\d*\\s?$'", "''", r"r'\pL\PN'", r"r'((^|$)*a)*((^|$)*a)*x'", "'.{999}'", "'[a-y]{90}z'", "'(?i)[^a]'",
    ),
}  # fmt: skip


class Found(NamedTuple):
    ns: float
    """of one unit"""
    units: int
    text: str
    part: Part

    @property
    def words(self) -> frozenset[str]:
        """The functions and operators in it: the worst expression of each kind is kept."""
        return frozenset(WORDS.findall(self.text))


class Search:
    """Random expressions, the worst of which are kept."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.worst: list[Found] = []
        self.tried = self.served = 0
        self.slowest_read = 0.0, ""

    def run(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            part = self._changed() if self.worst and self._random.random() < 0.6 else self._make("bool", DEEPEST)
            self._try(part)

    def measure_again(self) -> None:
        """The worst ones with more runs, because the machine may have been busy."""
        again = [each._replace(ns=min(time_per_unit(each.text)[0] for _ in range(AGAIN))) for each in self.worst]
        self.worst = sorted(again, reverse=True)
        text = self.slowest_read[1]
        self.slowest_read = min(_read_ms(text) for _ in range(AGAIN)), text

    def _try(self, part: Part) -> None:
        text = str(part)
        if len(text) > MAX_LENGTH:
            return
        self.tried += 1
        read = _read_ms(text)
        if read > self.slowest_read[0]:
            self.slowest_read = min(read, _read_ms(text)), text
        compiled = compile_selector.__wrapped__(text)
        if not isinstance(compiled, Selector):
            return
        self.served += 1
        ns, units = time_per_unit(text)
        if len(self.worst) < KEPT or ns > self.worst[-1].ns:
            # A pause of the machine must not be taken for an expensive expression.
            found = Found(min(ns, time_per_unit(text)[0]), units, text, part)
            others = {each.words: each for each in self.worst}
            others[found.words] = max(found, others.get(found.words, found))
            self.worst = sorted(others.values(), reverse=True)[:KEPT]

    def _make(self, kind: str, depth: int) -> Part:
        forms = FORMS[kind]
        if depth <= 0 or not forms or self._random.random() < 0.15:
            return Part(kind, self._random.choice(LEAVES[kind]).replace("{", "{{").replace("}", "}}"))
        form = self._random.choice(forms)
        pieces = form.split("<")
        kinds = [piece.partition(">") for piece in pieces[1:] if piece.partition(">")[0] in FORMS]
        text = form
        for name in FORMS:
            text = text.replace(f"<{name}>", "{}")
        return Part(kind, text, tuple(self._make(name, depth - 1) for name, _, _ in kinds))

    def _changed(self) -> Part:
        """One of the worst, with another part somewhere."""
        return self._change(self._random.choice(self.worst).part, DEEPEST)

    def _change(self, part: Part, depth: int) -> Part:
        if not part.parts or self._random.random() < 0.25:
            return self._make(part.kind, depth)
        place = self._random.randrange(len(part.parts))
        parts = list(part.parts)
        parts[place] = self._change(parts[place], depth - 1)
        return part._replace(parts=tuple(parts))


def time_per_unit(text: str) -> tuple[float, int]:
    """Nanoseconds of one unit, and the units, of looking at one card."""
    selectors = RequestSelectors(DRIVER, (text,))
    cost = selectors.judge(selectors.reads(CARD)).cost

    def look() -> None:
        selectors.judge(selectors.reads(CARD))

    return fastest(look) / cost, cost


def _read_ms(text: str) -> float:
    re2.purge()
    began = time.thread_time()
    compile_selector.__wrapped__(text)
    return (time.thread_time() - began) * 1_000


def fastest(work: Callable[[], object]) -> float:
    """Nanoseconds, of several runs with nothing cached."""
    found = []
    for _ in range(RUNS):
        values.semver.cache_clear()
        values.quantity.cache_clear()
        re2.purge()
        began = time.perf_counter_ns()
        work()
        found.append(time.perf_counter_ns() - began)
    return min(found)


def shortened(text: str) -> str:
    """With what comes again and again counted instead."""
    text = text.replace(ATTRIBUTE, "G")
    return RUNS_OF_TEXT.sub(lambda run: f"{run[1]}*{len(run[0]) // len(run[1])}", text)[:300]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.selector_costs", description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to search")
    parser.add_argument("--seed", type=int, default=1, help="where the search begins")
    parser.add_argument("--show", type=int, default=5, help="of the worst expressions, how many to print")
    parser.add_argument("--check", action="store_true", help="compare with the budgets; exit 1 if one is exceeded")
    options = parser.parse_args(arguments)
    gc.disable()
    search = Search(options.seed)
    search.run(options.seconds)
    search.measure_again()
    print(f"{search.tried} expressions, {search.served} of them served; {MAX_COST} units at most")
    for each in search.worst[: options.show]:
        print(f"{each.ns:>8.1f} ns per unit {each.units:>6} units  {shortened(each.text)}")
    print(f"{search.slowest_read[0]:>8.1f} ms to read   {shortened(search.slowest_read[1])}")
    if not options.check:
        return 0
    budgets = [
        Budget("worst time of a unit, ns", search.worst[0].ns, MAX_NS),
        Budget("slowest expression to read, ms", search.slowest_read[0], MAX_READ_MS),
    ]
    print(table(budgets))
    return 0 if all(budget.kept for budget in budgets) else 1


if __name__ == "__main__":
    sys.exit(main())
