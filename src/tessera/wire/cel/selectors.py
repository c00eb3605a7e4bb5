"""Selectors: compiled once per text, evaluated on what a device publishes.

A failure on a device (a missing attribute, types that do not go together) is no match. kube-scheduler does not place
the pod at all then, unless an earlier device is enough. Selectors that would cost too much on a device do not match it
either, and the answer says so. Only what they read of a device is looked at.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple, TypeVar

from tessera.core.model.devices import Attribute, Published
from tessera.core.model.requests import FilterAnswer
from tessera.wire.cel.compiler import Domains, Scope, compile_text
from tessera.wire.cel.syntax import Unsupported
from tessera.wire.cel.values import (
    ATTRIBUTE,
    DEVICE,
    MAX_COST,
    READ_TEXT,
    Failed,
    Meter,
    Quantity,
    TooCostly,
    Value,
    semver,
)

T = TypeVar("T", bound=Hashable)

OWN_ATTRIBUTES = frozenset({"uuid", "pciBusID"})
"""that no two cards have in common"""
CACHED_SELECTORS = 256
"""a selector of `MAX_PARTS` takes some hundred kilobytes"""
CACHED_REQUESTS, CACHED_ANSWERS = 256, 1024
"""requests' selectors whose last answers are kept, and how many of each; when there are more, they are dropped"""


class Selector:
    """One expression."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._evaluate, reads, self.parts = compile_text(text)
        self.look = _Look(frozenset(reads.names) if reads.is_complete else None, reads.domains)
        self.reads_own = self.look.names is None or not OWN_ATTRIBUTES.isdisjoint(self.look.names)

    def accepts(self, published: Published, *, driver: str) -> bool:
        """Whether a device of this driver matches."""
        return self.answer(published, driver=driver) is True

    def answer(self, published: Published, *, driver: str) -> bool | None:
        """None if the expression fails on the device."""
        return self.evaluate(self.look.at(published).values(driver))

    def evaluate(self, device: Mapping[str, Value]) -> bool | None:
        """None if there is no value, or one that is neither true nor false."""
        try:
            return self.evaluate_within(device, Meter(MAX_COST))
        except TooCostly:
            return None

    def evaluate_within(self, device: Mapping[str, Value], meter: Meter) -> bool | None:
        """The same, but raises TooCostly."""
        try:
            found = self._evaluate(Scope(device, meter))
        except Failed:
            return None
        return found if isinstance(found, bool) else None


@lru_cache(maxsize=CACHED_SELECTORS)
def compile_selector(text: str) -> Selector | str:
    """The selector, or why it is not supported."""
    try:
        return Selector(text)
    except Unsupported as error:
        return str(error)


class _Look(NamedTuple):
    """What selectors look at."""

    names: frozenset[str] | None
    """of attributes and capacities; None: all"""
    domains: bool
    """whether they ask which domains there are"""

    def at(self, published: Published) -> Seen:
        attributes, capacity = (*published.common, *published.own), published.capacity
        domains: tuple[frozenset[str], ...] = ()
        if self.domains:
            domains = (_domains(each.name for each in attributes), _domains(name for name, _ in capacity))
        if self.names is not None:
            attributes = tuple([each for each in attributes if _split(each.name)[1] in self.names])
            capacity = tuple([each for each in capacity if _split(each[0])[1] in self.names])
        return Seen(attributes, capacity, published.shared, domains)


EVERYTHING = _Look(names=None, domains=True)


class Seen(NamedTuple):
    """What selectors read of a device."""

    attributes: tuple[Attribute, ...]
    capacity: tuple[tuple[str, int], ...]
    shared: bool
    domains: tuple[frozenset[str], ...] = ()
    """of attributes and of capacities, if they matter"""

    @property
    def cost(self) -> int:
        """What it costs to find it and to make values of it."""
        versions = sum(each.kind == "version" for each in self.attributes)
        return DEVICE + ATTRIBUTE * (len(self.attributes) + len(self.capacity)) + READ_TEXT * versions

    def values(self, driver: str) -> dict[str, Value]:
        """The device, as far as it is read."""
        attributes, capacity = Domains(), Domains()
        for domains, names in zip((attributes, capacity), self.domains, strict=False):
            domains.update({name or driver: {} for name in names})
        for name, kind, value in self.attributes:
            found: Value | None = value
            if kind == "version":
                found = semver(str(value))
            if found is not None:
                _put(attributes, name, driver, found)
        for name, amount in self.capacity:
            _put(capacity, name, driver, Quantity(Fraction(amount)))
        return {
            "driver": driver, "attributes": attributes, "capacity": capacity, "allowMultipleAllocations": self.shared
        }  # fmt: skip


def _domains(names: Iterable[str]) -> frozenset[str]:
    return frozenset([_split(name)[0] for name in names])


@lru_cache(maxsize=1024)
def _split(name: str) -> tuple[str, str]:
    """Domain, which may be empty, and local name."""
    domain, _, local = name.rpartition("/")
    return domain, local


def _put(domains: Domains, name: str, driver: str, value: Value) -> None:
    domain, local = _split(name)
    found = domains.setdefault(domain or driver, {})
    assert isinstance(found, dict)  # only maps are put here
    found[local] = value


class RequestSelectors:
    """Those of one request, and what they have said last."""

    def __init__(self, driver: str, texts: tuple[str, ...]) -> None:
        self._driver = driver
        self._selectors = [_known(text) for text in texts]
        names = [each.look.names for each in self._selectors]
        known = [each for each in names if each is not None]
        self._look = _Look(
            frozenset[str]().union(*known) if len(known) == len(names) else None,
            any(each.look.domains for each in self._selectors),
        )
        self.reads_own = any(each.reads_own for each in self._selectors)
        self._by_card: dict[Published, FilterAnswer] = {}
        self._by_reads: dict[Seen, FilterAnswer] = {}

    def reads(self, published: Published) -> Seen:
        return self._look.at(published)

    def answer(self, published: Published) -> FilterAnswer:
        known = published if self.reads_own else published.shareable
        answer = self._by_card.get(known)
        if answer is None:
            reads = self.reads(known)
            answer = self._by_reads.get(reads) or self.judge(reads)
            _keep(self._by_card, known, answer)
            _keep(self._by_reads, reads, answer)
        return answer

    def judge(self, seen: Seen) -> FilterAnswer:
        """The answer about what was read, not remembered."""
        device, meter = seen.values(self._driver), Meter(MAX_COST)
        try:
            accepts = all(each.evaluate_within(device, meter) for each in self._selectors)
        except TooCostly:
            return FilterAnswer(accepts=False, cost=seen.cost + MAX_COST, is_too_costly=True)
        return FilterAnswer(accepts, seen.cost + meter.spent)


def _keep(answers: dict[T, FilterAnswer], key: T, answer: FilterAnswer) -> None:
    if len(answers) >= CACHED_ANSWERS:
        answers.clear()
    answers[key] = answer


def _known(text: str) -> Selector:
    found = compile_selector(text)
    assert isinstance(found, Selector)  # it was compiled when the request was read
    return found


_selectors = lru_cache(maxsize=CACHED_REQUESTS)(RequestSelectors)


@dataclass(frozen=True, slots=True)
class AllOf:
    """Several selectors of one driver's devices: implements `core.requests.CardFilter`."""

    driver: str
    texts: tuple[str, ...] = ()

    @property
    def reads_own(self) -> bool:
        return _selectors(self.driver, self.texts).reads_own

    def reads(self, published: Published) -> Hashable:
        return _selectors(self.driver, self.texts).reads(published)

    def answer(self, published: Published) -> FilterAnswer:
        return _selectors(self.driver, self.texts).answer(published)
