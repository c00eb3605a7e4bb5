"""The rules of a vendor: which cards it accepts, how it chooses among them, and what a grant takes of a card.

Every vendor is a subclass (`tessera.vendors`); the core knows vendors only through this class. The defaults are the
rules that most vendors share (`card_checks`). Rules hold configuration, never state.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from tessera.core.fit import card_checks
from tessera.core.fit.card_rules import Checks, checks_for
from tessera.core.fit.card_rules.amounts import memory_wanted
from tessera.core.model.devices import WHOLE, Device, NodeFacts
from tessera.core.model.grants import Grant, Grants, Use
from tessera.core.model.misfits import Reason
from tessera.core.model.node_info import Card, NodeInfo
from tessera.core.model.requests import WHOLE_CARD_CORES, Constraint, PodRequest, Request, names_word
from tessera.core.policies import device_policy
from tessera.core.policies.base import DevicePolicy


class QuotaRoom(NamedTuple):
    """What quotas leave for a pod, of one vendor; None = no limit."""

    memory: int | None = None
    cores: int | None = None

    def allows(self, memory: int, cores: int) -> bool:
        return (self.memory is None or memory <= self.memory) and (self.cores is None or cores <= self.cores)

    def less(self, memory: int, cores: int) -> QuotaRoom:
        return QuotaRoom(
            None if self.memory is None else self.memory - memory,
            None if self.cores is None else self.cores - cores,
        )


UNLIMITED = QuotaRoom()


@dataclass(slots=True)
class Ask:
    """One container's request of one vendor on one node: all that a vendor may look at."""

    request: Request
    pod: PodRequest
    constraint: Constraint
    node: NodeFacts
    cards: Sequence[Card]
    """this vendor's cards of the node, best first by the pod's device policy"""
    earlier: Set[str] = frozenset()
    """uuids of this vendor's cards that earlier containers of the pod got"""
    room: QuotaRoom = UNLIMITED
    """what quotas leave after the earlier containers"""
    container: int = 0
    is_apart: bool = False
    """a card gives one instance at most, because a claim wants different cards"""
    is_limited: bool = field(init=False)
    """by quotas"""
    policy: DevicePolicy = field(init=False)
    """the pod's device policy"""
    checks: Checks = field(init=False)
    """of each card"""

    def __post_init__(self) -> None:
        self.is_limited = self.room != UNLIMITED
        self.policy = device_policy(self.pod.device_policy)
        self.checks = checks_for(self)


class Rules:
    """What a vendor decides. Subclasses set `key` and override what differs from the shared rules."""

    key: str = ""
    """key of the vendor: in requests and in pod annotations"""
    request_type: type[Request] = Request
    """of this vendor's requests; a subclass has further fields with plain values"""
    quota_memory: str = ""
    """resource whose quota limits memory; empty = none"""
    quota_cores: str = ""
    quota_factor: int = 1
    """MiB per unit of the memory quota"""
    arrays_exact: bool = False
    """True if `fit` is the shared rule without `custom_rule`: then many nodes can be judged at once"""
    scores_nodes: bool = False
    """True if `node_score` is not always 0"""
    core_masks: bool = False
    """True if cores are a bit mask of core ids instead of an amount"""
    mode_annotation: str = ""
    """by which a pod asks for cards in MIG mode; empty = the vendor has none"""
    honours_cordon: bool = False
    shares_whole_cards: bool = False
    """True if other containers may share a card of which one container has all cores"""

    def accepts_model(self, device: Device, constraint: Constraint) -> bool:
        """Type and mode rules. Depends on the device's model and mode only."""
        if constraint.use_models or constraint.avoid_models:
            model = device.model.lower()
            if constraint.use_models and not any(word in model for word in constraint.use_models):
                return False
            if any(word in model for word in constraint.avoid_models):
                return False
        return constraint.mode is None or not device.mode or names_word(constraint.mode, device.mode)

    def accepts_uuid(self, uuid: str, constraint: Constraint) -> bool:
        if constraint.use_uuids and uuid not in constraint.use_uuids:
            return False
        return uuid not in constraint.avoid_uuids

    def least_cards(self, request: Request) -> int:
        """Cards that a node must have, whatever their state, for the request to fit."""
        return request.count

    def custom_rule(self, card: Card, ask: Ask) -> Reason | None:
        """The last check on a card that passed all shared ones; not called for MIG cards."""
        return None

    fit = card_checks.fit
    """choose `ask.request.count` cards, or say card by card why not"""

    def grant(self, card: Card, ask: Ask) -> Grant:
        """The grant that a chosen card (not a MIG one) turns into."""
        request, device = ask.request, card.device
        if request.is_admin:
            return Grant(uuid=device.uuid, vendor=self.key, memory=0, cores=0, index=device.index, slots=0)
        is_whole = request.accepts is not None and device.mode == WHOLE
        return Grant(
            uuid=device.uuid,
            vendor=self.key,
            memory=memory_wanted(request, device),
            cores=min(device.cores if is_whole else request.cores, WHOLE_CARD_CORES),
            index=device.index,
        )

    def charge(self, device: Device, grant: Grant) -> Use:
        """What a grant takes of its card; must follow from the annotation alone, since replay has nothing else."""
        whole = grant.mig is None and grant.cores >= min(WHOLE_CARD_CORES, device.cores)
        return Use(slots=grant.slots, memory=grant.memory, cores=device.cores if whole else grant.cores)

    def node_score(self, node: NodeInfo, pod: PodRequest, grants: tuple[Grants, ...]) -> float:
        """This vendor's part of the node's score for a found placement; `node` is as it was before placing."""
        return 0.0
