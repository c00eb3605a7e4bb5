"""MetaX: whole GPUs (key `Metax-GPU`), and slices of cards under one quality-of-service policy (key `Metax-SGPU`).

Whole GPUs follow from the node's capacity. For sGPU, MetaX's plugin registers cards in a JSON array of its own
(`metax-tech.com/node-gpu-devices`), which is accepted or refused as a whole. It also writes what is still available;
that is ignored, because the ledger knows it sooner. All pods on an sGPU card at one time have the same policy, and pods
with an app class (online, offline) never share with pods without one. Both rules, and the choice of the best card, look
only at the pods that hold a card now (`Card.tenants`) and at the link zones that the node registered, so there is no
state to expire.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta, Struct

from tessera.core.fit import card_checks
from tessera.core.fit.card_checks import Fitting, Offer
from tessera.core.fit.device_rules import Ask
from tessera.core.model.devices import Device
from tessera.core.model.grants import Grant, Grants
from tessera.core.model.misfits import CardMisfit, Misfit, Reason
from tessera.core.model.node_info import Card, NodeInfo
from tessera.core.model.requests import WHOLE_CARD_CORES, Constraint, PodRequest, Request
from tessera.core.policies import node_policy
from tessera.vendors.annotation_values import Choice, switch
from tessera.vendors.base import (
    Amount,
    AnnotationKeys,
    Bound,
    Family,
    NodeProblem,
    ResourceNames,
    Section,
    Switches,
    Vendor,
)
from tessera.vendors.drafts import BadRequest, ContainerDraft, Denied, PodDraft, Resources
from tessera.vendors.parts.capacity import numbered_cards
from tessera.vendors.parts.card_choice import judge_all, refuse_unpaid
from tessera.vendors.parts.card_shares import whole_cards
from tessera.wire.golang import INT32_MAX, decode_array, encode, parse_bool
from tessera.wire.keys import NODE_LOCK
from tessera.wire.objects import Node
from tessera.wire.quantity import NotAQuantity, Whole, read
from tessera.wire.registration import check_ids

CARD_MEMORY = 65536
"""MiB charged for a whole GPU; the node does not report it"""

LOSSES = "metax-tech.com/gpu.topology.losses"
SCORES = "metax-tech.com/gpu.topology.scores"
BEST_SCORE = 2000
"""the score of a node whose topology loses nothing"""
WORST_LOSS = 2**31 - 1
"""larger values are not topology losses"""


class MetaxGpu(Vendor):
    key = "Metax-GPU"
    scores_nodes = True
    keys = AnnotationKeys(
        to_allocate="hami.io/metax-gpu-devices-to-allocate",
        allocated="hami.io/metax-gpu-devices-allocated",
        traits=(LOSSES, SCORES),
    )

    def request(self, resources: Resources) -> Request | BadRequest | None:
        return whole_cards(resources, self.names.count, vendor=self.key, cores=WHOLE_CARD_CORES)

    def devices(self, node: Node) -> tuple[Device, ...] | NodeProblem:
        return numbered_cards(self, node, stem="metax", memory=CARD_MEMORY)

    def fit(self, ask: Ask) -> Grants | Misfit:
        """Prefer cards of the pod's earlier containers: an app container reuses its init container's card.

        HAMi up to v2.10 refuses all other cards here, so a pod with two GPU containers never fits.
        """
        before = ask.earlier
        if before:
            ask = replace(ask, cards=sorted(ask.cards, key=lambda card: card.device.uuid not in before))
        return card_checks.fit(self, ask)

    def node_score(self, node: NodeInfo, pod: PodRequest, grants: tuple[Grants, ...]) -> float:
        key = SCORES if node_policy(pod.node_policy).prefers_idle_nodes else LOSSES
        text = node.facts.traits.get(key)
        if text is None:
            return 0.0
        cards = {grant.uuid for container in grants for grant in container}
        return float(BEST_SCORE - _loss(text, len(cards)))


def _loss(text: str, count: int) -> int:
    """The topology loss of taking `count` cards; 0 if the value cannot be parsed."""
    try:
        losses = msgspec.json.decode(text, type=dict[str, int])
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return 0
    loss = losses.get(str(count), 0)
    return loss if abs(loss) <= WORST_LOSS else 0


QOS_POLICY = "QosPolicy"
MODEL = "Model"
LINK_ZONE = "LinkZone"
"""keys of `Device.custom`"""

QOS = "metax-tech.com/sgpu-qos-policy"
APP_CLASS = "metax-tech.com/sgpu-app-class"

ONLINE, OFFLINE = APP_CLASSES = ("online", "offline")
BEST_EFFORT = "best-effort"
POLICIES = (BEST_EFFORT, "fixed-share", "burst-share")

LINKED_PAIR = 10
"""score of two cards in one link zone"""

TOPOLOGY_AWARE = "metax-tech.com/sgpu-topology-aware"

MIB_PER_GIB = 1024
BYTES_PER_MIB = 2**20
NODE_WEIGHT = 10_000
"""raises these scores above the node's usage score, which is at most 30"""
CORE_REASONS = frozenset({Reason.CARD_INSUFFICIENT_CORES, Reason.CARD_CORES_EXHAUSTED})
"""reasons that keep no online pod off a card: it takes no share of the cores"""


class Registered(Struct, frozen=True, kw_only=True, rename="camel"):
    """One card on the wire. Missing fields are zero, so a card without `health` is unhealthy."""

    uuid: str = ""
    model: str = ""
    total_dev_count: Amount = 0
    total_compute: Amount = 0
    total_v_ram: Amount = 0
    """MiB"""
    numa: Annotated[int, Meta(ge=-1, le=INT32_MAX)] = 0
    healthy: bool = False
    qos_policy: str = ""
    link_zone: Annotated[int, Meta(ge=-INT32_MAX, le=INT32_MAX)] = 0
    """cards in one zone (above 0) are linked directly"""


def read_cards(text: str, *, vendor: str) -> tuple[Device, ...]:
    """The cards in the order of the annotation, which is also their index."""
    cards = decode_array(text, Registered, what="the registration", member="registered card")
    devices = tuple(_device(card, index=index, vendor=vendor) for index, card in enumerate(cards))
    check_ids(devices)
    return devices


def _device(card: Registered, *, index: int, vendor: str) -> Device:
    return Device(
        uuid=card.uuid,
        vendor=vendor,
        index=index,
        slots=card.total_dev_count,
        memory=card.total_v_ram,
        cores=card.total_compute,
        model=vendor,
        numa=max(card.numa, 0),
        healthy=card.healthy,
        custom={QOS_POLICY: card.qos_policy, MODEL: card.model, LINK_ZONE: card.link_zone},
    )


class Company(NamedTuple):
    """How many pods of each app class hold a card."""

    online: int
    offline: int

    @property
    def only_offline(self) -> bool:
        return self.offline > 0 and self.online == 0


def company(card: Card) -> Company:
    classes = Counter(tenant.setting(APP_CLASS) for tenant in card.tenants)
    return Company(online=classes[ONLINE], offline=classes[OFFLINE])


def class_allows(constraint: Constraint, card: Card) -> bool:
    """Pods with an app class share only with each other; an offline pod beside an online one would be suspended."""
    app_class = constraint.setting(APP_CLASS)
    # Unknown users of the card count as pods without a class.
    kinds = {tenant.setting(APP_CLASS) in APP_CLASSES for tenant in card.tenants} or {False}
    if kinds != {app_class in APP_CLASSES}:
        return False
    return not (app_class == OFFLINE and company(card).online)


def qos_allows(constraint: Constraint, card: Card) -> bool:
    """The policy of the pods that hold the card decides, or else the registered one."""
    asked = constraint.setting(QOS) or BEST_EFFORT
    held = {t.setting(QOS) for t in card.tenants if t.setting(APP_CLASS) != ONLINE} - {None, ""}
    return held <= {asked} if held else card.device.custom.get(QOS_POLICY) in (None, "", asked)


def quietest_first(fitting: Fitting) -> Fitting:
    """For an online pod: prefer cards with few online pods, and unused cards over cards with offline pods only."""
    return sorted(fitting, key=lambda pair: (company(pair[0]).only_offline, company(pair[0])))


def quietness(card: Card) -> int:
    """How good a card is for an online pod: 0 or less."""
    present = company(card)
    if present.only_offline:
        return -100 * present.offline
    return -20 * present.online - 2 * present.offline


def linked_first(fitting: Fitting, count: int) -> Fitting:
    """For whole cards: the smallest link zone that holds all, otherwise small zones first and unlinked cards last."""
    sizes = Counter(_zone(card.device) for card, _ in fitting)

    def rank(pair: tuple[Card, Grant]) -> tuple[bool, bool, int, int]:
        zone = _zone(pair[0].device)
        return zone == 0, sizes[zone] < count, sizes[zone], zone

    return sorted(fitting, key=rank)


def linkage(cards: Iterable[Card], chosen: set[str]) -> int:
    """Links inside the chosen set count tenfold, links to unused cards that it breaks count against it."""
    unused = [card.device for card in cards if card.used == 0]
    taken = _pairs(device for device in unused if device.uuid in chosen)
    rest = _pairs(device for device in unused if device.uuid not in chosen)
    return 10 * taken - (_pairs(unused) - taken - rest)


def _zone(device: Device) -> int:
    """0 = not linked."""
    return max(0, int(device.custom.get(LINK_ZONE, 0)))


def _pairs(devices: Iterable[Device]) -> int:
    sizes = Counter(_zone(device) for device in devices)
    return sum(LINKED_PAIR * size * (size - 1) // 2 for zone, size in sizes.items() if zone)


class MetaxSgpu(Vendor):
    key = "Metax-SGPU"
    scores_nodes = True
    shares_whole_cards = True
    quota_factor = MIB_PER_GIB
    default_cores = WHOLE_CARD_CORES
    limits_only = True
    keys = AnnotationKeys(
        register="metax-tech.com/node-gpu-devices",
        to_allocate="hami.io/metax-sgpu-devices-to-allocate",
        allocated="hami.io/metax-sgpu-devices-allocated",
        use_uuids=("metax-tech.com/use-gpuuuid",),
        avoid_uuids=("metax-tech.com/nouse-gpuuuid",),
        settings=(APP_CLASS, QOS, TOPOLOGY_AWARE),
        lock=NODE_LOCK,
    )

    closed = (
        Choice(key=QOS, words=POLICIES, is_required=True),
        Choice(key=APP_CLASS, words=APP_CLASSES, is_required=True),
        switch(TOPOLOGY_AWARE),
    )

    def __init__(self, names: ResourceNames, *, topology_aware: bool = False) -> None:
        super().__init__(names)
        self.topology_aware = topology_aware

    def mutate(self, container: ContainerDraft, pod: PodDraft) -> bool | Denied:
        count = container.amount(self.names.count, limits_only=True)
        if not count or isinstance(count, BadRequest):
            return count is not None
        app_class = pod.annotations.get(APP_CLASS)
        if app_class is not None:
            if app_class not in APP_CLASSES:
                return Denied(f"{APP_CLASS} must be set one of [{', '.join(APP_CLASSES)}]")
            if count != 1:
                return Denied("app-class pod must request single device")
        if app_class == ONLINE:
            return True
        if pod.annotations.setdefault(QOS, BEST_EFFORT) not in POLICIES:
            return Denied(f"{QOS} must be set one of [{', '.join(POLICIES)}]")
        if (
            container.text(self.names.memory, limits_only=True) is not None
            and container.text(self.names.cores, limits_only=True) is None
        ):
            pod.warn(f"a container without {self.names.cores} has its card alone, whatever memory it asks for")
        return True

    def choices(self, annotations: Mapping[str, str]) -> tuple[Choice, ...]:
        """The policy of an online pod is not read."""
        return self.closed[1:] if annotations.get(APP_CLASS) == ONLINE else self.closed

    def memory_asked(self, resources: Resources) -> int | BadRequest:
        """A plain number is in GiB, a number with a unit in bytes."""
        text = resources.text(self.names.memory)
        if text is None:
            return 0
        advice = "write a whole number of GiB such as 4, or an amount with a unit such as 4096Mi"
        match read(text):
            case Whole(value) if value >= 0:
                plain = not any(character.isalpha() for character in str(text))
                memory = value * MIB_PER_GIB if plain else value // BYTES_PER_MIB
                # Less than 1 MiB must not become 0, which would mean the whole card.
                if memory <= INT32_MAX and (memory > 0 or value == 0):
                    return memory
            case NotAQuantity(reason):
                advice = f"{reason}; {advice}"
        return BadRequest(self.names.memory, str(text), advice)

    def decode_cards(self, text: str, node: Node) -> tuple[Device, ...]:
        return read_cards(text, vendor=self.key)

    def fit(self, ask: Ask) -> Grants | Misfit:
        online = ask.constraint.setting(APP_CLASS) == ONLINE
        if online:
            ask = replace(ask, request=replace(ask.request, cores=0))
        own = ask.earlier

        def judge(card: Card) -> Offer:
            grant = self.grant(card, ask)
            refusal = self._refuse(ask, card, online=online, own=card.device.uuid in own)
            return refusal or refuse_unpaid(ask, card, grant) or grant

        fitting, refused = judge_all(ask, judge)
        return card_checks.choose(self, ask, self._best_first(ask, fitting), refused)

    def _refuse(self, ask: Ask, card: Card, *, online: bool, own: bool) -> CardMisfit | None:
        """The checks of one card; `own` cards are shared with earlier containers of the same pod."""
        uuid = card.device.uuid
        if not card.device.healthy or card.held:
            return CardMisfit(uuid, Reason.CARD_UNHEALTHY)
        if card.used > 0 and not own:
            if not class_allows(ask.constraint, card):
                return CardMisfit(uuid, Reason.APP_CLASS_MISMATCH)
            if not online and ask.request.cores < WHOLE_CARD_CORES and not qos_allows(ask.constraint, card):
                return CardMisfit(uuid, Reason.QOS_MISMATCH)
        if not self.accepts_uuid(uuid, ask.constraint):
            return CardMisfit(uuid, Reason.CARD_UUID_MISMATCH)
        late = card_checks.refuse_sharing(self, ask, card) or card_checks.refuse_capacity(self, ask, card)
        return None if online and late is not None and late.reason in CORE_REASONS else late

    def _best_first(self, ask: Ask, fitting: Fitting) -> Fitting:
        """Apply the vendor's preference before the policy's order."""
        count = ask.request.count
        app_class = ask.constraint.setting(APP_CLASS)
        if len(fitting) <= count:
            return fitting
        if app_class == ONLINE:
            return quietest_first(fitting)
        if app_class is None and ask.request.cores >= WHOLE_CARD_CORES:
            return linked_first(fitting, count)
        return fitting

    def node_score(self, node: NodeInfo, pod: PodRequest, grants: tuple[Grants, ...]) -> float:
        weight = -NODE_WEIGHT if node_policy(pod.node_policy).prefers_idle_nodes else NODE_WEIGHT
        constraint = pod.constraint(self.key)
        cards = node.of_vendor(self.key)
        if constraint.setting(APP_CLASS) == ONLINE:
            chosen = {grant.uuid for container in grants for grant in container}
            return float(weight * sum(quietness(card) for card in cards if card.device.uuid in chosen))
        alone = {grant.uuid for container in grants for grant in container if grant.cores >= WHOLE_CARD_CORES}
        if alone and self._topology_aware(constraint):
            return float(weight * linkage(cards, alone))
        return 0.0

    def _topology_aware(self, constraint: Constraint) -> bool:
        wish = parse_bool(constraint.setting(TOPOLOGY_AWARE) or "")
        return self.topology_aware if wish is None else wish

    def annotations(self, bound: Bound) -> dict[str, str]:
        given = [[_given(grant) for grant in container] for container in bound.grants]
        return {
            **super().annotations(bound),
            "metax-tech.com/gpu-devices-allocated": encode(given),
            "metax-tech.com/predicate-time": bound.nanoseconds,
        }


def _given(grant: Grant) -> dict[str, str | int]:
    """One slice as MetaX's own plugin reads it."""
    return {"uuid": grant.uuid, "compute": grant.cores, "vRam": grant.memory}


class MetaxSection(Section, frozen=True, kw_only=True):
    resource_count_name: str = ""
    resource_v_count_name: str = ""
    resource_v_memory_name: str = ""
    resource_v_core_name: str = ""
    sgpu_topology_aware: bool = False


CHART = MetaxSection(
    resource_count_name="metax-tech.com/gpu",
    resource_v_count_name="metax-tech.com/sgpu",
    resource_v_memory_name="metax-tech.com/vmemory",
    resource_v_core_name="metax-tech.com/vcore",
)


def build(section: MetaxSection, switches: Switches) -> list[Vendor]:
    slices = ResourceNames(
        count=section.resource_v_count_name,
        memory=section.resource_v_memory_name,
        cores=section.resource_v_core_name,
    )
    return [MetaxGpu(section.names), MetaxSgpu(slices, topology_aware=section.sgpu_topology_aware)]


FAMILY = Family(title="MetaX", section="metax", chart=CHART, build=build)
