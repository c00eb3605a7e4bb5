"""What this agent has answered, to whom as far as that is known, and who still waits.

Used from the event loop only; nothing here waits. Who asked is corrected as soon as kubelet shows it, for all that the
pod asked for at one go; until then pods that may have asked instead do not end their handover (`proving`). No answer is
given twice: a container whose slices another of equal slices took gets the other's (`swaps`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from tessera.node.handover.answers import Answers, Given, Held, Spot, count_open, spot
from tessera.node.handover.bound_pod import BoundPod
from tessera.node.handover.claims import Claim, PodKey
from tessera.node.handover.matching import Waiting
from tessera.node.handover.proving import Proofs
from tessera.node.handover.remaining import Remaining
from tessera.node.handover.standing import Standing
from tessera.node.handover.swaps import Swaps


class Progress:
    """All pods of the node."""

    def __init__(self, *, travels: bool = True) -> None:
        """`travels`: whether slices reach containers through their own environment; may be changed."""
        self.travels = travels
        self.answers = Answers()
        self.swaps = Swaps()
        self._proofs = Proofs()
        self._standing = Standing()
        self._remaining = Remaining(self._standing, self.answers, self._proofs, carries=self.carries)
        self._inherited: set[str] = set()
        self._last: Given | None = None
        self._underway: PodKey | None = None
        self.shaken = False
        """whether kubelet has just given a pod up, so that it may have freed what was answered"""

    # -- reading

    def waiting(
        self, pods: Iterable[BoundPod], *, taken_over: Collection[str] | None = None, unproven: bool = False
    ) -> list[Waiting]:
        """What is left, by pod. kubelet gives a container the devices of its pod's init containers first: `taken_over`
        are those of the container that asks, None where that is not known. `unproven`: also those who may not have
        asked at all."""
        known = list(pods)
        if unproven:
            return self._remaining.of(known, unproven=True)
        if taken_over:
            return self._remaining.following(known, taken_over) or self._remaining.of(known)
        return self._remaining.of(known, afresh=taken_over is not None)

    def is_late(self, claim: Claim) -> bool:
        """Whether it was answered before: another pod, which the watch has not shown yet, is as likely to ask."""
        return self._standing.is_late(spot(claim))

    def open_answers(self, count: int, waiting: Iterable[Waiting] | None = None) -> int:
        """Of this number of devices; only those that may have been for one of these."""
        if waiting is None:
            return count_open(self.answers, count)
        return count_open(self.answers, count, [spot(claim) for pod in waiting for claim in pod.claims])

    @property
    def has_restored(self) -> bool:
        return bool(self._standing.restored)

    @property
    def underway(self) -> PodKey | None:
        """The pod of the last answer, if it is known: kubelet ends a pod before it begins another."""
        return self._underway

    def done(self, uid: str) -> frozenset[int]:
        """Positions that certainly have their devices: no other container can have taken them instead."""
        has = self._standing.has(uid)
        return frozenset(at for at in has if self._proofs.proven(uid, at, self._standing.is_over))

    def has_failed(self, uid: str) -> bool:
        return uid in self._standing.failed

    def carries(self, claim: Claim) -> bool:
        return self.travels and claim.carried

    # -- answering

    def gave(
        self,
        ids: Sequence[str],
        asker: Claim | None,
        among: Sequence[Claim],
        *,
        certain: bool,
        pod: BoundPod | None = None,
        slices: Claim | None = None,
    ) -> Given:
        """`pod` is the asker's, where it is still there; `slices` are its own unless somebody took those."""
        given = Given(frozenset(ids), frozenset(map(spot, among)), slices or asker, certain, asker)
        known = asker if certain else None
        self.answers.add(given, is_open=known is None)
        if known is not None:
            self._standing.answer(spot(known))
            rivals = [spot(each) for each in among if each.pod != known.pod]
            if rivals or self.carries(known):
                self._proofs.question(spot(known), rivals)
            if pod is not None:
                self._serve(pod, known.position)
        self._last = given
        self._underway = known.pod if known is not None else None
        return given

    def take_back(self, given: Given) -> None:
        """The answer never left this process."""
        self.answers.drop(given)
        if given in self.answers.open:
            self.answers.close(given)
        elif given.asker is not None:
            self._standing.wait_again(spot(given.asker))
        self._underway = None

    def fail(self, uid: str) -> None:
        """Nothing more is handed out to this pod."""
        self._standing.failed.add(uid)
        self._left(uid)

    # -- learning

    def inherit(self, uids: Iterable[str]) -> None:
        """Pods that were there before this process: others may have answered for them."""
        self._inherited.update(uids)

    def restore(self, ids: Collection[str], claim: Claim, holder: Spot | None) -> None:
        """An answer of an earlier process."""
        where = holder or spot(claim)
        asker = claim if where == spot(claim) else None
        self.answers.add(Given(frozenset(ids), frozenset({where}), claim, True, asker, holder, holder is not None))
        self._standing.answer(where)
        if self.swaps.of(where) != spot(claim):
            self.swaps.exchange(where, spot(claim))
        if holder is None:
            self._standing.restored.add(where)

    def kubelet_is_new(self) -> None:
        """It may have lost the answers that it was about to write down."""
        self.shaken = True
        alone = [each.asker for each in self.answers if each.certain and each.holder is None]
        self._standing.restored |= {spot(asker) for asker in alone if asker is not None}

    def learn(self, held: Held, pods: Collection[BoundPod]) -> None:
        """kubelet says who holds which devices."""
        named = {(pod.key.namespace, pod.key.name): pod for pod in pods}
        for (namespace, name, container), ids in held.items():
            pod = named.get((namespace, name))
            position = pod.position(container) if pod is not None else None
            if pod is None or position is None:
                continue
            given = self.answers.of(ids)
            if given is not None:
                if given.holder is None:
                    self._took(given, pod, position)
            elif pod.key.uid in self._inherited:
                # Another pod of the same name may have held them, if this one came after the agent.
                self._serve(pod, position, settled=False)
        uids = {pod.key.uid for pod in pods}
        self._standing.keep_restored(uids)
        self.answers.looked(held, uids)

    def reopen_lost(self, held: Held, pods: Iterable[BoundPod], *, but: Collection[Given] = ()) -> None:
        """Answers whose devices nobody holds, although kubelet asks for the next ones: it lost them in a restart, or
        gave the pod up. Only true while kubelet waits for an Allocate; `but` are answers of that same call."""
        known = {frozenset(ids) for ids in held.values()}
        alive = {pod.key.uid: pod for pod in pods if not pod.started}
        for given in [each for each in self.answers if each.holder is None and each.ids not in known]:
            asker = given.asker
            if asker is None or not given.certain or given in but or asker.pod.uid not in alive:
                continue
            pod = alive[asker.pod.uid]
            if asker.position in pod.unlisted:
                continue
            self.answers.drop(given)
            shown = {at for at, name in enumerate(pod.containers) if (*pod.key[:2], name) in held}
            missing = self._standing.has(asker.pod.uid) - pod.unlisted - shown
            self._standing.lose(pod, min(missing, default=asker.position), shown=self._proofs.shown(asker.pod.uid))
            if self._last is given:
                self._underway = None
        unlisted = {(uid, at) for uid, pod in alive.items() for at in pod.unlisted}
        self._standing.delay(self.answers.not_held_by(unlisted, known=known, but=but))

    def finish(self, pod: BoundPod) -> None:
        """Every container of the pod has its devices, or needs none any more."""
        if not pod.claims:
            return
        uid, last = pod.key.uid, pod.claims[-1].position
        if pod.started:
            # It has its devices; where it was not answered, it took the answers of a pod with equal slices.
            lender = next((found for each in pod.claims if (found := self._proofs.rivalled_by(spot(each)))), None)
            if lender is not None and not self._standing.was_answered((uid, last)):
                self._exchange(lender, max(self._standing.has(lender), default=-1), pod, last)
            self._proofs.show(uid, last)
        self._serve(pod, last, settled=False)

    def ended(self, uid: str) -> None:
        """The pod needs no devices any more."""
        self.shaken = True
        self._left(uid)
        self.swaps.forget(uid)
        for given in self.answers:
            if given.holder is not None and given.holder[0] == uid:
                self.answers.drop(given)

    def forget(self, uid: str) -> None:
        """The pod is gone."""
        self.ended(uid)
        self._standing.forget(uid)
        self._proofs.forget(uid)
        self._inherited.discard(uid)
        self.answers.forget(uid)

    def _took(self, given: Given, pod: BoundPod, position: int) -> None:
        """It is known who asked."""
        where = pod.key.uid, position
        given.holder = where
        asker = given.asker
        if not given.certain:
            self.answers.close(given)
            self._standing.answer(where)
            claim = pod.claim(position)
            if asker is not None and claim is not None and claim.what == asker.what and not self.carries(claim):
                self.swaps.exchange(spot(asker), where)
            if given is self._last:
                self._underway = pod.key
        elif asker is not None and spot(asker) != where:
            self._exchange(asker.pod.uid, asker.position, pod, position)
        self._serve(pod, position)
        self._proofs.show(pod.key.uid, position)

    def _exchange(self, lender: str, last: int, pod: BoundPod, position: int) -> None:
        """This container asked, not the one that was taken for it; so it was for all that came before in their pods."""
        shown = self._proofs.shown(lender)
        theirs = sorted(at for at in self._standing.has(lender) if shown < at <= last)
        own = [claim for claim in pod.claims if claim.position <= position]
        for at, claim in zip(reversed(theirs), reversed(own), strict=False):
            one, other = (lender, at), spot(claim)
            self._standing.exchange(one, other)
            self.answers.correct(one, claim)
            if not self.carries(claim):
                self.swaps.exchange(one, other)
        self._proofs.withdraw(lender)
        if self._underway is not None and self._underway.uid == lender:
            self._underway = pod.key

    def _left(self, uid: str) -> None:
        if self._underway is not None and self._underway.uid == uid:
            self._underway = None

    def _serve(self, pod: BoundPod, position: int, *, settled: bool = True) -> None:
        """A container and those before it have their devices; `settled` where this one's answer is known."""
        for where in self._standing.serve(pod, position):
            if not (settled and where[1] == position):
                self.answers.spend(where)
