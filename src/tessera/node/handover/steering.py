"""Remembers what GetPreferredAllocation was last asked and proposed, and for whom.

kubelet asks for a preference right before it asks for the devices, so an Allocate with exactly the proposed ids is for
the same container, whoever turned up in between. Any other Allocate, or time, ends the proposal: a kubelet that was not
steered may choose the same ids for anybody. The question says as well which devices the container takes over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tessera.node.handover.claims import Claim
from tessera.node.handover.matching import Meant

VALID_S = 10.0
"""seconds; kubelet needs milliseconds"""


@dataclass(frozen=True, slots=True)
class _Proposal:
    ids: frozenset[str]
    meant: Meant
    until: float


@dataclass(frozen=True, slots=True)
class _Question:
    available: frozenset[str]
    must_include: frozenset[str]
    count: int


class Steering:
    """One question and one proposal at most."""

    def __init__(self) -> None:
        self._proposal: _Proposal | None = None
        self._question: _Question | None = None

    def asked(self, available: Sequence[str], must_include: Sequence[str], count: int) -> None:
        """Whatever was proposed before was for another container."""
        self._proposal = None
        self._question = _Question(frozenset(available), frozenset(must_include), count)

    def taken_over(self, ids: Sequence[str]) -> frozenset[str] | None:
        """Which of these devices the container has from init containers of its pod; None where kubelet did not ask.

        Ends the question in any case."""
        question, self._question = self._question, None
        wanted = frozenset(ids)
        if question is None or len(wanted) != question.count:
            return None
        fits = question.must_include <= wanted <= question.available | question.must_include
        return question.must_include if fits else None

    def propose(self, ids: Sequence[str], meant: Meant, *, now: float) -> None:
        self._proposal = _Proposal(frozenset(ids), meant, now + VALID_S)

    def take(self, ids: Sequence[str], waiting: Sequence[Claim], *, now: float) -> Meant | None:
        """For whom these ids were proposed, if that claim still waits. Ends the proposal in any case."""
        proposal, self._proposal = self._proposal, None
        if proposal is None or proposal.ids != frozenset(ids) or now > proposal.until:
            return None
        return proposal.meant if proposal.meant.claim in waiting else None
