"""Selectors: compiled once per text, evaluated on what a device publishes.

A failure on a device (a missing attribute, types that do not go together) is no match. kube-scheduler does not place
the pod at all then, unless an earlier device is enough.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache

from tessera.core.devices import Published
from tessera.wire.cel.compiler import Scope, compile_text
from tessera.wire.cel.syntax import Unsupported
from tessera.wire.cel.values import Failed, Quantity, Value, semver

OWN_ATTRIBUTES = frozenset({"uuid", "pciBusID"})
"""that no two cards have in common"""
CACHED_ANSWERS = 4096
"""of one request's selectors; when there are more, all are dropped"""


class Selector:
    """One expression."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._evaluate, reads = compile_text(text)
        self.reads_own = not reads.is_complete or not OWN_ATTRIBUTES.isdisjoint(reads.names)

    def accepts(self, published: Published, *, driver: str) -> bool:
        """Whether a device of this driver matches."""
        return self.answer(published, driver=driver) is True

    def answer(self, published: Published, *, driver: str) -> bool | None:
        """None if the expression fails on the device."""
        return self.evaluate(_device(published, driver))

    def evaluate(self, device: Mapping[str, Value]) -> bool | None:
        """None if there is no value, or one that is neither true nor false."""
        try:
            found = self._evaluate(Scope(device))
        except Failed:
            return None
        return found if isinstance(found, bool) else None


@lru_cache(maxsize=1024)
def compile_selector(text: str) -> Selector | str:
    """The selector, or why it is not supported."""
    try:
        return Selector(text)
    except Unsupported as error:
        return str(error)


class _Domains(dict[str, Value]):
    """By domain; one that a device does not have is empty."""

    def __missing__(self, key: str) -> Value:
        return {}


@lru_cache(maxsize=1024)
def _device(published: Published, driver: str) -> dict[str, Value]:
    attributes, capacity = _Domains(), _Domains()
    for name, kind, value in (*published.common, *published.own):
        found: Value | None = value
        if kind == "version":
            found = semver(str(value))
        if found is not None:
            _put(attributes, name, driver, found)
    for name, amount in published.capacity:
        _put(capacity, name, driver, Quantity(Fraction(amount)))
    return {
        "driver": driver, "attributes": attributes, "capacity": capacity, "allowMultipleAllocations": published.shared
    }  # fmt: skip


def _put(domains: _Domains, name: str, driver: str, value: Value) -> None:
    domain, slash, local = name.rpartition("/")
    found = domains.setdefault(domain if slash else driver, {})
    assert isinstance(found, dict)  # only maps are put here
    found[local] = value


class Answers:
    """What some selectors say of devices, each asked once: of all cards that share what they read."""

    def __init__(self, driver: str, texts: tuple[str, ...]) -> None:
        self._driver = driver
        self._selectors = [_known(text) for text in texts]
        self._known: dict[Published, bool] = {}
        self.reads_own = any(each.reads_own for each in self._selectors)

    def accepts(self, published: Published) -> bool:
        seen = published if self.reads_own else published.shareable
        answer = self._known.get(seen)
        if answer is None:
            if len(self._known) >= CACHED_ANSWERS:
                self._known.clear()
            answer = all(each.accepts(seen, driver=self._driver) for each in self._selectors)
            self._known[seen] = answer
        return answer


def _known(text: str) -> Selector:
    found = compile_selector(text)
    assert isinstance(found, Selector)  # it was compiled when the request was read
    return found


_answers = lru_cache(maxsize=1024)(Answers)


@dataclass(frozen=True, slots=True)
class AllOf:
    """Several selectors of one driver's devices: implements `core.requests.CardFilter`. Equal ones share answers."""

    driver: str
    texts: tuple[str, ...] = ()
    _answers: Answers = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_answers", _answers(self.driver, self.texts))

    @property
    def reads_own(self) -> bool:
        return self._answers.reads_own

    def accepts(self, published: Published) -> bool:
        return self._answers.accepts(published)
