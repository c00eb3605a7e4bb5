"""What is left to hand out, by pod, from how far containers are and which answers are open. Changes nothing.

kubelet gives a container the devices of its pod's init containers first, so the devices that it asks with can tell
which pods may be asking: `following` are those behind such an init container, `afresh` those that have none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from tessera.node.handover.answers import Answers, spot
from tessera.node.handover.bound_pod import BoundPod
from tessera.node.handover.claims import Claim
from tessera.node.handover.matching import Waiting
from tessera.node.handover.proving import Proofs
from tessera.node.handover.standing import Standing


class Remaining:
    """A view."""

    def __init__(
        self, standing: Standing, answers: Answers, proofs: Proofs, *, carries: Callable[[Claim], bool]
    ) -> None:
        self._standing = standing
        self._answers = answers
        self._proofs = proofs
        self._carries = carries

    def of(self, pods: Iterable[BoundPod], *, afresh: bool = False, unproven: bool = False) -> list[Waiting]:
        """`afresh`: nobody asks who has only had answers for init containers, or would take over their devices.
        `unproven`: also those who may not have asked at all."""
        doubtful = {each for given in self._answers.open for each in given.among}
        found: list[Waiting] = []
        for pod in pods:
            open_ = self._unproven(pod) if unproven else set()
            again = self._standing.again(pod) | open_
            if pod.key.uid in self._standing.failed or pod.terminal or not (pod.waits or again):
                continue
            lost = self._standing.lost_inits(pod)
            has, again = self._standing.has(pod.key.uid) - open_ - lost, again | lost
            left = {claim.position: claim for claim in pod.claims if claim.position in again}
            left |= {claim.position: claim for claim in pod.left}
            claims = tuple(left[position] for position in sorted(left.keys() - has))
            if claims:
                unsure = lost | {each.position for each in claims if spot(each) in doubtful}
                # Whatever pods that carry their slices were taken for, any answer does for any of their containers.
                unsure |= {each.position for each in claims if unproven and self._carries(each)}
                unsure -= pod.unlisted if afresh else set()
                found.append(Waiting(pod.key, claims, frozenset(unsure), pod.unlisted))
        return found

    def following(self, pods: Sequence[BoundPod], taken_over: Collection[str]) -> list[Waiting]:
        """What comes after the init container that had these devices, of every pod that it may belong to."""
        last = self._answers.last_with(taken_over)
        if last is None:
            return []
        asked = {spot(last.asker)} if last.certain and last.asker is not None else last.among
        after = {pod.key: at for pod in pods for uid, at in asked if uid == pod.key.uid and at in pod.unlisted}
        found = []
        for pod in self.of(pods):
            claims = tuple(each for each in pod.claims if each.position > after.get(pod.pod, each.position))
            if claims:
                found.append(Waiting(pod.pod, claims, pod.doubtful, pod.hidden))
        return found

    def _unproven(self, pod: BoundPod) -> set[int]:
        if pod.started:
            return set()
        uid, shown = pod.key.uid, self._proofs.shown(pod.key.uid)
        carried = {claim.position for claim in pod.claims if claim.position > shown and self._carries(claim)}
        return {at for at in self._standing.has(uid) if at in carried or self._proofs.in_question(uid, at)}
