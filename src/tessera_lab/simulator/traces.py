"""The nodes and pods of a trace, and their files.

Files are CSV with the columns of the public openb traces (docs/packing.md lists them), or the same as YAML. Missing
values have defaults; wrong ones are refused with the entry.

A synthetic trace follows what sharing clusters report: most pods request part of a card, half of the cards go to
whole-card pods, and a few pods take several. It is the same for the same seed.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from tessera.files.documents import DocumentError, read_documents
from tessera.files.reader import read_file

WHOLE = 1000
"""`gpu_milli` of a whole card"""


def model_word(model: str) -> str:
    """A card's model, in brackets: constraints match parts of names, and A10 is a part of A100."""
    return f"[{model.lower()}]"


class TraceError(Exception):
    """A file that cannot be used as a trace."""


@dataclass(frozen=True, slots=True)
class TraceNode:
    """A node: its host, and cards of one model."""

    name: str
    cpu: int
    """thousandths of a core"""
    memory: int
    """MiB"""
    cards: int
    model: str = ""
    mig: bool = False
    """whether the cards are in MIG mode, each with the profiles of an A100"""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """What a pod requests. Equal requests are placed alike."""

    cpu: int = 0
    memory: int = 0
    cards: int = 0
    milli: int = 0
    """thousandths of each card"""
    models: tuple[str, ...] = ()
    """accepted models; empty = any"""
    cores: int | None = None
    """per cent of each card's cores; None = as much as of its memory"""

    @property
    def demand(self) -> int:
        """Thousandths of cards."""
        return self.cards * self.milli

    @property
    def card_cores(self) -> int:
        """Per cent of each card's cores."""
        return self.milli // 10 if self.cores is None else self.cores

    @property
    def model_words(self) -> tuple[str, ...]:
        """The accepted models as cards have them."""
        return tuple(model_word(model) for model in self.models)


@dataclass(frozen=True, slots=True)
class TracePod:
    """A pod, and when it arrives and leaves, if the trace has times."""

    name: str
    ask: TraceRequest
    created: float | None = None
    """seconds"""
    deleted: float | None = None
    scheduled: float | None = None

    @property
    def lasts(self) -> float | None:
        """Seconds from start to end."""
        began = self.created if self.scheduled is None else self.scheduled
        return None if began is None or self.deleted is None else max(self.deleted - began, 0.0)


@dataclass(frozen=True, slots=True)
class Trace:
    name: str
    nodes: tuple[TraceNode, ...]
    pods: tuple[TracePod, ...]

    @property
    def capacity(self) -> int:
        """Thousandths of cards."""
        return WHOLE * sum(node.cards for node in self.nodes)


def read_trace(nodes: Path, pods: Path) -> Trace:
    return Trace(pods.stem, read_nodes(nodes), read_pods(pods))


def read_nodes(path: Path) -> tuple[TraceNode, ...]:
    """`sn`, `cpu_milli`, `memory_mib`, `gpu`, `model`; YAML entries may have `count` for equal nodes."""
    found = []
    for place, row in _rows(path, "nodes"):
        number = _number(path, place, row, "count", 1)
        name = str(row.get("sn") or row.get("name") or f"node-{place}")
        for copy in range(number):
            found.append(
                TraceNode(
                    name=name if number == 1 else f"{name}-{copy:04}",
                    cpu=_number(path, place, row, "cpu_milli"),
                    memory=_number(path, place, row, "memory_mib"),
                    cards=_number(path, place, row, "gpu", 0),
                    model=str(row.get("model") or ""),
                )
            )
    if len({node.name for node in found}) != len(found):
        raise TraceError(f"{path}: two nodes have the same name")
    if not any(node.cards for node in found):
        raise TraceError(f"{path}: no node has a card")
    return tuple(found)


def read_pods(path: Path) -> tuple[TracePod, ...]:
    """`name`, `cpu_milli`, `memory_mib`, `num_gpu`, `gpu_milli`, `gpu_spec`, and optional times."""
    found = []
    for place, row in _rows(path, "pods"):
        cards = _number(path, place, row, "num_gpu", 0)
        milli = _number(path, place, row, "gpu_milli", WHOLE) if cards else 0
        if cards and not (0 < milli <= WHOLE and (milli == WHOLE or cards == 1)):
            raise TraceError(f"{path}, entry {place}: num_gpu {cards} with gpu_milli {milli} is not a valid request")
        ask = TraceRequest(
            cpu=_number(path, place, row, "cpu_milli", 0),
            memory=_number(path, place, row, "memory_mib", 0),
            cards=cards,
            milli=milli,
            models=tuple(sorted({word for word in str(row.get("gpu_spec") or "").split("|") if word})),
        )
        times = (_time(path, place, row, key) for key in ("creation_time", "deletion_time", "scheduled_time"))
        found.append(TracePod(str(row.get("name") or f"pod-{place}"), ask, *times))
    if not any(pod.ask.cards for pod in found):
        raise TraceError(f"{path}: no pod requests a card")
    return tuple(found)


def _rows(path: Path, key: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    try:
        if path.suffix in (".yaml", ".yml"):
            found = read_documents(read_file(path))
            entries = found[0] if len(found) == 1 else None
            entries = entries.get(key) if isinstance(entries, dict) else entries
            if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
                raise TraceError(f"{path}: expected a list of {key}")
            yield from enumerate(entries, start=1)
        else:
            text = io.StringIO(read_file(path).decode(), newline="")
            yield from enumerate(csv.DictReader(text), start=1)
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror or error}") from error
    except (UnicodeError, DocumentError, csv.Error) as error:
        raise TraceError(f"{path} cannot be read: {error}") from error


def _number(path: Path, place: int, row: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = row.get(key)
    if value in (None, ""):
        if default is None:
            raise TraceError(f"{path}, entry {place}: {key} is missing")
        return default
    try:
        number = int(float(str(value)))
    except (ValueError, OverflowError):
        number = -1
    if number < 0:
        raise TraceError(f"{path}, entry {place}: {key} is {value!r}, expected a number of 0 or more")
    return number


def _time(path: Path, place: int, row: Mapping[str, Any], key: str) -> float | None:
    value = row.get(key)
    if value in (None, ""):
        return None
    try:
        seconds = float(str(value))
    except ValueError:
        seconds = math.nan
    if not math.isfinite(seconds):
        raise TraceError(f"{path}, entry {place}: {key} is {value!r}, expected seconds")
    return seconds


MODELS = (("A100", 8, 96_000, 786_432), ("T4", 4, 64_000, 262_144), ("L40S", 8, 128_000, 524_288))
"""model, cards, thousandths of cores, MiB"""
PARTS = (100, 200, 250, 300, 500, 500, 700, 800)
DAY = 86_400.0


def make_trace(*, nodes: int, seed: int = 1, load: float = 1.0) -> Trace:
    """A trace with this many nodes, and pods that request `load` times their cards."""
    dice = Random(seed)
    made = []
    for place in range(nodes):
        model, cards, cpu, memory = MODELS[place % len(MODELS)]
        made.append(TraceNode(f"node-{place:05}", cpu, memory, cards, model))
    capacity = WHOLE * sum(node.cards for node in made)
    pods: list[TracePod] = []
    asked = 0
    while asked < load * capacity:
        ask = _ask(dice)
        created = dice.uniform(0.0, DAY)
        lasts = dice.expovariate(1.0 / (DAY / 4.0))
        pods.append(TracePod(f"pod-{len(pods):06}", ask, created, created + lasts))
        asked += ask.demand
    return Trace(f"synthetic-{nodes}-{seed}", tuple(made), tuple(pods))


def _ask(dice: Random) -> TraceRequest:
    kind = dice.random()
    if kind < 0.1:
        return TraceRequest(cpu=dice.choice((2_000, 4_000, 8_000)), memory=dice.choice((4_096, 16_384)))
    models = (dice.choice(MODELS)[0],) if dice.random() < 0.15 else ()
    cards, milli = 1, WHOLE
    if kind < 0.6:
        milli = dice.choice(PARTS)
    elif kind > 0.97:
        cards = dice.choice((2, 4, 4, 8))
    cpu = max(1_000, cards * milli * dice.choice((4, 8, 12, 16)) // 1_000 * 1_000)
    return TraceRequest(cpu, cards * milli * dice.choice((16, 32, 48)), cards, milli, models)


def write_trace(trace: Trace, nodes: Path, pods: Path) -> None:
    """Writes both files, as CSV."""
    with nodes.open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(("sn", "cpu_milli", "memory_mib", "gpu", "model"))
        rows.writerows((n.name, n.cpu, n.memory, n.cards, n.model) for n in trace.nodes)
    with pods.open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        names = (
            "name",
            "cpu_milli",
            "memory_mib",
            "num_gpu",
            "gpu_milli",
            "gpu_spec",
            "creation_time",
            "deletion_time",
        )
        rows.writerow(names)
        for pod in trace.pods:
            a = pod.ask
            times = ("" if time is None else f"{time:.0f}" for time in (pod.created, pod.deleted))
            rows.writerow((pod.name, a.cpu, a.memory, a.cards, a.milli, "|".join(a.models), *times))
