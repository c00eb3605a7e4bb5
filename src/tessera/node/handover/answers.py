"""The answers that this agent has given: to which devices, for whom, and who really holds them.

An answer is open while it is not known who asked. Devices are in one answer at most: kubelet takes them from whoever
had them. Nothing here decides who waits; that is `progress`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tessera.node.handover.claims import Claim

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
    """False while it matters and is not known who asked"""
    asker: Claim | None = None
    """who is taken to have asked: any of `among` would do as well until kubelet says who it was"""
    holder: Spot | None = None
    """who holds the devices, as kubelet said once"""
    verified: bool = False
    looks: int = 0
    """how often kubelet did not name a holder"""


class Answers:
    """All that are remembered, oldest first."""

    def __init__(self) -> None:
        self._given: dict[frozenset[str], Given] = {}
        self._open: list[Given] = []

    def __iter__(self) -> Iterator[Given]:
        return iter(list(self._given.values()))

    def of(self, ids: Collection[str]) -> Given | None:
        """The answer to exactly these devices."""
        return self._given.get(frozenset(ids))

    def last_with(self, ids: Collection[str]) -> Given | None:
        """The latest answer that any of these devices was in."""
        return next((each for each in reversed(self._given.values()) if not each.ids.isdisjoint(ids)), None)

    def taken_over(self, ids: Collection[str]) -> frozenset[str] | None:
        """Those of these devices that an init container may have had, which kubelet never shows; None where nobody can
        say, because they were a pod's that is gone."""
        found = [given for given in self if given.holder is None and not given.ids.isdisjoint(ids)]
        if any(not given.certain and given not in self._open for given in found):
            return None
        return frozenset(each for given in found for each in given.ids.intersection(ids))

    @property
    def open(self) -> Sequence[Given]:
        return tuple(self._open)

    @property
    def unverified(self) -> list[Given]:
        """Whose holder is known but has not been compared."""
        return [given for given in self if given.holder is not None and not given.verified]

    @property
    def awaits_holder(self) -> bool:
        return any(given.holder is None and given.looks < MOST_LOOKS for given in self._given.values())

    def add(self, given: Given, *, is_open: bool = False) -> None:
        for old in [each for each in self._given if not each.isdisjoint(given.ids)]:
            del self._given[old]
        self._given[given.ids] = given
        if len(self._given) > MOST_ANSWERS:
            del self._given[next(iter(self._given))]
        if is_open:
            self._open.append(given)

    def drop(self, given: Given) -> None:
        """Forget who had its devices; an open one stays open."""
        if self._given.get(given.ids) is given:
            del self._given[given.ids]

    def close(self, given: Given | None) -> None:
        """It is known who asked, or does not matter any more."""
        self._open = [each for each in self._open if each is not given]

    def correct(self, taken_for: Spot, claim: Claim) -> None:
        """This container asked where another was taken to, and the other way round."""
        mine, theirs = self._certain(taken_for), self._certain(spot(claim))
        other = next((each.asker for each in mine), None)
        for given in mine:
            given.asker = claim
        for given in theirs:
            given.asker = other

    def _certain(self, container: Spot) -> list[Given]:
        return [each for each in self if each.certain and each.asker is not None and spot(each.asker) == container]

    def looked(self, held: Held, uids: Collection[str]) -> None:
        """kubelet was asked; answers for pods that are gone and whose devices nobody holds are forgotten."""
        known = {frozenset(ids) for ids in held.values()}
        for given in self:
            if given.holder is not None:
                continue
            given.looks += 1
            if given.ids not in known and all(uid not in uids for uid, _ in given.among):
                self.drop(given)

    def not_held_by(
        self, spots: Collection[Spot], *, known: Collection[frozenset[str]], but: Collection[Given]
    ) -> set[Spot]:
        """Only these containers, which kubelet never shows, can have asked for what nobody is shown to hold; the others
        that were in question."""
        others: set[Spot] = set()
        for given in self._open:
            if given.ids not in known and given not in but:
                others |= given.among - frozenset(spots)
                given.among &= frozenset(spots)
        self._open = [each for each in self._open if each.among]
        return others

    def forget(self, uid: str) -> None:
        """The pod is gone."""
        welcomes = [each for each in self._open if each.claim is None]
        for count in {len(each.ids) for each in welcomes}:
            # It asked for some of these, all the same to the others; keeping one too many would refuse another pod.
            mine = [g for g in welcomes if len(g.ids) == count and uid in {u for u, _ in g.among}]
            containers = {where for given in mine for where in given.among if where[0] == uid}
            for given in mine[: len(containers)]:
                self.close(given)
        for given in self._open:
            given.among = frozenset(where for where in given.among if where[0] != uid)
        self._open = [each for each in self._open if each.among]
        for given in self:
            if given.certain and given.asker is not None and given.asker.pod.uid == uid:
                given.certain, given.asker = False, None

    def spend(self, where: Spot) -> None:
        """One of the open answers was for this container, and it does not matter which."""
        self.close(next((given for given in self._open if where in given.among), None))


def count_open(answers: Answers, count: int, spots: Iterable[Spot] | None = None) -> int:
    """Open answers of this number of devices; only those that may have been for one of these."""
    found = [given for given in answers.open if len(given.ids) == count]
    return len(found) if spots is None else sum(not given.among.isdisjoint(spots) for given in found)
