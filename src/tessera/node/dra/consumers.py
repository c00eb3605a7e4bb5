"""Which containers would use several requests for cards at once: pure.

A container is told its cards and limits by variables, so those of a second request would replace those of the first,
and the container would run without a slice that it was granted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tessera.wire.resource_api import ClaimingPod


def other_claims(pod: ClaimingPod, claim: str) -> set[str]:
    """The names of the claims that a container uses beside this one."""
    names = pod.claim_names
    found: set[str] = set()
    for container in pod.all_containers:
        used = {names[each.name] for each in container.resources.claims or () if each.name in names}
        if claim in used:
            found |= used - {claim}
    return found


def find_conflict(pod: ClaimingPod, claim: str, requests: Mapping[str, Collection[str]]) -> str:
    """Returns why a container of the pod cannot use the claim; empty if all can.

    `requests` are the names of requests with this node's cards, by claim; claims without any may be missing."""
    names = pod.claim_names
    for container in pod.all_containers:
        used = {
            (named, request)
            for each in container.resources.claims or ()
            if (named := names.get(each.name)) is not None
            for request in filter(each.names, requests.get(named, ()))
        }
        if len(used) > 1 and any(named == claim for named, _ in used):
            listed = ", ".join(sorted(f"{request} of {named}" for named, request in used))
            return (
                f"container {container.name} of pod {pod.metadata.name} uses {len(used)} requests for cards ({listed}),"
                " and can use one: write one request with a count, or name one request for each container"
            )
    return ""
