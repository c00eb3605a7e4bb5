"""What this agent has answered, from the moment of the answer: the API and kubelet show it only later.

    waiting --certain answer--> done            --nobody holds its devices though kubelet goes on--> waiting again
       |---- open answer (could be another's) --> doubtful --kubelet shows who holds the devices--> done
       +---- its pod failed or is gone --> forgotten

Used from the event loop only; nothing here waits. A claim that is done is never answered again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tessera.node.handover.claims import Claim, PodKey
from tessera.node.handover.matching import Waiting
from tessera.node.handover.reading import BoundPod

Spot = tuple[str, int]
"""a container: uid of its pod, and its position"""
Held = Mapping[tuple[str, str, str], tuple[str, ...]]
"""namespace, pod and container -> device ids, as kubelet's PodResources says"""

MOST_LOOKS = 5
"""at PodResources for one answer's holder: some containers are never shown there"""
MOST_ANSWERS = 4096
"""remembered; a node has some hundred containers at most"""


def spot(claim: Claim) -> Spot:
    return claim.pod.uid, claim.position


@dataclass(slots=True, eq=False)
class Given:
    """One answer."""

    ids: frozenset[str]
    among: frozenset[Spot]
    """containers that may have asked"""
    claim: Claim | None
    """whose slice was answered; None where it was what every container gets"""
    certain: bool
    """False while it is not known who asked"""
    holder: Spot | None = None
    """who holds the devices, as kubelet said once"""
    verified: bool = False
    looks: int = 0
    """how often kubelet did not name a holder"""


class Progress:
    """All pods of the node."""

    def __init__(self) -> None:
        self._given: dict[frozenset[str], Given] = {}
        self._open: list[Given] = []
        """answers of which it is not known who asked"""
        self._done: dict[str, set[int]] = {}
        self._again: dict[str, set[int]] = {}
        """positions that wait although the API says that they were handed out"""
        self._failed: set[str] = set()
        self._inherited: set[str] = set()
        self._restored: set[Spot] = set()
        """answered by an earlier process or to an earlier kubelet, and no holder known"""
        self._last: Given | None = None
        self._underway: PodKey | None = None
        self.shaken = False
        """whether kubelet has just given a pod up, so that it may have freed what was answered"""

    # -- reading

    def waiting(self, pods: Iterable[BoundPod], *, taken_over: Collection[str] | None = None) -> list[Waiting]:
        """What is left, by pod. kubelet gives a container the devices of its pod's init containers first: `taken_over`
        are those of the container that asks, None where that is not known."""
        known = list(pods)
        if taken_over:
            return self._following(known, taken_over) or self._waiting(known, afresh=False)
        return self._waiting(known, afresh=taken_over is not None)

    def _waiting(self, pods: Iterable[BoundPod], *, afresh: bool) -> list[Waiting]:
        """`afresh`: nobody asks who has only had answers for init containers, or would take over their devices."""
        doubtful = {each for given in self._open for each in given.among}
        found: list[Waiting] = []
        for pod in pods:
            again = self._again.get(pod.key.uid, set())
            if pod.key.uid in self._failed or pod.terminal or not (pod.waits or again):
                continue
            left = {claim.position: claim for claim in pod.claims if claim.position in again}
            left |= {claim.position: claim for claim in pod.left}
            done = self._done.get(pod.key.uid, set())
            if afresh:
                lost = self._lost(pod, done)
                done = done - lost
                left |= {claim.position: claim for claim in pod.claims if claim.position in lost}
            claims = tuple(left[position] for position in sorted(left.keys() - done))
            if claims:
                unsure = {each.position for each in claims if spot(each) in doubtful}
                found.append(Waiting(pod.key, claims, frozenset(unsure - pod.unlisted if afresh else unsure)))
        return found

    def _following(self, pods: Sequence[BoundPod], taken_over: Collection[str]) -> list[Waiting]:
        """What comes after the init container that had these devices, of every pod that it may belong to."""
        last = next((each for each in reversed(self._given.values()) if not each.ids.isdisjoint(taken_over)), None)
        if last is None:
            return []
        asked = {spot(last.claim)} if last.certain and last.claim is not None else last.among
        after = {pod.key: at for pod in pods for uid, at in asked if uid == pod.key.uid and at in pod.unlisted}
        found = []
        for pod in self._waiting(pods, afresh=False):
            claims = tuple(each for each in pod.claims if each.position > after.get(pod.pod, each.position))
            if claims:
                found.append(Waiting(pod.pod, claims, pod.doubtful))
        return found

    def _lost(self, pod: BoundPod, done: Collection[int]) -> set[int]:
        """Init containers that an earlier process answered, where nothing shows that kubelet has got the answer."""
        found = {at for at in pod.unlisted if (pod.key.uid, at) in self._restored}
        return found if done and max(done) in found else set()

    def taken_over(self, ids: Collection[str]) -> frozenset[str]:
        """Those of these devices that may be an init container's."""
        return frozenset(
            each for given in self._given.values() if given.holder is None for each in given.ids.intersection(ids)
        )

    def open_answers(self, count: int, waiting: Iterable[Waiting] | None = None) -> int:
        """Of this number of devices; only those that may have been for one of these."""
        found = [given for given in self._open if len(given.ids) == count]
        if waiting is None:
            return len(found)
        spots = {spot(claim) for pod in waiting for claim in pod.claims}
        return sum(not given.among.isdisjoint(spots) for given in found)

    @property
    def has_restored(self) -> bool:
        return bool(self._restored)

    @property
    def is_open(self) -> bool:
        return bool(self._open)

    @property
    def underway(self) -> PodKey | None:
        """The pod of the last answer, if it is known: kubelet ends a pod before it begins another."""
        return self._underway

    def done(self, uid: str) -> frozenset[int]:
        return frozenset(self._done.get(uid, ()))

    def has_failed(self, uid: str) -> bool:
        return uid in self._failed

    def unverified(self) -> list[Given]:
        """Answers whose holder is known but has not been compared."""
        return [given for given in self._given.values() if given.holder is not None and not given.verified]

    @property
    def awaits_holder(self) -> bool:
        return any(given.holder is None and given.looks < MOST_LOOKS for given in self._given.values())

    # -- answering

    def gave(
        self,
        ids: Sequence[str],
        claim: Claim | None,
        among: Sequence[Claim],
        *,
        certain: bool,
        pod: BoundPod | None = None,
    ) -> Given:
        """`pod` is the claim's, where it is still there."""
        given = Given(frozenset(ids), frozenset(spot(each) for each in among), claim, certain)
        # kubelet has taken these devices from whoever had them.
        for old in [each for each in self._given if not each.isdisjoint(given.ids)]:
            del self._given[old]
        self._given[given.ids] = given
        if len(self._given) > MOST_ANSWERS:
            del self._given[next(iter(self._given))]
        if certain and claim is not None:
            self._done.setdefault(claim.pod.uid, set()).add(claim.position)
            self._restored.discard(spot(claim))
            if pod is not None:
                self._finish(pod, claim.position, settled=True)
        else:
            self._open.append(given)
        self._last = given
        self._underway = claim.pod if certain and claim is not None else None
        return given

    def take_back(self, given: Given) -> None:
        """The answer never left this process."""
        if self._given.get(given.ids) is given:
            del self._given[given.ids]
        if given in self._open:
            self._open.remove(given)
        elif given.claim is not None:
            self._wait_again(given.claim)
        self._underway = None

    def fail(self, uid: str) -> None:
        """Nothing more is handed out to this pod."""
        self._failed.add(uid)
        self._left(uid)

    # -- learning

    def inherit(self, uids: Iterable[str]) -> None:
        """Pods that were there before this process: others may have answered for them."""
        self._inherited.update(uids)

    def restore(self, ids: Collection[str], claim: Claim, holder: Spot | None) -> None:
        """An answer of an earlier process."""
        given = Given(frozenset(ids), frozenset({spot(claim)}), claim, True, holder, holder is not None)
        self._given[given.ids] = given
        self._done.setdefault(claim.pod.uid, set()).add(claim.position)
        if holder is None:
            self._restored.add(spot(claim))

    def kubelet_is_new(self) -> None:
        """It may have lost the answers that it was about to write down."""
        self.shaken = True
        alone = [each.claim for each in self._given.values() if each.certain and each.holder is None]
        self._restored |= {spot(claim) for claim in alone if claim is not None}

    def learn(self, held: Held, pods: Collection[BoundPod]) -> None:
        """kubelet says who holds which devices."""
        named = {(pod.key.namespace, pod.key.name): pod for pod in pods}
        for (namespace, name, container), ids in held.items():
            pod = named.get((namespace, name))
            position = pod.position(container) if pod is not None else None
            if pod is None or position is None:
                continue
            given = self._given.get(frozenset(ids))
            if given is None:
                # Another pod of the same name may have held them, if this one came after the agent.
                if pod.key.uid in self._inherited:
                    self._finish(pod, position)
                continue
            given.holder = given.holder or (pod.key.uid, position)
            if not given.certain:
                self._open = [each for each in self._open if each is not given]
                self._finish(pod, position, settled=True)
                if given is self._last:
                    self._underway = pod.key
        for given in self._given.values():
            given.looks += given.holder is None
        self._restored = {each for each in self._restored if each[0] in {pod.key.uid for pod in pods}}
        self._prune(held, {pod.key.uid for pod in pods})

    def reopen_lent(self, pods: Iterable[BoundPod]) -> None:
        """Containers of equal slices are answered for each other. Where kubelet asks and nobody seems to wait, those
        whose answer another took, and who hold nothing themselves, wait again."""
        alive = {pod.key.uid: pod for pod in pods if not pod.started and not pod.terminal}
        served = {given.holder for given in self._given.values()}
        for given in self._given.values():
            claim = given.claim
            if claim is None or not given.certain or given.holder in (None, spot(claim)) or spot(claim) in served:
                continue
            lender = alive.get(claim.pod.uid)
            if lender is not None and claim.position not in lender.unlisted:
                self._wait_again(claim)

    def reopen_lost(self, held: Held, pods: Iterable[BoundPod], *, but: Collection[Given] = ()) -> None:
        """Answers whose devices nobody holds, although kubelet asks for the next ones: it lost them in a restart, or
        gave the pod up. Only true while kubelet waits for an Allocate; `but` are answers of that same call."""
        known = {frozenset(ids) for ids in held.values()}
        alive = {pod.key.uid: pod for pod in pods if not pod.started}
        for given in [each for each in self._given.values() if each.holder is None and each.ids not in known]:
            claim = given.claim
            if claim is None or not given.certain or given in but or claim.pod.uid not in alive:
                continue
            if claim.position in alive[claim.pod.uid].unlisted:
                continue
            del self._given[given.ids]
            self._wait_again(claim)
            if self._last is given:
                self._underway = None
        unlisted = {(uid, at) for uid, pod in alive.items() for at in pod.unlisted}
        for given in self._open:
            if given.ids not in known and given not in but:
                # Those that kubelet shows do not hold them.
                given.among &= unlisted
        self._open = [each for each in self._open if each.among]

    def finish(self, pod: BoundPod) -> None:
        """Every container of the pod has its devices, or needs none any more."""
        for claim in (*pod.left, *pod.claims):
            self._finish(pod, claim.position)

    def ended(self, uid: str) -> None:
        """The pod needs no devices any more: whoever lent it an answer has to get one again."""
        self.shaken = True
        self._left(uid)
        served = {given.holder for given in self._given.values()}
        for given in [each for each in self._given.values() if each.holder is not None and each.holder[0] == uid]:
            del self._given[given.ids]
            if given.claim is not None and given.claim.pod.uid != uid and spot(given.claim) not in served:
                self._wait_again(given.claim)

    def forget(self, uid: str) -> None:
        """The pod is gone."""
        self.ended(uid)
        for memory in (self._done, self._again):
            memory.pop(uid, None)
        self._failed.discard(uid)
        self._inherited.discard(uid)
        self._restored = {each for each in self._restored if each[0] != uid}
        # Some of the open answers were for this pod; keeping one too many would refuse another pod.
        for count in {len(each.ids) for each in self._open}:
            spent = next((g for g in self._open if len(g.ids) == count and uid in {u for u, _ in g.among}), None)
            if spent is not None:
                self._open.remove(spent)

    def _prune(self, held: Held, uids: set[str]) -> None:
        """Answers for pods that are gone and whose devices nobody holds."""
        known = {frozenset(ids) for ids in held.values()}
        for given in [each for each in self._given.values() if each.holder is None and each.ids not in known]:
            if all(uid not in uids for uid, _ in given.among):
                del self._given[given.ids]

    def _left(self, uid: str) -> None:
        if self._underway is not None and self._underway.uid == uid:
            self._underway = None

    def _wait_again(self, claim: Claim) -> None:
        self._done.get(claim.pod.uid, set()).discard(claim.position)
        self._again.setdefault(claim.pod.uid, set()).add(claim.position)

    def _finish(self, pod: BoundPod, position: int, *, settled: bool = False) -> None:
        """A container has its devices, and so have those before it, which kubelet asks for first.

        One of the open answers was for each of them, and it does not matter which; `settled` where this one's is known.
        """
        done = self._done.setdefault(pod.key.uid, set())
        self._restored = {each for each in self._restored if each[0] != pod.key.uid or each[1] > position}
        for at in sorted({each.position for each in (*pod.left, *pod.claims) if each.position <= position} - done):
            done.add(at)
            spent = next((given for given in self._open if (pod.key.uid, at) in given.among), None)
            if spent is not None and not (settled and at == position):
                self._open.remove(spent)
