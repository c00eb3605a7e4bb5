"""Which sharing modes a pod's containers can work with, besides what the pod itself accepts.

MIG makes a card's instances at Allocate, so a container that takes its slice from an annotation cannot be told their
names before. MPS has one daemon a card and a process talks to one daemon, so a container gets one such card. Cards that
name no mode stay open to everybody.
"""

from __future__ import annotations

from dataclasses import replace

from tessera.core.devices import HAMI_CORE, MIG, MPS, WHOLE
from tessera.core.requests import PodRequest
from tessera.scheduler.admission.identity import CARRIED
from tessera.vendors.reading_pods import BadPod

MODES = (HAMI_CORE, MIG, MPS, WHOLE)


def with_modes(pod: PodRequest, *, by_reference: bool) -> PodRequest | BadPod:
    """The same request for cards of fitting modes only; `by_reference`: its containers refer to their own slices."""
    kept = dict(pod.constraints)
    for vendor in CARRIED.keys() & set(pod.vendors):
        constraint = pod.constraint(vendor)
        several = _asks_for_several(pod, vendor)
        refused = {MPS} if several is not None else set()
        if by_reference and constraint.mode is None:
            # A pod that names MIG itself was given no references for it.
            refused.add(MIG)
        if not refused:
            continue
        accepted = [mode for mode in MODES if constraint.mode is None or mode in constraint.mode]
        left = [mode for mode in accepted if mode not in refused]
        if several is not None and accepted and not left:
            return BadPod(several, f"cards in mode {MPS} are given to a container one at a time: ask for one")
        if left != accepted:
            kept[vendor] = replace(constraint, mode=",".join(left))
    return replace(pod, constraints=tuple(sorted(kept.items())))


def _asks_for_several(pod: PodRequest, vendor: str) -> str | None:
    """A container that asks for more than one card of the vendor."""
    for container in pod.containers:
        if any(request.vendor == vendor and request.count > 1 for request in container.requests):
            return container.name
    return None
