"""How far every container is, from the moment of its answer: the API and kubelet show it only later.

    waiting --answered--> done      --nobody holds its devices though kubelet goes on--> waiting again, late
       |                    +-------- another took it, as kubelet shows ---------------> waiting again
       +--has devices, whoever answered--> served

A container that is done or served is not answered again. Who asked is not decided here.
"""

from __future__ import annotations

from collections.abc import Collection

from tessera.node.handover.answers import Spot
from tessera.node.handover.bound_pod import BoundPod


class Standing:
    """All pods of the node, by uid."""

    def __init__(self) -> None:
        self._done: dict[str, set[int]] = {}
        self._served: dict[str, set[int]] = {}
        self._again: dict[str, set[int]] = {}
        """positions that wait although the API may say that they were handed out"""
        self._late: set[Spot] = set()
        """of these, those that kubelet seems to have lost"""
        self.restored: set[Spot] = set()
        """answered by an earlier process or to an earlier kubelet, and nothing shows that kubelet has got it"""
        self.failed: set[str] = set()

    def has(self, uid: str) -> set[int]:
        """Positions that do not wait."""
        return self._done.get(uid, set()) | self._served.get(uid, set())

    def is_over(self, where: Spot) -> bool:
        return where[1] in self.has(where[0])

    def was_answered(self, where: Spot) -> bool:
        return where[1] in self._done.get(where[0], ())

    def again(self, pod: BoundPod) -> set[int]:
        """kubelet asks for no container of a pod that runs."""
        return set() if pod.started else self._again.get(pod.key.uid, set())

    def is_late(self, where: Spot) -> bool:
        """Whether it was answered before: another pod, which the watch has not shown yet, is as likely to ask."""
        return where in self._late or where in self.restored

    def lost_inits(self, pod: BoundPod) -> set[int]:
        """Init containers that were answered last, where nothing shows that kubelet has got the answer."""
        found = {at for at in pod.unlisted if (pod.key.uid, at) in self.restored}
        has = self.has(pod.key.uid)
        return found if has and max(has) in found else set()

    # -- changes

    def answer(self, where: Spot) -> None:
        self._done.setdefault(where[0], set()).add(where[1])
        self.restored.discard(where)
        self._late.discard(where)

    def serve(self, pod: BoundPod, position: int) -> list[Spot]:
        """A container has its devices, and so have those before it, which kubelet asks for first; those that waited."""
        uid = pod.key.uid
        self.restored = {each for each in self.restored if each[0] != uid or each[1] > position}
        until = {each.position for each in (*pod.left, *pod.claims) if each.position <= position}
        waited = sorted(until - self.has(uid))
        self._served.setdefault(uid, set()).update(waited)
        return [(uid, at) for at in waited]

    def exchange(self, one: Spot, other: Spot) -> None:
        """The other has what this one was taken to have, and the other way round."""
        if not self.was_answered(other):
            self.wait_again(one)
        elif other in self.restored:
            self.restored.add(one)
        self.answer(other)

    def wait_again(self, where: Spot) -> None:
        for memory in (self._done, self._served):
            memory.get(where[0], set()).discard(where[1])
        self._again.setdefault(where[0], set()).add(where[1])

    def lose(self, pod: BoundPod, position: int, *, shown: int) -> None:
        """kubelet has not got what was answered, and so nothing that it would have asked for later."""
        uid = pod.key.uid
        for at in [each for each in self.has(uid) if each > shown]:
            if at >= position:
                self.wait_again((uid, at))
                self._late.add((uid, at))
            elif at in pod.unlisted:
                # Nothing shows that it had this, which comes before.
                self.restored.add((uid, at))

    def delay(self, spots: Collection[Spot]) -> None:
        """kubelet seems to have lost what one of these was answered."""
        self._late |= set(spots)

    def keep_restored(self, uids: Collection[str]) -> None:
        """Of these pods only."""
        self.restored = {each for each in self.restored if each[0] in uids}

    def forget(self, uid: str) -> None:
        for memory in (self._done, self._served, self._again):
            memory.pop(uid, None)
        self.failed.discard(uid)
        self.restored = {each for each in self.restored if each[0] != uid}
        self._late = {each for each in self._late if each[0] != uid}
