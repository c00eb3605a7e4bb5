"""Sums over the cluster: what cards have, what is granted, what is free and of no use, and how long pods wait.

Each node's part is added and taken away with its document, so that a change costs one node.
"""

from __future__ import annotations

from tessera.inspect.dashboard.documents import ModelTable, NodeDocument, Share
from tessera.inspect.dashboard.source import PageSource
from tessera.inspect.dashboard.waiting import WaitingPods
from tessera.inspect.state import Json

DIGITS = 2
"""of numbers of cards"""


class Totals:
    """Of the nodes that have a document."""

    def __init__(self, source: PageSource, models: ModelTable) -> None:
        self._source = source
        self._models = models
        self._totals: dict[int, Share] = {}
        self._granted: dict[tuple[str, int], Share] = {}

    def clear(self) -> None:
        self._totals, self._granted = {}, {}

    def replace(self, before: NodeDocument | None, after: NodeDocument | None) -> None:
        """A node has another document; None if it has none."""
        for document, sign in ((before, -1), (after, 1)):
            if document is not None:
                for model, share in document.totals.items():
                    self._totals.setdefault(model, Share()).add(share, sign)
                for key, share in document.granted.items():
                    self._granted.setdefault(key, Share()).add(share, sign)

    def document(self, waiting: WaitingPods) -> Json:
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
        return {
            "cards": round(total.cards),
            "granted": _amounts(granted),
            "total": _amounts(total),
            "used": None,
            "fragmented": {"memory": 0, "cores": 0},
            "idle": None,
            "waits": {"count": 0, "p50": None, "p95": None, "longest": None},
            "byNamespace": [
                {"namespace": name, "granted": _amounts(share)}
                for name, share in sorted(by_namespace.items(), key=lambda one: (-one[1].cards, one[0]))
                if share.cards > 0
            ],
            "byModel": [
                {
                    "model": self._models.names[model],
                    "cards": round(share.cards),
                    "granted": _amounts(by_model.get(model, Share())),
                    "total": _amounts(share),
                }
                for model, share in sorted(self._totals.items(), key=lambda one: self._models.names[one[0]])
                if share.cards > 0
            ],
        }


def _amounts(share: Share) -> Json:
    return {"memory": share.memory, "cores": share.cores, "cards": round(share.cards, DIGITS)}
