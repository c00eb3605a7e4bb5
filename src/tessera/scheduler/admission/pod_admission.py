"""Decides about one pod at its creation: the changes that complete it, or why it is refused.

The order of the checks is HAMi's. Refusals have code 403 and begin with HAMi's text; only a document that is not a pod
gets 400. Admitting a changed pod again changes nothing. Neither the document nor the ledger is modified.

Some annotations only Tessera may write on pods: the record of an allocation, and what is under its own prefix. A tenant
who could write these would hold cards without a grant, or take another pod's slice. They are refused at creation; the
admission policy that guards later changes uses the same lists.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from itertools import islice
from typing import Any

import msgspec

from tessera.core.fit.card_rules import SETTINGS
from tessera.core.fit.quota import excess_text
from tessera.core.ledger.ledger import Ledger
from tessera.core.model.requests import PodRequest
from tessera.core.search.advice import capacity, mode_advice
from tessera.scheduler.admission.claim_owners import NO_CLAIMS, ClaimOwner, Owner
from tessera.scheduler.admission.claim_templates import NotConverted, convert
from tessera.scheduler.admission.env_injection import with_slice_env
from tessera.scheduler.admission.json_patch import diff
from tessera.scheduler.admission.pod_draft import Document, draft_of, with_draft, with_spec
from tessera.scheduler.settings import PrivilegedMode, Settings
from tessera.vendors import drafts
from tessera.vendors.base import Vendor
from tessera.vendors.drafts import BadPod
from tessera.vendors.mistakes import find_mistakes, find_quota_mistakes
from tessera.vendors.nvidia import Nvidia
from tessera.vendors.pod_reader import pod_request
from tessera.wire import admission, keys
from tessera.wire.admission import Verdict
from tessera.wire.errors import listed, shortened
from tessera.wire.objects import Container, Metadata, Pod
from tessera.wire.pod_groups import GANG, BadPodGroup, read_pod_group

RESERVED_PREFIX = "tessera.io/"
WISH_PREFIX = GANG
"""under it, but of annotations that tenants write"""
WISHES = frozenset({keys.PREEMPTIBLE, *map(keys.card_rule, SETTINGS)})
"""under it, but written by tenants"""
RESERVED_LABELS = frozenset({keys.ASSIGNED_NODE, keys.FENCE})

_BINDING = (keys.ASSIGNED_NODE, keys.ASSIGNED_TIME, keys.BIND_PHASE, keys.BIND_TIME, keys.MIG_ALLOCATIONS)


def reserved_keys(vendors: Mapping[str, Vendor]) -> frozenset[str]:
    """Annotations that are reserved besides those under `RESERVED_PREFIX`."""
    written = (key for vendor in vendors.values() for key in (vendor.keys.to_allocate, vendor.keys.allocated))
    return frozenset(key for key in (*_BINDING, *written) if key)


def reserved_on(metadata: Metadata, vendors: Mapping[str, Vendor]) -> list[str]:
    """The reserved annotations and labels of an object, as text, sorted by kind and name."""
    annotations, labels = metadata.annotations, metadata.labels
    found = [f"label {name}" for name in sorted(RESERVED_LABELS.intersection(labels))] if labels else []
    if annotations:
        known = reserved_keys(vendors)
        taken = (name for name in annotations if name in known or _is_ours(name))
        found = [*(f"annotation {name}" for name in sorted(taken)), *found]
    return found


def _is_ours(name: str) -> bool:
    return name.startswith(RESERVED_PREFIX) and not name.startswith(WISH_PREFIX) and name not in WISHES


DEFAULT_SCHEDULER = "default-scheduler"
"""the apiserver's default for pods that name no scheduler"""

OTHER_SCHEDULER = "pod already has different scheduler assigned"

MAX_WARNINGS = 16
"""warnings per response; the apiserver truncates longer lists"""

MAX_DOUBTFUL_QUOTAS, MAX_QUOTA_WARNINGS = 16, 3
"""quotas of a namespace that are looked at, and warnings about them per response"""


def admit(
    document: Any,
    *,
    namespace: str,
    vendors: Mapping[str, Vendor],
    settings: Settings,
    ledger: Ledger,
    user: str = "",
    claims: ClaimOwner = NO_CLAIMS,
) -> Verdict:
    """The verdict on the creation of a pod, given as decoded JSON. `claims`: whose its ResourceClaims are."""
    try:
        pod = msgspec.convert(document, Pod)
    except (msgspec.ValidationError, RecursionError) as error:
        return admission.errored(admission.BAD_REQUEST, f"not a valid Pod: {error}")
    if not pod.app_containers:
        return admission.denied("pod has no containers")
    if user not in settings.trusted_users and (reserved := reserved_on(pod.metadata, vendors)):
        return admission.denied(
            f"pod {shown_name(pod.metadata)} has {listed(reserved)}: only the scheduler may write this"
        )
    if not _is_our_scheduler(pod.spec.scheduler_name, settings):
        return _protect_foreign(document, pod, vendors, settings)
    return _complete(
        document, pod, namespace=namespace, vendors=vendors, settings=settings, ledger=ledger, claims=claims
    )


def shown_name(metadata: Metadata) -> str:
    """The pod's name for messages; pods of controllers have only a `generateName` yet."""
    return shortened(metadata.name or metadata.generate_name)


def _is_our_scheduler(scheduler: str, settings: Settings) -> bool:
    if not scheduler or scheduler == settings.scheduler_name:
        return True
    return scheduler == DEFAULT_SCHEDULER and settings.force_overwrite_default_scheduler


def _protect_foreign(document: Document, pod: Pod, vendors: Mapping[str, Vendor], settings: Settings) -> Verdict:
    """The verdict on a pod of another scheduler: it gets no slices, and its variables must not take any."""
    draft = draft_of(pod)
    names = sorted({name for container in _containers(pod) for name in _devices_named(container, vendors)})
    if names:
        scheduler = shortened(pod.spec.scheduler_name)
        draft.warn(f"{listed(names)}: this pod gets no slices, because its scheduler is {scheduler}")
    answer = _protect(
        document, document, draft, request=None, vendors=vendors, settings=settings, skipped=_privileged(pod)
    )
    unchanged = answer.allowed and not answer.patch
    return admission.allowed(OTHER_SCHEDULER, warnings=answer.warnings) if unchanged else answer


def _complete(
    document: Document,
    pod: Pod,
    *,
    namespace: str,
    vendors: Mapping[str, Vendor],
    settings: Settings,
    ledger: Ledger,
    claims: ClaimOwner,
) -> Verdict:
    draft = draft_of(pod)
    containers = _containers(pod)
    privileged = _privileged(pod)
    denies = settings.privileged is PrivilegedMode.DENY
    left_alone = frozenset[int]() if denies else privileged
    asks = _mutate(draft, vendors, left_alone)
    if isinstance(asks, drafts.Denied):
        return admission.denied(asks.text)
    for position in sorted(left_alone):
        if names := _devices_named(containers[position], vendors):
            draft.warn(
                f"container {containers[position].name} is privileged: it is not changed and gets no slice of "
                f"{listed(names)}"
            )
    changed = with_draft(document, draft)
    if denies and privileged and asks:
        return admission.denied(f"container {containers[min(privileged)].name} is privileged")
    request: PodRequest | None = None
    if asks:
        if settings.scheduler_name:
            if pod.spec.node_name:
                return admission.denied("pod has node assigned")
            changed = with_spec(changed, schedulerName=settings.scheduler_name)
        asked = pod_request(msgspec.convert(changed, Pod), vendors)
        if isinstance(asked, BadPod):
            where = f"container {shortened(asked.container)}: " if asked.container else ""
            return admission.denied(where + asked.text)
        request = asked
    if claims.owner is Owner.OURS and settings.scheduler_name and not pod.spec.node_name:
        if claims.fault:
            return admission.denied(claims.fault)
        changed = with_spec(changed, schedulerName=settings.scheduler_name)
    if warning := _claim_warning(claims, asks=asks):
        draft.warn(warning)
    for mistake in find_mistakes(pod, vendors, skipped=left_alone):
        if mistake.is_refused:
            return admission.denied(mistake.text)
        draft.warn(mistake.text)
    group = read_pod_group(pod)
    if isinstance(group, BadPodGroup):
        if group.name and request is not None:
            return admission.denied(group.text)
        draft.warn(group.text)
    if request is not None:
        for text in islice(_broken_quotas(request, namespace, vendors, ledger), MAX_QUOTA_WARNINGS):
            draft.warn(text)
        over = excess_text(request, namespace, vendors, ledger.quotas)
        if over:
            return admission.denied(f"exceeding resource quota: pod {shown_name(pod.metadata)} {over}")
        if lacking := mode_advice(ledger, request):
            draft.warn(lacking)
    template: Document | None = None
    if request is not None and settings.dra_convert:
        resources = vendors[Nvidia.key].names.all if Nvidia.key in vendors else ()
        converted = convert(changed, request, names=resources, privileged=privileged)
        if isinstance(converted, NotConverted):
            draft.warn(f"the pod's requests do not become a ResourceClaim: {converted.text}")
        else:
            changed, request, template = converted.document, converted.request, converted.template
    answer = _protect(document, changed, draft, request=request, vendors=vendors, settings=settings, skipped=privileged)
    return replace(answer, requires=template) if answer.allowed else answer


def _claim_warning(claims: ClaimOwner, *, asks: bool) -> str:
    """What the user should know about claims that Tessera does not allocate; empty if there is nothing."""
    if claims.owner is Owner.OTHERS and asks:
        return f"{claims.text}: Tessera does not allocate it, so a pod that asks for shares of cards too cannot start"
    if claims.owner is Owner.UNKNOWN:
        return f"{claims.text}, so the pod stays with its scheduler: create it before the pod"
    return ""


def _protect(
    document: Document,
    changed: Document,
    draft: drafts.PodDraft,
    *,
    request: PodRequest | None,
    vendors: Mapping[str, Vendor],
    settings: Settings,
    skipped: frozenset[int],
) -> Verdict:
    """The verdict with the variables of slices in place. A privileged container sees all cards, whatever they say."""
    answer = with_slice_env(changed, request, vendors=vendors, draft=draft, skipped=skipped, settings=settings)
    if isinstance(answer, drafts.Denied):
        return admission.denied(answer.text)
    warnings = draft.warnings
    if len(warnings) > MAX_WARNINGS:
        warnings = [*warnings[: MAX_WARNINGS - 1], f"and {len(warnings) - MAX_WARNINGS + 1} more warnings"]
    return admission.patched(diff(document, answer), changed=answer, warnings=warnings)


def _mutate(draft: drafts.PodDraft, vendors: Mapping[str, Vendor], left_alone: frozenset[int]) -> bool | drafts.Denied:
    """Let every vendor complete every container. True where some container asks for some vendor's devices."""
    asks = False
    for position, container in enumerate(draft.containers):
        if position not in left_alone:
            for key in sorted(vendors):
                answer = vendors[key].mutate(container, draft)
                if isinstance(answer, drafts.Denied):
                    return answer
                asks = asks or answer
    return asks


def _broken_quotas(request: PodRequest, namespace: str, vendors: Mapping[str, Vendor], ledger: Ledger) -> Iterator[str]:
    """What is wrong with the namespace's quotas on cards that the pod asks for."""
    asked = {key: vendors[key] for key in request.vendors}
    capacity_of = cache(lambda vendor: capacity(ledger, vendor.key))
    for quota in islice(ledger.quotas.doubtful(namespace), MAX_DOUBTFUL_QUOTAS):
        for mistake in find_quota_mistakes(quota.doubtful, asked, capacity_of):
            yield f"quota {shortened(quota.name)} of namespace {namespace}: {mistake.what}; {mistake.fix}"


def _containers(pod: Pod) -> list[Container]:
    """In the order of positions; ephemeral containers cannot ask for devices."""
    return [*pod.init_containers, *pod.app_containers]


def _privileged(pod: Pod) -> frozenset[int]:
    """The positions of privileged containers."""
    contexts = (container.security_context for container in _containers(pod))
    return frozenset(position for position, each in enumerate(contexts) if each is not None and each.privileged is True)


def _devices_named(container: Container, vendors: Mapping[str, Vendor]) -> list[str]:
    """The resources of any vendor that a container names."""
    named = {*(container.resources.limits or ()), *(container.resources.requests or ())}
    return sorted(name for vendor in vendors.values() for name in vendor.names.all if name in named) if named else []
