"""Whether a gang would fit if all other pods were gone: a plan on the same nodes, cards and quotas with nothing in use.

What is not plannable there can never be placed, whichever pods end or are evicted. Cards that are unhealthy or cordoned
now count as such. The copy of the nodes is kept between two questions, and brought up to date for each. Nothing here
changes the ledger that it looks at.
"""

from __future__ import annotations

from collections.abc import Generator, Hashable, Sequence

from tessera.core.gang_trial import GangMember
from tessera.core.gangs import GangMisfit, GangPlanning
from tessera.core.ledger import Ledger
from tessera.core.selection import Candidates, Selector

NODES_AT_ONCE = 16
"""copied between two places to pause: about 2 ms"""


class EmptyCluster:
    """The nodes of a ledger without their pods."""

    def __init__(self, source: Ledger) -> None:
        self._source = source
        self._ledger = Ledger(source.rules)
        self._selector = Selector(self._ledger)

    def shortage(self, members: Sequence[GangMember], *, required: int, work: float) -> Generator[None, None, str]:
        """Why so many members cannot be placed together; empty if they can, or if `work` is too little to tell."""
        yield from self._catch_up()
        known: dict[Hashable, Candidates | None] = {}
        for member in members:
            if member.kind not in known:
                named = member.candidates
                known[member.kind] = None if named is None else self._selector.candidates(named.names)
                yield
        placed = [GangMember(member.request, known[member.kind]) for member in members]
        planning = GangPlanning(self._selector, placed, required=required, work=work)
        try:
            answer = yield from planning.steps()
        finally:
            planning.take_back()
        return _text(answer, members) if isinstance(answer, GangMisfit) else ""

    def _catch_up(self) -> Generator[None, None, None]:
        source, ledger = self._source, self._ledger
        ledger.quotas = source.quotas.without_use()
        names = source.node_names()
        for name in frozenset(ledger.node_names()).difference(names):
            ledger.forget_node(name)
        for number, name in enumerate(names, 1):
            view = source.node(name)
            if view is not None:
                ledger.observe_node(view.facts)
            else:
                ledger.forget_node(name)
            if number % NODES_AT_ONCE == 0:
                yield


def _text(misfit: GangMisfit, members: Sequence[GangMember]) -> str:
    """What comes nearest is of interest only for a member that fits on no node by itself."""
    placed = {place.request.uid for place in misfit.places}
    fitting = {place.request.shape for place in misfit.places}
    missing = {member.request.shape for member in members if member.request.uid not in placed}
    return misfit.summary if missing <= fitting else misfit.text
