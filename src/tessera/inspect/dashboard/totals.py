"""Sums over the cluster: what cards have, what is granted and used of them, what is free and of no use, and how long
pods wait.

Each node's part is added and taken away with its document, so that a change costs one node. Waits are those of the pods
that hold cards now, from creation to binding in whole seconds; `longest` also looks at the pods that still wait.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tessera.inspect.dashboard.documents import ModelTable, NodeDocument, Share
from tessera.inspect.dashboard.room import Room, SliceSize
from tessera.inspect.state import Json

DIGITS = 2
"""of numbers of cards"""


class Totals:
    """Sums over the nodes that have a document."""

    def __init__(self, models: ModelTable) -> None:
        self._models = models
        self._totals: dict[int, Share] = {}
        self._granted: dict[tuple[str, int], Share] = {}
        self._used: Counter[str] = Counter()
        self._measured = 0
        """nodes with figures of the monitor"""
        self._idle = Share()
        self._waits: Counter[int] = Counter()
        self._room = Room()

    def replace(self, before: NodeDocument | None, after: NodeDocument | None) -> None:
        """A node has another document; None if it has none."""
        for document, sign in ((before, -1), (after, 1)):
            if document is None:
                continue
            for model, share in document.totals.items():
                self._totals.setdefault(model, Share()).add(share, sign)
            for key, share in document.granted.items():
                self._granted.setdefault(key, Share()).add(share, sign)
            for namespace, memory in document.used.items():
                self._used[namespace] += sign * memory
            self._measured += sign * bool(document.used)
            self._idle.add(document.idle, sign)
            for seconds, number in document.waits.items():
                self._waits[seconds] += sign * number
        if before is not None:
            self._room.remove(before.room)
        if after is not None:
            self._room.add(after.room)

    def shapes(self) -> list[Json]:
        """How many more of the usual shapes fit."""
        return self._room.document({model: self._models.names[model] for model in self._present()})

    def document(self, asked: Counter[SliceSize], waiting: Iterable[float] = ()) -> Json:
        """`asked` are the slices that waiting pods ask for, `waiting` the seconds that they have waited."""
        by_model: dict[int, Share] = {}
        by_namespace: dict[str, Share] = {}
        for (namespace, model), share in self._granted.items():
            by_model.setdefault(model, Share()).add(share)
            by_namespace.setdefault(namespace, Share()).add(share)
        total, granted = Share(), Share()
        for share in self._totals.values():
            total.add(share)
        for share in by_model.values():
            granted.add(share)
        is_measured = self._measured > 0
        fragmented = self._room.fragmented(asked)
        return {
            "cards": round(total.cards),
            "granted": _amounts(granted),
            "total": _amounts(total),
            "used": _used(sum(self._used.values())) if is_measured else None,
            "fragmented": {"memory": fragmented.memory, "cores": fragmented.cores},
            "idle": _amounts(self._idle) if is_measured else None,
            "waits": _waits(self._waits, waiting),
            "byNamespace": [
                {
                    "namespace": name,
                    "granted": _amounts(share),
                    "used": _used(self._used[name]) if is_measured else None,
                }
                for name, share in sorted(by_namespace.items(), key=lambda one: (-one[1].cards, one[0]))
                if share.cards > 0
            ],
            "byModel": [
                {
                    "model": self._models.names[model],
                    "cards": round(self._totals[model].cards),
                    "granted": _amounts(by_model.get(model, Share())),
                    "total": _amounts(self._totals[model]),
                }
                for model in sorted(self._present(), key=lambda model: self._models.names[model])
            ],
        }

    def _present(self) -> list[int]:
        """The models that there are cards of now."""
        return [model for model, share in self._totals.items() if share.cards > 0.5]


def _amounts(share: Share) -> Json:
    return {"memory": share.memory, "cores": share.cores, "cards": round(max(share.cards, 0.0), DIGITS)}


def _used(memory: int) -> Json:
    """The monitor knows the memory of slices; cores and cards are those of the grants."""
    return {"memory": memory, "cores": 0, "cards": 0.0}


def _waits(waits: Counter[int], waiting: Iterable[float]) -> Json:
    found = sorted((seconds, number) for seconds, number in waits.items() if number > 0)
    count = sum(number for _, number in found)
    longest = max([*waiting, *(seconds for seconds, _ in found[-1:])], default=None)
    return {"count": count, "p50": _quantile(found, 0.5), "p95": _quantile(found, 0.95), "longest": longest}


def _quantile(found: list[tuple[int, int]], part: float) -> int | None:
    """The smallest wait that so many of the pods had at most."""
    need, seen = part * sum(number for _, number in found), 0
    for seconds, number in found:
        seen += number
        if seen >= need:
            return seconds
    return None
