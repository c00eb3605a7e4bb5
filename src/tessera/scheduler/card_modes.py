"""Which sharing modes a pod's containers can work with, besides what the pod itself accepts.

MIG makes a card's instances at Allocate, so a container that takes its slice from an annotation cannot be told their
names before. MPS has one daemon a card and a process talks to one daemon, so a container gets one such card. Cards that
name no mode stay open to everybody.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from tessera.core.devices import HAMI_CORE, MIG, MPS, WHOLE
from tessera.core.requests import Constraint, PodRequest
from tessera.scheduler.admission.identity import CARRIED
from tessera.vendors.pod_reader import BadPod

MODES = (HAMI_CORE, MIG, MPS, WHOLE)


def with_modes(pod: PodRequest, *, by_reference: bool) -> PodRequest | BadPod:
    """The same request for cards of fitting modes only; `by_reference`: its containers refer to their own slices."""
    narrowed: dict[str, Constraint] = {}
    for vendor in pod.vendors:
        if vendor not in CARRIED:
            continue
        constraint = pod.constraint(vendor)
        several = _asks_for_several(pod, vendor)
        accepted, left = _modes(constraint.mode, several=several is not None, by_reference=by_reference)
        if several is not None and accepted and not left:
            return BadPod(several, f"cards in mode {MPS} are given to a container one at a time: ask for one")
        if left != accepted:
            narrowed[vendor] = replace(constraint, mode=",".join(left))
    if not narrowed:
        return pod
    return replace(pod, constraints=tuple(sorted((dict(pod.constraints) | narrowed).items())))


@lru_cache(maxsize=256)
def _modes(mode: str | None, *, several: bool, by_reference: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What the pod accepts by itself, and what is left of it."""
    refused = {MPS} if several else set()
    if by_reference and mode is None:
        # A pod that names MIG itself was given no references for it.
        refused.add(MIG)
    accepted = tuple(one for one in MODES if mode is None or one in mode)
    return accepted, tuple(one for one in accepted if one not in refused)


def _asks_for_several(pod: PodRequest, vendor: str) -> str | None:
    """A container that asks for more than one card of the vendor."""
    for container in pod.containers:
        if any(request.vendor == vendor and request.count > 1 for request in container.requests):
            return container.name
    return None
