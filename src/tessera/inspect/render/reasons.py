"""The reasons of the wire in plain words, for people who meet `CardTimeSlicingExhausted` for the first time."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tessera.core.misfits import Reason

PLAIN: Mapping[Reason, str] = MappingProxyType(
    {
        Reason.NODE_UNREGISTERED: "no device plugin has registered cards on the node",
        Reason.NODE_UNAVAILABLE: "what the node has or has given away cannot be read",
        Reason.NODE_INSUFFICIENT_DEVICE: "the node has fewer cards than are asked for",
        Reason.VENDOR_UNKNOWN: "the device configuration knows no such cards",
        Reason.CARD_NOT_HEALTHY: "the card is unhealthy, or its use is not known exactly",
        Reason.CARD_UNHEALTHY: "the card is unhealthy",
        Reason.CARD_CORDONED: "an administrator closed the card for new pods",
        Reason.CARD_TYPE_MISMATCH: "the pod does not accept this model, or this sharing mode",
        Reason.CARD_UUID_MISMATCH: "the pod names other cards",
        Reason.NUMA_NOT_FIT: "not enough cards on one NUMA node",
        Reason.CARD_SLOTS_EXHAUSTED: "as many pods share the card as may",
        Reason.EXCLUSIVE_CONFLICT: "the pod wants the card alone, and somebody has a part of it",
        Reason.QUOTA_NOT_FIT: "the namespace's quota does not leave enough",
        Reason.CARD_INSUFFICIENT_MEMORY: "not enough free memory on the card",
        Reason.CARD_INSUFFICIENT_CORES: "not enough free cores on the card",
        Reason.CARD_CORES_EXHAUSTED: "all cores of the card are given away",
        Reason.MIG_INFEASIBLE: "no free place for a MIG instance of that size",
        Reason.CUSTOM_RULE: "a rule of the vendor refuses the card",
        Reason.TOO_FEW_CARDS: "the card would do, but there are too few of them",
        Reason.QOS_MISMATCH: "pods of another QoS policy are on the card",
        Reason.APP_CLASS_MISMATCH: "pods of another class are on the card",
        Reason.MODE_NOT_FIT: "the card is in another mode",
    }
)


def in_words(text: str) -> str:
    """What the reasons in a wire text (`1/4 CardInsufficientMemory, 3/4 CardTypeMismatch`) mean."""
    found = [words for reason, words in PLAIN.items() if reason.value in text]
    return "; ".join(found)
