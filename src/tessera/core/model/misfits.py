"""Why something did not fit: values, never exceptions.

`Reason` is a closed set; its values are HAMi's wire texts and the labels of metrics. A `CardMisfit` carries the
numbers behind one card's refusal, a `Misfit` is the verdict on one node. Texts are short and shared: kube-scheduler
counts equal texts together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType


class Reason(StrEnum):
    """The closed set. Node reasons stand alone on the wire, card reasons as `<cards>/<total> <reason>`."""

    NODE_UNREGISTERED = "node unregistered"
    NODE_UNAVAILABLE = "node usage unavailable"
    NODE_INSUFFICIENT_DEVICE = "NodeInsufficientDevice"
    VENDOR_UNKNOWN = "Device type not found"
    GANG_WAITING = "GangWaiting"
    HELD_FOR_GANG = "HeldForGang"
    CLAIM_ELSEWHERE = "ClaimOnAnotherNode"
    SELECTORS_TOO_COSTLY = "SelectorsTooCostly"

    CARD_NOT_HEALTHY = "CardNotHealth"
    CARD_UNHEALTHY = "CardUnhealthy"
    CARD_CORDONED = "CardCordoned"
    CARD_TYPE_MISMATCH = "CardTypeMismatch"
    CARD_UUID_MISMATCH = "CardUuidMismatch"
    CARD_SELECTOR_MISMATCH = "CardSelectorMismatch"
    CARD_SELECTOR_TOO_COSTLY = "CardSelectorTooCostly"
    NUMA_NOT_FIT = "NumaNotFit"
    CARD_SLOTS_EXHAUSTED = "CardTimeSlicingExhausted"
    EXCLUSIVE_CONFLICT = "ExclusiveDeviceAllocateConflict"
    CARD_TOO_MANY_PODS = "CardTooManyPods"
    QUOTA_NOT_FIT = "ResourceQuotaNotFit"
    CARD_INSUFFICIENT_MEMORY = "CardInsufficientMemory"
    CARD_INSUFFICIENT_CORES = "CardInsufficientCore"
    CARD_CORES_EXHAUSTED = "CardComputeUnitsExhausted"
    MIG_INFEASIBLE = "CardMigTopologyInfeasible"
    CUSTOM_RULE = "CardNotFoundCustomFilterRule"
    TOO_FEW_CARDS = "AllocatedCardsInsufficientRequest"
    QOS_MISMATCH = "CardQosPolicyMismatch"
    APP_CLASS_MISMATCH = "CardAppClassMismatch"
    MODE_NOT_FIT = "ModeNotFit"
    ATTRIBUTES_NOT_FIT = "CardAttributesNotFit"


NODE_REASONS = frozenset(
    {
        Reason.NODE_UNREGISTERED,
        Reason.NODE_UNAVAILABLE,
        Reason.NODE_INSUFFICIENT_DEVICE,
        Reason.VENDOR_UNKNOWN,
        Reason.GANG_WAITING,
        Reason.HELD_FOR_GANG,
        Reason.CLAIM_ELSEWHERE,
        Reason.SELECTORS_TOO_COSTLY,
    }
)


MEANINGS: Mapping[Reason, str] = MappingProxyType(
    {
        Reason.NODE_UNREGISTERED: "no device plugin has registered cards on the node",
        Reason.NODE_UNAVAILABLE: "the node's cards or allocations cannot be read",
        Reason.NODE_INSUFFICIENT_DEVICE: "the node has fewer cards than requested",
        Reason.CLAIM_ELSEWHERE: "a ResourceClaim of the pod is allocated on another node",
        Reason.SELECTORS_TOO_COSTLY: "the selectors of a claim take too much work on the cards of this cluster",
        Reason.HELD_FOR_GANG: "cards that would do are held for a gang that has waited long",
        Reason.VENDOR_UNKNOWN: "the device configuration has no such cards",
        Reason.CARD_NOT_HEALTHY: "the card is unhealthy, or its use is uncertain",
        Reason.CARD_UNHEALTHY: "the card is unhealthy",
        Reason.CARD_CORDONED: "an administrator closed the card to new pods",
        Reason.CARD_TYPE_MISMATCH: "the pod does not accept this model or sharing mode",
        Reason.CARD_UUID_MISMATCH: "the pod asks for other cards by UUID",
        Reason.CARD_SELECTOR_MISMATCH: "the card is not for claims, or the claim's selectors or class do not match it",
        Reason.CARD_SELECTOR_TOO_COSTLY: "the claim's selectors take too much work on the card",
        Reason.NUMA_NOT_FIT: "not enough cards on one NUMA node",
        Reason.CARD_SLOTS_EXHAUSTED: "all slots of the card are taken",
        Reason.EXCLUSIVE_CONFLICT: "the pod wants the whole card, and other pods hold part of it",
        Reason.CARD_TOO_MANY_PODS: "with this pod, more pods would hold a part of the card than it accepts",
        Reason.QUOTA_NOT_FIT: "the namespace's quota has too little left",
        Reason.CARD_INSUFFICIENT_MEMORY: "not enough free memory on the card",
        Reason.CARD_INSUFFICIENT_CORES: "not enough free cores on the card",
        Reason.CARD_CORES_EXHAUSTED: "all cores of the card are allocated",
        Reason.MIG_INFEASIBLE: "no room for a MIG instance of that size",
        Reason.CUSTOM_RULE: "a vendor-specific rule refuses the card",
        Reason.TOO_FEW_CARDS: "the card fits, but too few cards do",
        Reason.QOS_MISMATCH: "pods with another QoS policy use the card",
        Reason.APP_CLASS_MISMATCH: "pods of another class use the card",
        Reason.MODE_NOT_FIT: "the card is in another mode",
        Reason.ATTRIBUTES_NOT_FIT: "the cards that fit do not meet the claim's constraints on attributes together",
    }
)
"""for people to read"""


def plain_reasons(text: str, *, mismatch: str = "") -> str:
    """The meaning of the reasons in a wire text such as `1/4 CardInsufficientMemory, 3/4 CardTypeMismatch`. `mismatch`
    says which of model and mode it is, if that is known."""
    meanings = {**MEANINGS, Reason.CARD_TYPE_MISMATCH: mismatch} if mismatch else MEANINGS
    return "; ".join(words for reason, words in meanings.items() if reason.value in text)


@dataclass(frozen=True, slots=True)
class CardMisfit:
    """Why one card was refused; the numbers are in the unit of what was short."""

    uuid: str
    reason: Reason
    asked: int | None = None
    free: int | None = None
    total: int | None = None


@dataclass(frozen=True, slots=True)
class Misfit:
    """Why a pod does not fit one node."""

    counts: tuple[tuple[Reason, int], ...]
    """how many cards were refused for each reason; a node reason stands alone with its count of missing cards or 0"""
    total: int = 0
    """cards of the requested vendor on the node"""
    vendor: str = ""
    container: int = 0
    """position of the first container that did not fit"""
    cards: tuple[CardMisfit, ...] = ()
    """card by card, if the plain rule was applied; empty in the summary over many nodes"""
    detail: str = ""
    """more for people to read, e.g. what is wrong with the node's registration"""

    @property
    def text(self) -> str:
        """HAMi's wire form: `1/4 CardInsufficientMemory, 3/4 CardTypeMismatch`, entries sorted as strings."""
        first = self.counts[0][0] if self.counts else Reason.NODE_UNAVAILABLE
        if first in (Reason.GANG_WAITING, Reason.HELD_FOR_GANG, Reason.CLAIM_ELSEWHERE, Reason.SELECTORS_TOO_COSTLY):
            return self.detail  # One text for all these nodes, which kube-scheduler shows.
        if first in NODE_REASONS:
            return first.value
        return ", ".join(sorted(f"{count}/{self.total} {reason.value}" for reason, count in self.counts))


def node_misfit(reason: Reason, *, vendor: str = "", container: int = 0, total: int = 0, detail: str = "") -> Misfit:
    return Misfit(((reason, 0),), total=total, vendor=vendor, container=container, detail=detail)


UNREGISTERED = node_misfit(Reason.NODE_UNREGISTERED)


def cards_misfit(
    refused: Iterable[CardMisfit], *, total: int, vendor: str, taken: int = 0, container: int = 0
) -> Misfit:
    """The misfit of a node, from its refused cards and the number of cards that would have fitted."""
    cards = tuple(refused)
    counts = Counter(card.reason for card in cards)
    if taken:
        counts[Reason.TOO_FEW_CARDS] += taken
    return Misfit(tuple(sorted(counts.items())), total=total, vendor=vendor, container=container, cards=cards)
