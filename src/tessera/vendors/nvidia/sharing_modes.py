"""Which sharing modes of a card a pod's containers can work with, beyond what the pod itself accepts.

MIG instances have no name before Allocate makes them, so a container cannot read them through the downward API: a pod
gets them only if it names the mode. That holds for pods that bypassed the webhook too, so that there is one rule. MPS
has one daemon per card and a process talks to one daemon, so a container gets one such card. Cards that name no mode
accept every pod.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache

from tessera.core.model.devices import HAMI_CORE, MIG, MPS, WHOLE
from tessera.core.model.requests import Constraint, PodRequest, names_word
from tessera.vendors.drafts import BadPod

MODES = (HAMI_CORE, MIG, MPS, WHOLE)


def mode_words(text: str) -> list[str]:
    """The words of a mode annotation, whatever stands between them."""
    return [word for word in re.split(r"[^\w.-]+", text) if word]


def names_any_mode(word: str) -> bool:
    return any(names_word(word, mode) for mode in MODES)


def narrow_modes(pod: PodRequest, vendor: str) -> Constraint | BadPod:
    """The pod's constraint with only the modes that work."""
    constraint = pod.constraint(vendor)
    several = _container_with_several(pod, vendor)
    accepted, usable = _modes(constraint.mode, several=several is not None)
    if several is not None and accepted and not usable:
        return BadPod(several, f"cards in mode {MPS} are given to a container one at a time: ask for one")
    return constraint if usable == accepted else replace(constraint, mode=",".join(usable))


@lru_cache(maxsize=256)
def _modes(mode: str | None, *, several: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The modes that the pod accepts, and those of them that work."""
    refused = {MPS} if several else set()
    if mode is None:
        refused.add(MIG)
    accepted = tuple(one for one in MODES if mode is None or names_word(mode, one))
    return accepted, tuple(one for one in accepted if one not in refused)


def _container_with_several(pod: PodRequest, vendor: str) -> str | None:
    """The first container that asks for more than one card of the vendor."""
    for container in pod.containers:
        if any(request.vendor == vendor and request.count > 1 for request in container.requests):
            return container.name
    return None
