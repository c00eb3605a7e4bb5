"""Whether a pod itself asked for what it was taken to ask for, or another that it could not be told from.

A handover must not end because of another pod's call: its turn would go to a pod that can be mixed up with it. Proof is
that kubelet shows a container's devices, or that the pod runs; it holds for all containers before that one as well.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from tessera.node.handover.answers import Spot


@dataclass(frozen=True, slots=True)
class _Question:
    since: int
    """position of the first container that another may have asked for; the later ones were asked for with it"""
    rivals: frozenset[Spot]
    """who may have asked instead, of the pods that are known; none: only proof will do"""


class Proofs:
    """By uid."""

    def __init__(self) -> None:
        self._questions: dict[str, _Question] = {}
        self._shown: dict[str, int] = {}
        """the last position that is known to have its devices"""

    def shown(self, uid: str) -> int:
        return self._shown.get(uid, -1)

    def show(self, uid: str, position: int) -> None:
        self._shown[uid] = max(position, self.shown(uid))
        if uid in self._questions and self._questions[uid].since <= position:
            del self._questions[uid]

    def question(self, asked: Spot, rivals: Collection[Spot]) -> None:
        uid, position = asked
        if position > self.shown(uid):
            self._questions.setdefault(uid, _Question(position, frozenset(rivals)))

    def withdraw(self, uid: str) -> None:
        """It was another pod that asked."""
        self._questions.pop(uid, None)

    def rivalled_by(self, container: Spot) -> str | None:
        """The pod that this container's pod may have asked instead of."""
        return next((uid for uid, each in self._questions.items() if container in each.rivals), None)

    def in_question(self, uid: str, position: int) -> bool:
        return uid in self._questions and self._questions[uid].since <= position

    def proven(self, uid: str, position: int, is_done: Callable[[Spot], bool]) -> bool:
        """Where all rivals are done as well, it does not matter which of them asked when."""
        if not self.in_question(uid, position):
            return True
        rivals = self._questions[uid].rivals
        return bool(rivals) and all(map(is_done, rivals))

    def forget(self, uid: str) -> None:
        self._questions.pop(uid, None)
        self._shown.pop(uid, None)
        # It may have been the one that asked, so that it does not help that no other rival is left.
        for other, each in list(self._questions.items()):
            left = frozenset(where for where in each.rivals if where[0] != uid)
            if left != each.rivals:
                self._questions[other] = _Question(each.since, frozenset())
