"""Which pods have to leave so that a pod fits: the best set of victims over many nodes.

`victim_arrays` rules nodes out and gives each of the others a bound that no set on it can beat; `node_preemption` finds
the best set of one node by the plain rule. Nodes are searched from the lowest bound on, until no bound is below the
best set. So the result is the optimum over all candidates, by the order of `victims`, and most nodes are never looked
at. Only where sets have to be tried one by one, a search ends with the best set so far after a number of trials. A
search pauses every few milliseconds: callers check its result against the ledger before they use it.
"""

from __future__ import annotations

from tessera.core.ledger import Ledger
from tessera.core.node_preemption import NodeSearch, Search
from tessera.core.requests import PodRequest
from tessera.core.selection import Candidates, Selector
from tessera.core.steps import finish
from tessera.core.trial_victims import MAX_TRIALS as MAX_TRIALS_ON_A_NODE
from tessera.core.victim_arrays import VictimArrays
from tessera.core.victims import PodBook, VictimSet

NODES_AT_ONCE = 256
"""columns read again between two pauses: a few milliseconds"""

MAX_TRIALS = 4_096
"""sets that one search tries by the plain rule, where cards do not decide alone: a second or two, in steps"""


class Preemption:
    """Finds victims on one ledger."""

    def __init__(self, selector: Selector, book: PodBook) -> None:
        self.selector = selector
        self.ledger: Ledger = selector.ledger
        self.book = book
        self.arrays = VictimArrays(self.ledger, book)

    def find(self, pod: PodRequest, *, priority: int, candidates: Candidates) -> VictimSet | None:
        """The best set at once."""
        return finish(self.search(pod, priority=priority, candidates=candidates))

    def search(self, pod: PodRequest, *, priority: int, candidates: Candidates) -> Search:
        """The best set on any of the candidates; None if none helps. The empty set: it is enough to wait."""
        best: VictimSet | None = None
        shape: tuple[int, ...] | None = None
        while shape != self.ledger.arrays.kind.shape:  # They may grow while the search pauses, which is rare.
            while not self.arrays.catch_up(NODES_AT_ONCE):
                yield
            shape = self.ledger.arrays.kind.shape
            best = yield from self._search_arrays(pod, priority, candidates, best)
        return best

    def _search_arrays(self, pod: PodRequest, priority: int, candidates: Candidates, best: VictimSet | None) -> Search:
        """Until no set can be better than the best one, or the arrays have another shape."""
        lowest, shape = self.book.lowest_priority, self.ledger.arrays.kind.shape
        if lowest is None or lowest >= priority or any(vendor not in self.ledger.rules for vendor in pod.vendors):
            return None
        if candidates.order is not self.ledger.arrays.order:
            candidates = self.selector.candidates(candidates.names)
        trials = MAX_TRIALS
        for bound in self.arrays.bounds(pod, priority, candidates.rows):
            if best is not None and (bound.cost, bound.node, ()) > best.rank:
                break
            if best is not None and trials <= 0:
                break
            most = max(0, min(trials, MAX_TRIALS_ON_A_NODE))
            on_node = NodeSearch(self.ledger, self.book, pod, priority=priority, node=bound.node, max_trials=most)
            found = yield from on_node.steps()
            trials -= on_node.trials
            if found is not None and (best is None or found.rank < best.rank):
                best = found
            yield
            if self.ledger.arrays.kind.shape != shape:
                break
        return best
