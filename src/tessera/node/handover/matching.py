"""Which container an Allocate is for, from what is left to hand out and the number of devices alone. Pure.

kubelet asks for the containers of a pod in their order and for one pod after the other, but does not say for which. So
the answer is a claim only where every claim that could be meant has the same slices; two different ones are never
guessed between. Containers that carry their slices may be answered with anything that leaves their environment alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tessera.node.handover.claims import Claim, PodKey


@dataclass(frozen=True, slots=True)
class Waiting:
    """What is left to hand out to one pod, in order of containers."""

    pod: PodKey
    claims: tuple[Claim, ...]
    doubtful: frozenset[int] = frozenset()
    """positions that may have been answered already, because an answer could have been for another pod as well"""
    hidden: frozenset[int] = frozenset()
    """positions that kubelet's PodResources never shows"""

    def nexts(self) -> Iterator[Claim]:
        """Every claim that kubelet may ask for next."""
        for claim in self.claims:
            yield claim
            if claim.position not in self.doubtful:
                return


@dataclass(frozen=True, slots=True)
class Meant:
    """The answer is this claim's slice."""

    claim: Claim
    certain: bool
    """False where a container that carries its own slice may be asking instead"""
    known: bool = True
    """False where it matters which pod is asking: its later containers get something else than the other pods'"""
    among: tuple[Claim, ...] = ()
    """all that may be asking"""


@dataclass(frozen=True, slots=True)
class Welcome:
    """Only containers that carry their slices can be meant; one claim means that it is known which."""

    among: tuple[Claim, ...]


@dataclass(frozen=True, slots=True)
class NobodyWaits:
    """No claim has this number of devices, or all that have were answered."""


@dataclass(frozen=True, slots=True)
class Mismatched:
    """The pod that the node's lock names is to get another number of devices, and nobody else this one."""

    claim: Claim


@dataclass(frozen=True, slots=True)
class Ambiguous:
    """Different slices are possible."""

    pods: tuple[PodKey, ...]


Match = Meant | Welcome | NobodyWaits | Mismatched | Ambiguous


def match(
    waiting: Sequence[Waiting],
    *,
    count: int,
    travels: bool,
    owner: tuple[str, str] | None = None,
    underway: PodKey | None = None,
    confirmed: bool = False,
    open_answers: int = 0,
) -> Match:
    """`waiting` in the order of binding; `owner` by the node's lock; `underway`: the pod that kubelet was busy with.

    `confirmed`: kubelet has not given that pod up, so it must be the one that is meant. `open_answers` of this number
    of devices were given to nobody knows whom.
    """
    found = [claim for pod in waiting for claim in pod.nexts() if len(claim.slices) == count]
    owned = next((pod for pod in waiting if owner == (pod.pod.namespace, pod.pod.name)), None)
    if owned is not None:
        own = [claim for claim in found if claim.pod == owned.pod]
        if not found:
            return Mismatched(owned.claims[0])
        found = own or found
    elif open_answers >= sum(len(claim.slices) == count for pod in waiting for claim in pod.claims):
        return NobodyWaits()
    begun = [claim for claim in found if claim.pod == underway]
    return _chosen(begun if begun and confirmed else found, waiting, travels=travels)


def _chosen(found: Sequence[Claim], waiting: Sequence[Waiting], *, travels: bool) -> Match:
    if not found:
        return NobodyWaits()
    dependent = [claim for claim in found if not (travels and claim.carried)]
    if not dependent:
        return Welcome(tuple(found))
    if any(claim.what != dependent[0].what for claim in dependent):
        return Ambiguous(tuple(dict.fromkeys(claim.pod for claim in dependent)))
    doubtful = {(pod.pod, position) for pod in waiting for position in pod.doubtful}
    # Each claim is answered once where that can be: two containers must not share one answer's folder.
    fresh = [claim for claim in dependent if (claim.pod, claim.position) not in doubtful] or dependent
    certain = len(dependent) == len(found)
    known = certain and len({_rest(claim, waiting) for claim in dependent}) == 1
    return Meant(fresh[0], certain=certain, known=known, among=tuple(found))


def _rest(claim: Claim, waiting: Sequence[Waiting]) -> tuple[object, ...]:
    """What the pod gets from this container on: pods that agree in it may be taken for each other."""
    return tuple(
        (each.what, each.carried, each.position in pod.hidden)
        for pod in waiting
        if pod.pod == claim.pod
        for each in pod.claims
        if each.position >= claim.position
    )
