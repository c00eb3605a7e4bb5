"""Pods, nodes and clusters for tests, built as API objects and read by the real readers.

Builders are immutable: every call returns a changed copy, so that a half-built pod can be kept and varied. Nothing here
decides anything; all decisions are Tessera's.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from tessera.core.fit.fit import fit_pod
from tessera.core.ledger.audit import audit
from tessera.core.ledger.holdings import PodFacts
from tessera.core.ledger.ledger import Ledger
from tessera.core.model.grants import Placement
from tessera.core.model.misfits import Misfit
from tessera.core.model.requests import PodRequest
from tessera.core.search.selection import Refused, Selected, Selector
from tessera.vendors.base import Switches, Vendor
from tessera.vendors.binding_annotations import binding_annotations
from tessera.vendors.drafts import BadPod, ContainerDraft, Denied, PodDraft
from tessera.vendors.node_reader import node_facts, quota_facts
from tessera.vendors.pod_reader import PodReader, pod_request
from tessera.vendors.registry import build_vendors
from tessera.wire.objects import Node, Pod, ResourceQuota, decode_object

A100 = "NVIDIA A100-SXM4-80GB"
REGISTER = "hami.io/node-nvidia-register"
PAIR_SCORES = "hami.io/node-nvidia-score"
ALLOCATED = "hami.io/vgpu-devices-allocated"
MIG_ALLOCATIONS = "hami.io/vgpu-mig-allocations"
CORDON = "hami.io/device-cordon"
NODE_POLICY = "hami.io/node-scheduler-policy"
DEVICE_POLICY = "hami.io/gpu-scheduler-policy"

GPU = "nvidia.com/gpu"
MEMORY = "nvidia.com/gpumem"
PERCENT = "nvidia.com/gpumem-percentage"
CORES = "nvidia.com/gpucores"

NOW = 1_700_000_000.0
"""unix time in seconds at which pods in tests are bound"""


@cache
def vendors() -> Mapping[str, Vendor]:
    """All vendors, with the chart's values."""
    return build_vendors(None, Switches(ascend=True, iluvatar=True))


# -- pods


@dataclass(frozen=True)
class PodBuilder:
    name: str = "p"
    namespace: str = "default"
    uid: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)
    containers: tuple[Mapping[str, Any], ...] = ()
    init_containers: tuple[Mapping[str, Any], ...] = ()
    node: str = ""
    status: Mapping[str, Any] = field(default_factory=dict)
    deleted: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    spec: Mapping[str, Any] = field(default_factory=dict)
    """further fields"""
    gates: tuple[str, ...] = ()
    owner: tuple[str, str] | None = None
    """kind and name of its controller"""

    def container(self, **asks: Any) -> PodBuilder:
        """An app container. `gpu`, `mem`, `percent`, `cores` are NVIDIA's; `limits` and `requests` any vendor's."""
        added = _container(f"c{len(self.containers)}", **asks)
        return replace(self, containers=(*self.containers, added))

    def init(self, **asks: Any) -> PodBuilder:
        added = _container(f"init{len(self.init_containers)}", **asks)
        return replace(self, init_containers=(*self.init_containers, added))

    def sidecar(self, **asks: Any) -> PodBuilder:
        added = _container(f"init{len(self.init_containers)}", **asks) | {"restartPolicy": "Always"}
        return replace(self, init_containers=(*self.init_containers, added))

    def annotate(self, *pairs: tuple[str, str]) -> PodBuilder:
        return replace(self, annotations={**self.annotations, **dict(pairs)})

    def policy(self, *, node: str | None = None, device: str | None = None) -> PodBuilder:
        chosen = {NODE_POLICY: node, DEVICE_POLICY: device}
        return self.annotate(*((key, value) for key, value in chosen.items() if value is not None))

    def numa_bound(self) -> PodBuilder:
        return self.annotate(("nvidia.com/numa-bind", "true"))

    def called(self, name: str, *, namespace: str | None = None, uid: str | None = None) -> PodBuilder:
        return replace(self, name=name, namespace=namespace or self.namespace, uid=uid or "")

    def on(self, node: str, allocated: str = "") -> PodBuilder:
        """Bound to a node, with what its NVIDIA annotation says."""
        bound = replace(self, node=node)
        return bound.annotate((ALLOCATED, allocated)) if allocated else bound

    def after_init(self, *names: str, exit_code: int = 0) -> PodBuilder:
        """These init containers have ended."""
        statuses = [{"name": name, "state": {"terminated": {"exitCode": exit_code}}} for name in names]
        return replace(self, status={**self.status, "initContainerStatuses": statuses})

    def gated(self, gate: str = "kueue.x-k8s.io/admission") -> PodBuilder:
        return replace(self, gates=(*self.gates, gate))

    def in_gang(self, name: str, size: int, **more: str) -> PodBuilder:
        """A member of a gang; `more` are further annotations, without their prefix."""
        own = {f"tessera.io/gang{key}": value for key, value in (("", name), ("-size", str(size)))}
        return self.annotate(*own.items(), *((f"tessera.io/{key.replace('_', '-')}", v) for key, v in more.items()))

    def ended(self, phase: str = "Succeeded") -> PodBuilder:
        return replace(self, status={**self.status, "phase": phase})

    def with_priority(self, priority: int, *, policy: str | None = None) -> PodBuilder:
        return replace(self, spec={**self.spec, "priority": priority, "preemptionPolicy": policy})

    def labelled(self, **labels: str) -> PodBuilder:
        return replace(self, labels={**self.labels, **labels})

    def started(self, time: str) -> PodBuilder:
        """In RFC 3339."""
        return replace(self, status={**self.status, "startTime": time})

    def of(self, kind: str, name: str) -> PodBuilder:
        """Created by this controller."""
        return replace(self, owner=(kind, name))

    def terminating(self) -> PodBuilder:
        return replace(self, deleted="2026-01-01T00:00:00Z")

    def manifest(self) -> dict[str, Any]:
        return {
            "metadata": {
                "name": self.name,
                "namespace": self.namespace,
                "uid": self.uid or f"uid-{self.name}",
                "annotations": dict(self.annotations),
                "labels": dict(self.labels),
                "deletionTimestamp": self.deleted,
                "ownerReferences": [{"kind": self.owner[0], "name": self.owner[1], "controller": True}]
                if self.owner
                else None,
            },
            "spec": {
                **self.spec,
                "nodeName": self.node,
                "containers": list(self.containers),
                "initContainers": list(self.init_containers),
                "schedulingGates": [{"name": gate} for gate in self.gates],
            },
            "status": dict(self.status),
        }

    def api(self) -> Pod:
        return decode_object(json.dumps(self.manifest()), Pod)

    def request(self) -> PodRequest:
        found = pod_request(self.api(), vendors())
        assert isinstance(found, PodRequest), found
        return found

    def fault(self) -> BadPod:
        found = pod_request(self.api(), vendors())
        assert isinstance(found, BadPod), found
        return found

    def facts(self) -> PodFacts:
        found = PodReader(vendors()).facts(self.api())
        assert found is not None
        return found

    def admitted(self) -> PodBuilder | Denied:
        """The pod after the mutations of all vendors."""
        drafts = [
            ContainerDraft(
                limits=dict(container["resources"]["limits"]),
                requests=dict(container["resources"]["requests"]),
                name=container["name"],
            )
            for container in (*self.init_containers, *self.containers)
        ]
        draft = PodDraft(annotations=dict(self.annotations), containers=drafts)
        for container in drafts:
            for vendor in vendors().values():
                answer = vendor.mutate(container, draft)
                if isinstance(answer, Denied):
                    return answer
        changed = tuple(
            {**old, "resources": {"limits": new.limits, "requests": new.requests}}
            for old, new in zip((*self.init_containers, *self.containers), drafts, strict=True)
        )
        split = len(self.init_containers)
        return replace(self, annotations=draft.annotations, init_containers=changed[:split], containers=changed[split:])


def _container(
    default_name: str,
    *,
    name: str = "",
    gpu: Any = None,
    mem: Any = None,
    percent: Any = None,
    cores: Any = None,
    limits: Mapping[str, Any] | None = None,
    requests: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    asked = {GPU: gpu, MEMORY: mem, PERCENT: percent, CORES: cores}
    own = {key: value for key, value in asked.items() if value is not None}
    resources = {"limits": {**own, **(limits or {})}, "requests": dict(requests or {})}
    return {"name": name or default_name, "resources": resources}


def pod(name: str = "p", *, namespace: str = "default") -> PodBuilder:
    return PodBuilder(name, namespace)


def gpu_pod(name: str = "p", **asks: Any) -> PodBuilder:
    """A pod with one container; one card by default."""
    return pod(name).container(**{"gpu": 1, **asks})


# -- nodes


@dataclass(frozen=True)
class NodeBuilder:
    name: str
    cards: tuple[Mapping[str, Any], ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    provides: Mapping[str, Any] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)

    def gpu(
        self,
        uuid: str,
        *,
        memory: int = 81920,
        cores: int = 100,
        slots: int = 10,
        model: str = A100,
        numa: int = 0,
        mode: str = "hami-core",
        healthy: bool = True,
        profiles: Sequence[Mapping[str, Any]] = (),
    ) -> NodeBuilder:
        """One NVIDIA card; its index is its position."""
        card = {
            "id": uuid,
            "index": len(self.cards),
            "count": slots,
            "devmem": memory,
            "devcore": cores,
            "type": model,
            "numa": numa,
            "mode": mode,
            "health": healthy,
            "migProfiles": list(profiles),
        }
        return replace(self, cards=(*self.cards, card))

    def gpus(self, count: int, *, numas: Sequence[int] = (), **card: Any) -> NodeBuilder:
        """Equal cards `<node>-0`, `<node>-1`, ...; `numas` gives each its NUMA node."""
        built = self
        for _ in range(count):
            position = len(built.cards)
            own: dict[str, Any] = {"numa": numas[position]} if numas else {}
            built = built.gpu(f"{self.name}-{position}", **card, **own)
        return built

    def annotate(self, *pairs: tuple[str, str]) -> NodeBuilder:
        return replace(self, annotations={**self.annotations, **dict(pairs)})

    def label(self, key: str, value: str) -> NodeBuilder:
        return replace(self, labels={**self.labels, key: value})

    def cordon(self, *uuids: str) -> NodeBuilder:
        return self.annotate((CORDON, ",".join(uuids)))

    def linked(self, scores: Mapping[tuple[str, str], int]) -> NodeBuilder:
        """Pair scores, the same in both directions."""
        rows: dict[str, dict[str, int]] = {}
        for (one, other), score in scores.items():
            rows.setdefault(one, {})[other] = score
            rows.setdefault(other, {})[one] = score
        return self.annotate((PAIR_SCORES, json.dumps([{"uuid": u, "score": s} for u, s in rows.items()])))

    def capacity(self, **resources: Any) -> NodeBuilder:
        return replace(self, provides={**self.provides, **resources})

    def manifest(self) -> dict[str, Any]:
        registered = {REGISTER: json.dumps(list(self.cards))} if self.cards else {}
        return {
            "metadata": {
                "name": self.name,
                "annotations": {**registered, **self.annotations},
                "labels": dict(self.labels),
            },
            "status": {"capacity": dict(self.provides), "allocatable": dict(self.provides)},
        }

    def api(self) -> Node:
        return decode_object(json.dumps(self.manifest()), Node)


def node(name: str = "n1") -> NodeBuilder:
    return NodeBuilder(name)


def mig_profile(name: str, memory: int, cores: int, slices: int, *starts: int, size: int = 0) -> dict[str, Any]:
    """A MIG profile as nodes register it; a placement is as long as the profile has slices unless `size` is given."""
    places = [{"start": start, "size": size or slices} for start in starts]
    return {"name": name, "memoryMB": memory, "core": cores, "sliceCount": slices, "placements": places}


A100_40GB = (
    mig_profile("1g.5gb", 4864, 14, 1, 0, 1, 2, 3, 4, 5, 6),
    mig_profile("2g.10gb", 9856, 29, 2, 0, 2, 4),
    mig_profile("3g.20gb", 20096, 43, 3, 0, 4, size=4),
    mig_profile("7g.40gb", 40320, 100, 7, 0, size=8),
)
"""the profiles of an A100 with 40 GB"""


# -- clusters


@dataclass(frozen=True)
class Cluster:
    """A ledger and a selector on it, fed with API objects."""

    ledger: Ledger
    selector: Selector

    def add(self, *nodes: NodeBuilder) -> Cluster:
        for one in nodes:
            self.ledger.observe_node(node_facts(one.api(), vendors()))
        return self

    def observe(self, *pods: PodBuilder) -> Cluster:
        """The informer delivers these pods; those that hold nothing are released."""
        for one in pods:
            api = one.api()
            facts = PodReader(vendors()).facts(api)
            if facts is None:
                self.ledger.release(api.metadata.uid)
            else:
                self.ledger.observe_pod(facts)
        return self

    def quota(
        self, name: str = "q", *, namespace: str = "default", hard: Mapping[str, Any] | None = None, **named: Any
    ) -> Cluster:
        """A ResourceQuota; `memory` and `cores` are NVIDIA's, any other limit has its full name."""
        known = {"memory": f"limits.{MEMORY}", "cores": f"limits.{CORES}"}
        limits = {known.get(key, key): value for key, value in {**named, **(hard or {})}.items() if value is not None}
        text = json.dumps({"metadata": {"name": name, "namespace": namespace}, "spec": {"hard": limits}})
        self.ledger.observe_quota(quota_facts(decode_object(text, ResourceQuota), vendors()))
        return self

    def select(self, one: PodBuilder | PodRequest, names: Iterable[str] | None = None) -> Selected | Refused:
        request = one if isinstance(one, PodRequest) else one.request()
        return self.selector.select(request, list(self.ledger.node_names() if names is None else names))

    def chosen(self, one: PodBuilder, names: Iterable[str] | None = None) -> Selected:
        answer = self.select(one, names)
        assert isinstance(answer, Selected), texts(answer)
        return answer

    def refused(self, one: PodBuilder, names: Iterable[str] | None = None) -> dict[str, str]:
        """Why the pod does not fit, by node, as kube-scheduler gets it."""
        answer = self.select(one, names)
        assert isinstance(answer, Refused), answer
        return texts(answer)

    def fit(self, one: PodBuilder, name: str = "n1") -> Placement | Misfit:
        """The plain rule on one node."""
        view = self.ledger.node(name)
        assert view is not None
        request = one.request()
        rooms = self.ledger.rooms(request.namespace, request.vendors)
        return fit_pod(view, request, self.ledger.rules, rooms)

    def place(self, one: PodBuilder, names: Iterable[str] | None = None, *, deadline: float = 60.0) -> Placement:
        """Select and reserve."""
        placement = self.chosen(one, names).placement
        self.ledger.reserve(one.request(), placement, deadline=deadline)
        return placement

    def written(self, one: PodBuilder, placement: Placement) -> dict[str, str]:
        """The annotations of the binding."""
        return binding_annotations(one.request(), placement, vendors=vendors(), now=NOW)

    def start(self, one: PodBuilder, names: Iterable[str] | None = None) -> PodBuilder:
        """Selects, reserves and binds; the API then shows the pod with its annotations."""
        placement = self.place(one, names)
        self.ledger.bind(one.request().uid)
        running = one.annotate(*self.written(one, placement).items()).on(placement.node)
        self.observe(running)
        assert audit(self.ledger) == []
        return running

    def cards(self, name: str = "n1") -> dict[str, tuple[int, int, int]]:
        """Slots, memory and cores in use, by uuid."""
        view = self.ledger.node(name)
        assert view is not None
        return {card.device.uuid: (card.used, card.used_memory, card.used_cores) for card in view.cards}


def cluster(*nodes: NodeBuilder) -> Cluster:
    ledger = Ledger(vendors())
    return Cluster(ledger, Selector(ledger)).add(*nodes)


def texts(refused: Selected | Refused) -> dict[str, str]:
    assert isinstance(refused, Refused), refused
    return {name: misfit.text for name, misfit in refused.misfits.items()}


def uuids(placement: Placement | Misfit, vendor: str = "NVIDIA") -> list[list[str]]:
    """The granted cards, container by container."""
    assert isinstance(placement, Placement), placement.text
    return [[grant.uuid for grant in grants] for grants in placement.grants[vendor]]


def expire(ledger: Ledger, now: float) -> list[str]:
    """Release what is overdue, whoever owns it; the uids."""
    overdue = [holder.uid for holder in ledger.overdue(now)]
    for uid in overdue:
        ledger.release(uid)
    return overdue
