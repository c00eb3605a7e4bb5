"""MetaX sGPU: slices of a card that share it under one quality-of-service policy.

All pods on a card at one time have the same policy, and pods with an app class (online, offline) never share with pods
without one (`sharing_rules`). Both rules look only at the pods that hold the card now, so there is no state to expire.
Whole GPUs are in `gpu`, the registration's format in `registration`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tessera.core import card_checks
from tessera.core.card_checks import Fitting, Offer
from tessera.core.device_rules import Ask
from tessera.core.devices import Device
from tessera.core.grants import Grant, Grants
from tessera.core.misfits import CardMisfit, Misfit, Reason
from tessera.core.node_info import Card, NodeInfo
from tessera.core.policies import node_policy
from tessera.core.requests import WHOLE_CARD_CORES, Constraint, PodRequest
from tessera.vendors.annotation_values import Choice, switch
from tessera.vendors.base import AnnotationKeys, Bound, ResourceNames, Vendor
from tessera.vendors.drafts import BadRequest, ContainerDraft, Denied, PodDraft, Resources
from tessera.vendors.metax.registration import read_cards
from tessera.vendors.metax.sharing_rules import (
    APP_CLASS,
    APP_CLASSES,
    BEST_EFFORT,
    ONLINE,
    POLICIES,
    QOS,
    class_allows,
    linkage,
    linked_first,
    qos_allows,
    quietest_first,
    quietness,
)
from tessera.vendors.parts.card_choice import judge_all, refuse_unpaid
from tessera.wire.gobool import parse_bool
from tessera.wire.gojson import encode
from tessera.wire.integers import INT32_MAX
from tessera.wire.keys import NODE_LOCK
from tessera.wire.objects import Node
from tessera.wire.quantity import NotAQuantity, Whole, read

TOPOLOGY_AWARE = "metax-tech.com/sgpu-topology-aware"

MIB_PER_GIB = 1024
BYTES_PER_MIB = 2**20
NODE_WEIGHT = 10_000
"""raises these scores above the node's usage score, which is at most 30"""
CORE_REASONS = frozenset({Reason.CARD_INSUFFICIENT_CORES, Reason.CARD_CORES_EXHAUSTED})
"""reasons that keep no online pod off a card: it takes no share of the cores"""


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
