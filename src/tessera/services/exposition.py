"""Metrics in Prometheus' text format, version 0.0.4: families, their samples, and how they are written.

A `MetricFamily` has the samples that one scrape finds; counters count from the start of the process. A `Series` is for
families with very many samples, which their owner keeps as text. Nothing is global: what belongs together is registered
in one `Registry`. prometheus_client is not used, because it takes five calls and two locks for each observation, and
0.7 s of the event loop for 40,000 series.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_NOT_FINITE = {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}


def escaped(text: str) -> str:
    """A label's value as it stands between the quotes."""
    return text.translate(_ESCAPES) if "\\" in text or '"' in text or "\n" in text else text


def encoded(text: str) -> bytes:
    """UTF-8 whatever a node registered: half a surrogate pair, which JSON can carry, becomes a question mark."""
    return text.encode("utf-8", "replace")


def number(value: float) -> str:
    text = repr(float(value))
    return _NOT_FINITE.get(text, text)


def _header(name: str, help: str, kind: str) -> bytes:
    kind = "gauge" if kind == "info" else kind  # This version of the format has no such type.
    return encoded(f"# HELP {name} {help}\n# TYPE {name} {kind}\n")


@dataclass(frozen=True, slots=True)
class Series(Generic[T]):
    """A family of series, and how one thing is shown in it."""

    name: str
    help: str
    """one line, without backslashes"""
    sample: Callable[[T], str]
    """labels in braces, a space and the value; empty where this thing has no sample"""
    kind: str = "gauge"

    @property
    def header(self) -> bytes:
        return _header(self.name, self.help, self.kind)

    def lines(self, things: list[T]) -> bytes:
        name, sample = self.name, self.sample
        return encoded("".join([f"{name}{text}\n" for thing in things if (text := sample(thing))]))


class MetricFamily:
    """One metric as one scrape finds it. Names of counters end in `_total`."""

    def __init__(self, kind: str, name: str, help: str, labels: Iterable[str] = ()) -> None:
        self.kind, self.name, self.help = kind, name, help
        self.labels = tuple(labels)
        self._lines: list[str] = []

    def add(self, value: float, labels: Iterable[str] = (), *, ending: str = "") -> None:
        """A sample with these values of the first labels; `ending` follows the name of the family. Labels are sorted,
        as in HAMi's text."""
        pairs = sorted(f'{label}="{escaped(text)}"' for label, text in zip(self.labels, labels, strict=False))
        shown = f"{{{','.join(pairs)}}}" if pairs else ""
        self._lines.append(f"{self.name}{ending}{shown} {number(value)}\n")

    def text(self) -> bytes:
        return _header(self.name, self.help, self.kind) + encoded("".join(self._lines))


Found = float | Mapping[str, float]
"""a value, or one for each value of a label"""


def gauge(name: str, help: str, found: Found, *, label: str = "") -> MetricFamily:
    return _family("gauge", name, help, found, label)


def counter(name: str, help: str, found: Found, *, label: str = "") -> MetricFamily:
    return _family("counter", name, help, found, label)


def info(name: str, help: str, facts: Mapping[str, str]) -> MetricFamily:
    """What does not change, as labels. The name ends in `_info`."""
    family = MetricFamily("info", name, help, facts)
    family.add(1, facts.values())
    return family


def _family(kind: str, name: str, help: str, found: Found, label: str) -> MetricFamily:
    family = MetricFamily(kind, name, help, [label] if label else [])
    for value, amount in found.items() if isinstance(found, Mapping) else [("", found)]:
        family.add(amount, [value])
    return family


Collect = Callable[[], Iterable[MetricFamily]]


class Registry:
    """The metrics of one process, in the order in which they were registered."""

    def __init__(self) -> None:
        self._collectors: list[Collect] = []

    def register(self, collect: Collect) -> None:
        """`collect` is called at each scrape."""
        self._collectors.append(collect)

    def collect(self) -> Iterator[MetricFamily]:
        for collect in self._collectors:
            yield from collect()

    def render(self) -> bytes:
        return b"".join(family.text() for family in self.collect())


class Counter:
    """A total since the start, or one for each value of a label. Each of `values` is shown from the start, with 0."""

    def __init__(
        self, registry: Registry, name: str, help: str, *, label: str = "", values: Sequence[str] = ("",)
    ) -> None:
        self._counts = dict.fromkeys(values, 0.0)
        registry.register(lambda: [counter(name, help, self._counts, label=label)])

    def add(self, amount: float = 1.0, *, value: str = "") -> None:
        self._counts[value] += amount
