"""What would happen to pods that nobody has created: webhook, filter and reservation, on a copy of the cluster.

Every copy takes the product's own way: admission completes or refuses it, filter prepares it, the selector chooses, the
ledger reserves. What a kube-scheduler would rule out by cpu, memory or volumes is not known here.
"""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import dataclass, replace

import msgspec

from tessera.core.requests import PodRequest
from tessera.core.selection import Refused, Selected
from tessera.inspect.choice import Fits, chosen
from tessera.inspect.demand import Expected
from tessera.inspect.explanation import bad_text, expected_by, grouped
from tessera.inspect.manifests import Manifest
from tessera.inspect.offline_cluster import OfflineCluster
from tessera.inspect.request import Understood, understood
from tessera.inspect.slices import Slice, slices_of
from tessera.inspect.state import Json
from tessera.inspect.verdicts import FitsNowhere, Group, judge
from tessera.lab.sandbox.api.patches import apply_json_patch
from tessera.scheduler.admission.env_injection import Injection
from tessera.scheduler.admission.pod_admission import AdmissionSettings, admit
from tessera.scheduler.host_resources import host_ask
from tessera.scheduler.pod_requests import Prepared
from tessera.scheduler.settings import Settings
from tessera.vendors.drafts import BadPod
from tessera.wire.admission import Verdict
from tessera.wire.objects import Pod

MOST = 10_000
"""copies tried when counting how many fit"""


@dataclass(frozen=True, slots=True)
class Placed:
    """One copy and where it would go."""

    name: str
    node: str
    slices: tuple[Slice, ...]


@dataclass(frozen=True, slots=True)
class Stop:
    """Why a copy gets no place."""

    text: str
    verdict: FitsNowhere | None = None
    kept_off: tuple[Group, ...] = ()


@dataclass(frozen=True, slots=True)
class Simulation:
    """What became of a manifest."""

    namespace: str
    name: str
    count: int
    """copies asked for"""
    request: Understood | None = None
    """None where the pod asks for no devices, or was refused before anybody understood it"""
    warnings: tuple[str, ...] = ()
    """what the webhook would tell the creator"""
    placed: tuple[Placed, ...] = ()
    """of the copies asked for, those that fit"""
    why: Fits | None = None
    """how the first copy was chosen"""
    expected: Expected | None = None
    """the pods to come, before the first copy; None where the policies do not look ahead"""
    fits_in_all: int = 0
    """copies that fit one after another, the ones asked for among them"""
    stop: Stop | None = None
    """what stops the next one; None where counting ended before anything did"""

    @property
    def all_fit(self) -> bool:
        return self.fits_in_all >= self.count

    @property
    def by_node(self) -> dict[str, int]:
        return dict(sorted(Counter(one.node for one in self.placed).items()))


def simulate(world: OfflineCluster, manifest: Manifest, *, most: int = MOST, cards: bool = False) -> Simulation:
    """Places the copies asked for, then counts on until one does not fit or `most` did.

    Only the copies asked for stay reserved and teach, so that the next manifest meets them and nothing else.
    """
    result = Simulation(manifest.namespace, manifest.name, manifest.count)
    limit = max(manifest.count, most)
    placed: list[Placed] = []
    extra: list[str] = []
    # Equal pods have equal candidates, and looking a thousand nodes up for every copy takes longer than placing it.
    asked: _Asked | None = None
    while result.fits_in_all < limit:
        number = result.fits_in_all + 1
        document, verdict = _admitted(world, manifest, number)
        result = replace(result, warnings=result.warnings or verdict.warnings)
        if document is None:
            result = replace(result, stop=Stop(f"the webhook refuses it: {verdict.message}"))
            break
        pod = msgspec.convert(document, Pod)
        prepared = world.prepare(pod)
        if isinstance(prepared, BadPod):
            result = replace(result, stop=Stop(bad_text(prepared)))
            break
        if not prepared.request.asks_for_devices:
            result = replace(result, fits_in_all=manifest.count)
            break
        if result.request is None:
            annotations = document["metadata"].get("annotations") or {}
            request = understood(prepared.request, annotations, world.vendors)
            result = replace(result, request=request, expected=expected_by(world, prepared))
        asked = asked or _Asked(world, document)
        answer = world.engine.selector.select(prepared.request, asked.candidates)
        if number <= manifest.count:
            world.asked_about(prepared.request)
        if isinstance(answer, Refused):
            result = replace(result, stop=_stop(world, prepared.request, asked, cards=cards))
            break
        if number == 1:
            result = replace(result, why=chosen(world.ledger, prepared.request, answer))
        one = _reserved(world, prepared, answer)
        world.occupy(_host(prepared.request.uid), one.node, host_ask(pod))
        if number <= manifest.count:
            placed.append(one)
        else:
            extra.append(prepared.request.uid)
        result = replace(result, fits_in_all=number)
    for uid in extra:
        world.engine.filter.forget(uid)
        world.vacate(_host(uid))
    return replace(result, placed=tuple(placed))


def _admitted(world: OfflineCluster, manifest: Manifest, number: int) -> tuple[Json | None, Verdict]:
    """The copy as the apiserver would store it; None where the webhook refuses it."""
    document = copy.deepcopy(manifest.pod)
    document["metadata"]["name"] = manifest.name if manifest.count == 1 and number == 1 else f"{manifest.name}-{number}"
    verdict = admit(
        document,
        namespace=manifest.namespace,
        vendors=world.vendors,
        settings=_admission(world.settings),
        quotas=world.ledger.quotas,
    )
    if not verdict.allowed:
        return None, verdict
    document = apply_json_patch(document, [dict(operation) for operation in verdict.patch])
    document["metadata"]["uid"] = f"simulated-{manifest.namespace}-{manifest.name}-{number:06}"
    return document, verdict


class _Asked:
    """The nodes that all copies of a pod are judged on."""

    def __init__(self, world: OfflineCluster, document: Json) -> None:
        self.names, self.kept_off = world.candidates(document)
        self.candidates = world.engine.selector.candidates(self.names)


def _reserved(world: OfflineCluster, prepared: Prepared, answer: Selected) -> Placed:
    request, placement = prepared.request, answer.placement
    world.engine.filter.keep(prepared, placement)
    containers = [container.name for container in request.containers]
    return Placed(request.name, placement.node, slices_of(world.ledger, placement, containers))


def _host(uid: str) -> str:
    """Who uses the host for a copy that is only reserved: the ledger knows it by its own uid."""
    return f"host of {uid}"


def _stop(world: OfflineCluster, request: PodRequest, asked: _Asked, *, cards: bool) -> Stop:
    verdict = judge(world.engine.selector, request, asked.names, cards=cards)
    assert isinstance(verdict, FitsNowhere)  # nothing has changed since it was refused
    best = verdict.near_miss or (verdict.groups[0].reason if verdict.groups else "no node is left to ask about")
    return Stop(best, verdict, grouped(asked.kept_off))


def _admission(settings: Settings) -> AdmissionSettings:
    """As the service has it."""
    return AdmissionSettings(
        scheduler_name=settings.scheduler_name,
        force_overwrite_default_scheduler=settings.force_overwrite_default_scheduler,
        privileged=settings.privileged,
        injection=Injection(settings.hook_path, settings.allow_disable_control) if settings.injects_identity else None,
    )
