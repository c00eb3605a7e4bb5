"""What this agent has answered, which containers have their devices, and which container an Allocate can be for. Pure.

kubelet does not say which container asks, but it asks for the containers of a pod in their order, and the scheduler
lets one pod that depends on Allocate at a time be between bind and its last Allocate. So a container goes

    outstanding --answered--> settled                                     the rule: one container can have asked
        |  \\--answered--> unsettled --kubelet shows its devices--> settled     several can have asked, or a restart
        |                     \\--kubelet has not got them--> outstanding       came in between
        +--kubelet shows devices that an earlier process answered--> settled

An unsettled answer counts as no container's. Different slices are never chosen between: `find` says that it cannot.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tessera.node.handover.assignments import Assignment, BoundPod, ContainerKey, ObjectKey

Held = Mapping[tuple[str, str, str], tuple[str, ...]]
"""namespace, pod and container -> device ids, as kubelet's PodResources API says"""

MAX_LOOKS = 5
"""questions to PodResources about one answer: some containers are never shown there"""


@dataclass(slots=True, eq=False)
class Allocation:
    """The answer for one container."""

    ids: frozenset[str]
    askers: frozenset[ContainerKey]
    """the containers that can have asked"""
    assignment: Assignment | None = None
    """whose slice was answered; None where the answer was the same as for every container"""
    in_progress: bool = False
    """whether the slice is still being made ready, so that it may yet be refused"""
    doubted: bool = False
    """whether kubelet or the agent restarted since, so that kubelet may not have stored it"""
    number: int = 0
    """of the call that was answered with it, in order; 0 while none is, or an earlier process did"""
    holder: ContainerKey | None = None
    """who holds the devices, once kubelet has said so"""
    verified: bool = False
    looks: int = 0

    @property
    def is_settled(self) -> bool:
        return len(self.askers) == 1 and not self.doubted


@dataclass(frozen=True, slots=True)
class Found:
    """The slice is right for every container that can be asking."""

    assignment: Assignment
    askers: tuple[Assignment, ...]

    @property
    def is_certain(self) -> bool:
        """Whether it is known which container asks."""
        return len(self.askers) == 1


@dataclass(frozen=True, slots=True)
class DownwardApi:
    """Only containers that read their slices from their own pods can be meant."""

    assignment: Assignment
    """the first of them"""
    askers: tuple[Assignment, ...]


@dataclass(frozen=True, slots=True)
class WrongCount:
    """The pod that the node lock names is to get another number of devices, and no other pod this one."""

    assignment: Assignment


@dataclass(frozen=True, slots=True)
class Ambiguous:
    """Different slices are possible."""

    pods: tuple[ObjectKey, ...]


@dataclass(frozen=True, slots=True)
class NotFound:
    """No container waits for this number of devices."""


Match = Found | DownwardApi | WrongCount | Ambiguous | NotFound


class AllocationState:
    """The containers of one node. Used from the event loop only."""

    def __init__(self, *, downward_api: bool) -> None:
        self.downward_api = downward_api
        """whether slices can reach containers through the downward API on this node; may be changed"""
        self.failed: set[str] = set()
        """uids of pods that get nothing more"""
        self._allocations: list[Allocation] = []
        self._held: dict[str, int] = {}
        """uid -> the last position that kubelet has shown to hold devices; it asks in order, so all before it do too"""
        self._lost: set[ContainerKey] = set()
        """containers that were answered, but kubelet has not got it: they wait again, whatever the API says"""

    def __iter__(self) -> Iterator[Allocation]:
        return iter(tuple(self._allocations))

    def uids(self) -> set[str]:
        """The pods that something was answered for."""
        return {uid for each in self._allocations for uid, _ in each.askers}

    # -- which containers have their devices

    def depends_on_allocate(self, pod: BoundPod) -> bool:
        return not (self.downward_api and pod.uses_downward_api)

    @property
    def is_unsettled(self) -> bool:
        return any(not each.is_settled for each in self._allocations)

    def is_in_progress(self, uid: str) -> bool:
        """Whether an Allocate that may be for this pod has not been answered yet."""
        return any(each.in_progress and any(owner == uid for owner, _ in each.askers) for each in self._allocations)

    @property
    def awaits_holder(self) -> bool:
        """Whether it is worth asking kubelet."""
        return any(each.holder is None and each.looks < MAX_LOOKS for each in self._allocations)

    def done(self, pod: BoundPod) -> frozenset[int]:
        """The positions that certainly have their devices, so that this can be written."""
        # An answer may have been for any pod that uses the downward API: only kubelet knows for which.
        depends = self.depends_on_allocate(pod)
        return frozenset(range((self._last_done(pod) if depends else self._last_held(pod)) + 1))

    def _last_held(self, pod: BoundPod) -> int:
        return self._held.get(pod.key.uid, -1)

    def _last_done(self, pod: BoundPod) -> int:
        uid, left = pod.key.uid, {assignment.position for assignment in pod.left}
        open_ = self._unsettled(pod) | {at for owner, at in self._lost if owner == uid}
        settled = [at for each in self._allocations if each.is_settled for owner, at in each.askers if owner == uid]
        written = [each.position for each in pod.assignments if each.position not in left | open_]
        return max([self._last_held(pod), *settled, *written])

    # -- which container asks

    def find(
        self,
        pods: Iterable[BoundPod],
        count: int,
        *,
        ids: Collection[str] = (),
        reused: Collection[str] = (),
        after: int = 0,
        inherited: Collection[str] = (),
        lock_owner: tuple[str, str] | None = None,
    ) -> Match:
        """`pods` in the order of binding. `ids`: the asked devices. `reused`: those of them that kubelet may take over
        from init containers of the same pod. `after`: the last call that was answered before kubelet asked.
        `inherited`: uids of pods that an earlier process may have answered. `lock_owner`: the pod that HAMi's node lock
        names."""
        waiting = [pod for pod in pods if self._is_waiting(pod) and not self._is_elsewhere(pod, ids, after)]
        owner = next((pod for pod in waiting if pod.key[:2] == lock_owner), None)
        inits, are_fresh = self._init_ids(waiting), not reused
        # Beside other devices, those of an init container may be free ones: the pod that had them was given up.
        may_be_free = not inits.issuperset(reused)
        reused = inits.intersection(reused)
        readings = [reused, set[str]()] if may_be_free else [reused]
        dependent = [pod for pod in waiting if self.depends_on_allocate(pod)]
        asked = [
            assignment
            for pod in dependent
            for assignment in (
                self._unrecorded_assignments(pod, are_fresh)
                if not reused and self.has_no_record(pod.key.uid, inherited)
                else self._next_assignments(pod, readings)
            )
            if len(assignment.slices) == count
        ]
        others = [
            assignment
            for pod in waiting
            if not self.depends_on_allocate(pod)
            for assignment in pod.all_assignments()
            if len(assignment.slices) == count and assignment.position > self._last_held(pod)
        ]
        if owner is not None:
            if not asked and not others:
                return WrongCount((owner.left or owner.all_assignments())[0])
            mine = [assignment for assignment in asked if assignment.pod == owner.key]
            asked, others = (mine, []) if mine else (asked, others)
        if asked:
            found = _same_slice(asked, others)
            return NotFound() if isinstance(found, Found) and self._all_answered(found) else found
        if not others:
            return NotFound()
        unsure = tuple(pod.key for pod in dependent if self._may_be_further(pod, count))
        return Ambiguous(unsure) if unsure else DownwardApi(others[0], tuple(others))

    def _is_elsewhere(self, pod: BoundPod, ids: Collection[str], after: int) -> bool:
        """Whether kubelet cannot be asking for the next container of this pod: it waits for the answer for one before
        it asks for the next, and gives on the devices of init containers only."""
        mine = [
            (each, at)
            for each in self._allocations
            if each.is_settled and each.assignment is not None
            for uid, at in each.askers
            if uid == pod.key.uid
        ]
        return any(
            each.number > after or (at not in pod.unlisted and not each.ids.isdisjoint(ids)) for each, at in mine
        )

    def _all_answered(self, found: Found) -> bool:
        """Whether as many answers were given as containers can have asked for them."""
        askers = {assignment.key for assignment in found.askers}
        open_ = [each for each in self._allocations if each.assignment is not None and len(each.askers) > 1]
        return sum(each.askers <= askers and not each.doubted for each in open_) >= len(askers)

    def answered_after(self, number: int) -> list[Allocation]:
        """The answers that kubelet had not got when it asked."""
        return [each for each in self._allocations if each.number > number]

    def may_hold(self, pod: BoundPod, *, inherited: Collection[str]) -> list[Assignment]:
        """What containers of the pod may have got: all but those that certainly wait. Which pod that uses the downward
        API asked is not known, so all of them may."""
        every = pod.all_assignments()
        if pod.started or not self.depends_on_allocate(pod) or self.has_no_record(pod.key.uid, inherited):
            return every
        last, unsettled = self._last_done(pod), self._unsettled(pod)
        return [assignment for assignment in every if assignment.position <= last or assignment.position in unsettled]

    def _may_be_further(self, pod: BoundPod, count: int) -> bool:
        """Whether a container of a dependent pod wants so many devices and cannot be ruled out.

        Unless it is known which container every answer was for, an earlier one may have been for this pod.
        """
        after = self._last_held(pod)
        wants = any(len(each.slices) == count and each.position > after for each in pod.all_assignments())
        return wants and bool(self._unsettled(pod))

    def _is_waiting(self, pod: BoundPod) -> bool:
        if pod.problem or pod.started or pod.terminal or pod.key.uid in self.failed or not pod.all_assignments():
            return False
        return pod.in_handover or pod.key.uid in self._asked_again()

    def _asked_again(self) -> set[str]:
        """Pods that kubelet may ask for once more, also if their handover has ended."""
        doubted = {uid for each in self._allocations if each.doubted for uid, _ in each.askers}
        return doubted | {uid for uid, _ in self._lost}

    def _next_assignments(self, pod: BoundPod, readings: Iterable[Collection[str]]) -> Iterator[Assignment]:
        """The first container of a dependent pod that has no devices; beyond it, while an unsettled answer may have
        been for it, the next one too. Then the devices tell: kubelet gives those of init containers on within a pod."""
        last, unsettled = self._last_done(pod), self._unsettled(pod)
        for assignment in pod.all_assignments():
            if assignment.position <= last:
                continue
            if not unsettled or any(self._fits(pod, assignment.position, reused) for reused in readings):
                yield assignment
            if assignment.position not in unsettled:
                return

    def has_no_record(self, uid: str, inherited: Collection[str]) -> bool:
        """Whether an earlier process may have answered containers of this pod that no record tells of."""
        recorded = {owner for each in self._allocations if len(each.askers) == 1 for owner, _ in each.askers}
        return uid in inherited and uid not in recorded

    def _unrecorded_assignments(self, pod: BoundPod, are_fresh: bool) -> Iterator[Assignment]:
        """The first container without devices; beyond init containers, which kubelet never shows, the next one too.
        kubelet does not give fresh devices only to a container for which init containers have left some."""
        last, unsettled, reusable = self._last_done(pod), self._unsettled(pod), 0
        for assignment in pod.all_assignments():
            count = len(assignment.slices)
            if assignment.position > last:
                if not (are_fresh and reusable):
                    yield assignment
                if assignment.position not in pod.unlisted | unsettled:
                    return
            reusable = max(reusable, count) if assignment.position in pod.unlisted else max(reusable - count, 0)

    def _unsettled(self, pod: BoundPod) -> set[int]:
        """Positions that an unsettled answer may have been for."""
        askers = (key for each in self._allocations if not each.is_settled for key in each.askers)
        return {at for uid, at in askers if uid == pod.key.uid}

    def _fits(self, pod: BoundPod, position: int, reused: Collection[str]) -> bool:
        """Whether kubelet can have chosen devices for this container that reuse these: some that init containers before
        it may have had, or none unless they have certainly left some."""
        possible: set[str] = set()
        certain: set[str] = set()
        for each in self._allocations:
            mine = {at for uid, at in each.askers if uid == pod.key.uid and at < position}
            if mine & pod.unlisted:
                possible |= each.ids
                certain = certain | each.ids if len(each.askers) == 1 else certain - each.ids
            elif mine:
                possible -= each.ids if len(each.askers) == 1 else frozenset()
                certain -= each.ids
        return not possible.isdisjoint(reused) if reused else not certain

    def _init_ids(self, pods: Iterable[BoundPod]) -> set[str]:
        inits = {(pod.key.uid, at) for pod in pods for at in pod.unlisted}
        return {each for known in self._allocations if not inits.isdisjoint(known.askers) for each in known.ids}

    # -- what happens

    def add(self, allocation: Allocation) -> None:
        """It was answered. kubelet asks for a container again only if it has lost the earlier answer."""
        # An answer without a slice is noted for the first pod that can have asked, whichever it was.
        if allocation.assignment is not None and len(allocation.askers) == 1:
            self._allocations = [each for each in self._allocations if each.askers != allocation.askers]
        self._allocations.append(allocation)
        self._lost -= allocation.askers

    def take_back(self, allocation: Allocation) -> None:
        """The answer never left this process, though it may have been written already that it did."""
        self._remove(allocation)
        if allocation.assignment is not None:
            self._lost.add(allocation.assignment.key)

    def _remove(self, allocation: Allocation) -> None:
        self._allocations = [each for each in self._allocations if each is not allocation]

    def doubt(self) -> None:
        """kubelet or the agent restarted: the last answer may be lost. kubelet had stored those before it asked on."""
        for each in self._allocations[-1:]:
            each.doubted = each.holder is None

    def confirm(
        self,
        held: Held,
        pods: Collection[BoundPod],
        *,
        inherited: Collection[str],
        undelivered: Collection[Allocation] | None = None,
    ) -> None:
        """kubelet says which container holds which devices. `inherited` are uids of pods that an earlier process may
        have answered. `undelivered`, where kubelet waits in a call: it has stored all answers but these of the call."""
        named = {pod.key[:2]: pod for pod in pods}
        for (namespace, name, container), ids in held.items():
            pod = named.get((namespace, name))
            position = pod.position(container) if pod is not None else None
            if pod is None or position is None:
                continue
            known = self._answer_for(frozenset(ids), pod, position)
            if known is not None and known.holder is None:
                known.holder = (pod.key.uid, position)
                self._settle(known, frozenset({known.holder}))
                self._settle_inits(known, pod)
            if (known is not None and known.holder == (pod.key.uid, position)) or pod.key.uid in inherited:
                # Another pod of the same name may have held them, if this one came after the agent.
                self._held[pod.key.uid] = max(position, self._last_held(pod))
        for each in self:
            each.looks += each.holder is None
            if undelivered is not None and not each.is_settled and each not in undelivered:
                self._narrow(each, {pod.key.uid: pod.unlisted for pod in pods})

    def _settle_inits(self, held: Allocation, pod: BoundPod) -> None:
        """kubelet gives devices of init containers on within a pod only, so the answers for those were this pod's."""
        for each in self._allocations[: self._allocations.index(held)]:
            inits = frozenset((uid, at) for uid, at in each.askers if uid == pod.key.uid and at in pod.unlisted)
            if inits and not each.is_settled and not each.ids.isdisjoint(held.ids):
                self._settle(each, inits)

    def _settle(self, allocation: Allocation, askers: frozenset[ContainerKey]) -> None:
        """One of these containers has got the answer, so no other answer was for it."""
        allocation.askers, allocation.doubted = askers, False
        if len(askers) == 1:
            for each in self:
                if not each.is_settled and askers < each.askers:
                    self._keep_askers(each, each.askers - askers)

    def _answer_for(self, ids: frozenset[str], pod: BoundPod, position: int) -> Allocation | None:
        """The latest answer for these devices, unless only an init container of the same pod can have got it, and gave
        them on."""
        key, inits = (pod.key.uid, position), {(pod.key.uid, at) for at in pod.unlisted if at < position}
        known = [each for each in reversed(self._allocations) if each.ids == ids]
        return next((each for each in known if key in each.askers or inits.isdisjoint(each.askers)), None)

    def _narrow(self, allocation: Allocation, unlisted: Mapping[str, Collection[int]]) -> None:
        """kubelet has not shown who has got the devices, so it was no container that it would show."""
        hidden = frozenset((uid, at) for uid, at in allocation.askers if at in unlisted.get(uid, ()))
        self._lost |= allocation.askers - hidden
        self._keep_askers(allocation, hidden)

    def _keep_askers(self, allocation: Allocation, askers: frozenset[ContainerKey]) -> None:
        """That the others did not ask, or are gone, does not settle that the last one did."""
        allocation.doubted |= askers != allocation.askers
        allocation.askers = askers
        if not askers:
            self._remove(allocation)

    def forget(self, uid: str) -> None:
        """The pod is gone."""
        self.failed.discard(uid)
        self._held.pop(uid, None)
        self._lost = {key for key in self._lost if key[0] != uid}
        for each in self:
            self._keep_askers(each, frozenset(key for key in each.askers if key[0] != uid))

    def forget_verified(self, pods: Iterable[BoundPod]) -> None:
        """Answers of pods that run say nothing more once they were compared with what kubelet shows."""
        over = {pod.key.uid for pod in pods if pod.started or pod.terminal}
        self._allocations = [
            each
            for each in self._allocations
            if not (each.verified or each.looks >= MAX_LOOKS) or not over.issuperset(uid for uid, _ in each.askers)
        ]


def _same_slice(asked: Sequence[Assignment], others: Sequence[Assignment]) -> Match:
    """Containers that use the downward API are right with any slice."""
    if any(assignment.what != asked[0].what for assignment in asked):
        return Ambiguous(tuple(dict.fromkeys(assignment.pod for assignment in asked)))
    return Found(asked[0], (*asked, *others))
