"""The ledger: every node's cards, every holder's grants, every namespace's quota.

It has one writer and is changed one event at a time; an event touches one node. `holders` draws the life of a holder in
it: a pod, a ResourceClaim, or a hold for a pod to come. Grants count in every state, terminating pods included. A
reservation that is never bound expires; while a bind is under way (BOUND) it does not. A nomination (`nominations`) is
a claim on what victims still hold, which counts for all other pods. `replay` builds the same ledger from API objects in
any order. No clock: callers pass `now`. A listener is told every change as the new value of one node, holder,
nomination, quota or host, so it can rebuild the ledger.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from tessera.core.fit.device_rules import UNLIMITED, Rules
from tessera.core.fit.fit import QuotaRooms, fit_pod
from tessera.core.fit.quota import QuotaBook, QuotaFacts, demand
from tessera.core.ledger.holders import (
    GrantState,
    HoldBook,
    Holder,
    HolderTransition,
    IllegalHolderTransition,
    gang_hold_uid,
)
from tessera.core.ledger.holdings import PodFacts, holdings
from tessera.core.ledger.node_entry import NodeEntry
from tessera.core.ledger.nominations import NominationBook, quota_use
from tessera.core.ledger.transaction import Transaction, TransactionError
from tessera.core.model.arrays import CardArrays
from tessera.core.model.devices import NOTHING, Device, NodeFacts
from tessera.core.model.grants import NO_USE, Placement, Use, spans_of
from tessera.core.model.misfits import UNREGISTERED, Misfit
from tessera.core.model.node_info import NodeInfo
from tessera.core.model.requests import HostRequest, PodRequest

Version = tuple[int, int, int]


class LedgerListener(Protocol):
    """Is told each change after it happened. Never raises, and does not change the ledger."""

    def on_node(self, name: str, facts: NodeFacts | None) -> None:
        """A node registered, changed, or is gone (None)."""

    def on_pod(self, facts: PodFacts, state: GrantState | None, *, observed: bool) -> None:
        """What a pod holds, and in which state; None: it held this, and holds nothing any more."""

    def on_nomination(self, facts: PodFacts, victims: frozenset[str] | None) -> None:
        """What a pod claims over these victims; None: its nomination has ended."""

    def on_quota(self, namespace: str, name: str, facts: QuotaFacts | None) -> None:
        """A quota appeared, changed, or is gone (None)."""

    def on_host(self, name: str, free: HostRequest | None) -> None:
        """What a node has free beside its cards; None if that is not known any more."""


class Ledger:
    """Every change keeps `arrays` (the same numbers, laid out for many nodes at once) in step."""

    def __init__(self, rules: Mapping[str, Rules]) -> None:
        self.rules = rules
        self.listener: LedgerListener | None = None
        self.arrays = CardArrays()
        self.quotas = QuotaBook()
        self.nominations = NominationBook()
        self.holds = HoldBook()
        self._nodes: dict[str, NodeEntry] = {}
        self._pods: dict[str, Holder] = {}
        self._reserved: dict[str, Holder] = {}
        self._holds_made = 0
        self._names: tuple[str, ...] | None = None
        """of registered nodes, sorted; None if they changed since"""
        self.card_count = 0
        """of all registered nodes"""
        self.facts_revision = 0
        """changes with every change of a registration"""
        self.transactions: list[Transaction] = []
        """those that are open, the innermost last; changed by themselves only"""
        self._restored: dict[Version, Version] = {}
        """what is written last, and the version that it equals"""

    def begin(self) -> Transaction:
        """Try changes, which are then kept or taken back together. Until then nothing else may change the ledger."""
        transaction = Transaction(self)
        self.transactions.append(transaction)
        return transaction

    # -- what the API shows

    def observe_node(self, facts: NodeFacts) -> None:
        """A node registered, or its registration changed."""
        self._check_settled()
        node = self._nodes.setdefault(facts.name, NodeEntry(self.rules))
        if node.facts == facts:
            return
        if node.facts is None:
            self._names = None
        self.facts_revision += 1
        self.card_count -= len(node.devices)
        node.register(facts)
        self.card_count += len(node.devices)
        for nomination in self.nominations.on_node(facts.name):
            nomination.holdings = holdings(nomination.facts, node.devices, self.rules)
        self._refresh(facts.name, node)
        if self.listener is not None:
            self.listener.on_node(facts.name, facts)

    def forget_node(self, name: str) -> None:
        """The node is gone, or no longer ours. Its pods stay until they are gone themselves."""
        self._check_settled()
        node = self._nodes.get(name)
        if node is None or node.facts is None:
            return
        self.card_count -= len(node.devices)
        self.facts_revision += 1
        node.forget()
        self._names = None
        for nomination in self.nominations.on_node(name):
            nomination.holdings = {}
        self.arrays.remove(name)
        self._tidy(name, node)
        if self.listener is not None:
            self.listener.on_node(name, None)

    def observe_pod(self, facts: PodFacts) -> bool:
        """The API shows the pod on a node: that is the truth, whatever was reserved before. False: nothing new."""
        self._check_settled()
        entry = self._pods.get(facts.uid)
        if entry is not None and entry.facts == facts:
            if not entry.observed:
                entry.state, entry.observed = GrantState.BOUND, True
                self._reserved.pop(facts.uid, None)
                self._tell_pod(entry)
            return False
        self.put_pod(facts, GrantState.BOUND, observed=True)
        return True

    def release(self, uid: str) -> bool:
        """The pod was deleted, ended, or its reservation is given up."""
        self._check_settled()
        before = self._remove(uid)
        self._tell_change(before, None)
        return before is not None

    @property
    def version(self) -> Version:
        """As long as it is the same, so is every decision about the same request."""
        written = self._written
        return self._restored.get(written, written)

    def note_restored(self, version: Version) -> None:
        """What was tried is taken back: everything is as it was with this version."""
        self._restored = {self._written: version}

    @property
    def _written(self) -> Version:
        return self.arrays.epoch, self.arrays.now, self.quotas.revision

    def observe_quota(self, facts: QuotaFacts) -> None:
        self._check_settled()
        if self.quotas.find(facts.namespace, facts.name) == facts:
            return
        self.quotas.set_quota(facts)
        if self.listener is not None:
            self.listener.on_quota(facts.namespace, facts.name, facts)

    def forget_quota(self, namespace: str, name: str) -> None:
        self._check_settled()
        if self.quotas.find(namespace, name) is None:
            return
        self.quotas.drop_quota(namespace, name)
        if self.listener is not None:
            self.listener.on_quota(namespace, name, None)

    def observe_host(self, name: str, free: HostRequest) -> None:
        """What a node has free beside its cards. May come before its cards."""
        self._check_settled()
        if self.arrays.set_host_free(name, cpu=free.cpu, memory=free.memory) and self.listener is not None:
            self.listener.on_host(name, free)

    def forget_host(self, name: str) -> None:
        self._check_settled()
        if self.arrays.forget_host(name) and self.listener is not None:
            self.listener.on_host(name, None)

    def copy_without_nodes(self, nominees: Collection[str] = ()) -> Ledger:
        """A ledger with the same quotas and nominations, but for those of the nominees. `copy_node` adds nodes."""
        copied = Ledger(self.rules)
        copied.quotas = self.quotas.copy()
        for nomination in self.nominations.all():
            if nomination.facts.uid not in nominees:
                copied.nominations.put(replace(nomination))
        return copied

    def copy_node(self, name: str, source: Ledger, *, without: Iterable[str] = ()) -> None:
        """Take a node with its pods over from another ledger of the same vendors, to try placements on it. Quotas are
        not charged for them: take those of the other ledger, too. Pods that are left out give back their part."""
        node = source._nodes.get(name)
        if node is None or node.facts is None:
            return
        facts = replace(node.facts, problem=node.problem)
        cards = {uuid: card.copy() for uuid, card in node.cards.items()}
        pods = {uid: replace(entry) for uid, entry in node.pods.items()}
        self._nodes[name] = copied = NodeEntry(self.rules, facts, node.devices, cards, pods)
        for entry in [pods.pop(uid) for uid in without]:
            self._charge_quota(entry.facts, sign=-1)
            copied.uncharge(entry)
        self.card_count += len(node.devices)
        self._pods.update(pods)
        self._names = None
        host = source.arrays.host_free(name)
        if host is not None:
            self.arrays.set_host_free(name, cpu=host[0], memory=host[1])
        self._refresh(name, copied)

    # -- decisions

    def reserve(
        self, pod: PodRequest, placement: Placement, *, deadline: float, meant_for: Hashable | None = None
    ) -> Holder:
        """Hold a placement until it is bound. Replaces an older reservation or nomination of the same holder.
        `meant_for`: of a hold, who may take it."""
        self._check(HolderTransition.RESERVE, pod.uid)
        request = None if meant_for is None else pod
        facts = facts_of(pod, placement)
        return self._put(Holder(facts, GrantState.RESERVED, deadline, request=request, meant_for=meant_for))

    def put_pod(
        self, facts: PodFacts, state: GrantState, *, observed: bool = False, deadline: float = math.inf
    ) -> None:
        """Set what a pod holds, whatever it had before. A journal's records are applied with it."""
        self._check_settled()
        self._put(Holder(facts, state, deadline, observed))

    def nominate(
        self,
        facts: PodFacts,
        victims: frozenset[str],
        *,
        deadline: float = math.inf,
        request: PodRequest | None = None,
        meant_for: Hashable | None = None,
    ) -> None:
        """Claim a placement over `victims` for a pod that holds nothing. Replaces an older nomination of the same pod.

        The placement must be one of `fit_without(..., victims)`, which relies on the victims of earlier nominations on
        the node as well: `victims` must name those too.
        """
        self._check(HolderTransition.NOMINATE, facts.uid)
        self._put(Holder(facts, GrantState.NOMINATED, deadline, victims=victims, request=request, meant_for=meant_for))

    def withdraw(self, uid: str) -> bool:
        """End a nomination."""
        self._check_settled()
        return uid in self.nominations and self.release(uid)

    def bind(self, uid: str) -> None:
        """The binding is being written: the reservation no longer expires."""
        self._check(HolderTransition.BIND, uid)
        entry = self._reserved.pop(uid, None)
        if entry is not None:
            entry.state = GrantState.BOUND
            self._tell_pod(entry)

    def unbind(self, uid: str, *, deadline: float) -> None:
        """The write is known to have failed: back to a reservation."""
        self._check(HolderTransition.UNBIND, uid)
        entry = self._pods[uid]
        entry.state, entry.deadline = GrantState.RESERVED, deadline
        self._reserved[uid] = entry
        self._tell_pod(entry)

    def give_up(self, uid: str) -> None:
        """Take back a decision that the API does not show."""
        self._check(HolderTransition.GIVE_UP, uid)
        self.release(uid)

    def overdue(self, now: float) -> list[Holder]:
        """Reservations and nominations whose time is over, sorted by uid: their owners end them."""
        found = [entry for entry in self._reserved.values() if entry.deadline <= now]
        found += [entry for entry in self.nominations.all() if entry.deadline <= now]
        return sorted(found, key=lambda entry: entry.uid)

    # -- holds: places for pods to come

    def name_hold(self, gang: str, request: PodRequest) -> PodRequest:
        """The request of a member under the uid of a new hold for its gang (namespace and name)."""
        self._holds_made += 1
        namespace, _, name = gang.partition("/")
        return request.called(uid=gang_hold_uid(gang, self._holds_made), namespace=namespace, name=f"{name} (held)")

    def keep_for(self, held: PodRequest, taker: Hashable) -> Holder:
        """Say who may take a hold; one that was only tried counts as a hold from now on."""
        self._check_settled()
        holder = self.holder(held.uid)
        assert holder is not None  # a hold ends by its owner or its taker only
        if holder.meant_for is not None:
            self.holds.remove(holder)
        holder.request, holder.meant_for = held, taker
        self.holds.add(holder)
        return holder

    def extend(self, uid: str, deadline: float) -> None:
        """Hold a place for longer, or for less long."""
        holder = self.holder(uid)
        if holder is not None:
            holder.deadline = deadline

    def hold(self, facts: PodFacts, *, taker: Hashable, deadline: float, victims: frozenset[str] = frozenset()) -> None:
        """Hold a place that is given as the API would show it: a nomination, if there are victims."""
        if victims:
            self.nominate(facts, victims, deadline=deadline, meant_for=taker)
        else:
            self._check(HolderTransition.RESERVE, facts.uid)
            self._put(Holder(facts, GrantState.RESERVED, deadline, meant_for=taker))

    def holder(self, uid: str) -> Holder | None:
        """In any state, nominated too."""
        return self._pods.get(uid) or self.nominations.get(uid)

    def is_free(self, holder: Holder) -> bool:
        """Whether all victims of a nomination have left."""
        return all(uid not in self._pods for uid in holder.victims)

    # -- reading

    def node(self, name: str, *, nominee: str = "") -> NodeInfo | None:
        """The node and its cards as they are; not to be changed. None if nothing is registered.

        With a `nominee`, as they are for that pod: its own nomination does not count.
        """
        node = self._nodes.get(name)
        if node is None or node.facts is None or (not node.cards and not node.problem):
            return None
        problem = node.problem
        facts = node.facts if problem == node.facts.problem else replace(node.facts, problem=problem)
        own = self.nominations.get(nominee) if nominee else None
        if own is None or own.facts.node != name:
            return NodeInfo(facts, tuple(node.cards.values()))
        return NodeInfo(facts, tuple(node.cards_with(self.nominations.on_node(name, without=nominee)).values()))

    def fit(self, pod: PodRequest, name: str) -> Placement | Misfit:
        """Where the pod goes on one node, by the plain rule, with what it is nominated for."""
        view = self.node(name, nominee=pod.uid)
        if view is None:
            return UNREGISTERED
        return fit_pod(view, pod, self.rules, self.rooms(pod.namespace, pod.vendors, nominee=pod.uid))

    def fit_without(self, pod: PodRequest, name: str, gone: Iterable[str]) -> Placement | Misfit:
        """The same once these pods, and the victims of nominations on the node, have left."""
        with self.begin() as trial:
            for uid in {*gone, *self.nominations.victims_on(name, without=pod.uid)}:
                entry = self._pods.get(uid)
                # Elsewhere only what counts against the same quotas matters.
                if entry is not None and (entry.facts.node == name or self._shares_quota(entry.facts, pod)):
                    trial.remove(uid)
            return self.fit(pod, name)

    def _shares_quota(self, facts: PodFacts, pod: PodRequest) -> bool:
        return self.quotas.limits_anything and facts.namespace == pod.namespace

    def devices(self, name: str) -> Mapping[str, Device]:
        """The node's cards by uuid; empty if nothing is registered."""
        node = self._nodes.get(name)
        return NOTHING if node is None else node.devices

    def pod(self, uid: str) -> Holder | None:
        return self._pods.get(uid)

    def pods(self) -> list[Holder]:
        """All pods, sorted by uid."""
        return [self._pods[uid] for uid in sorted(self._pods)]

    def node_names(self) -> tuple[str, ...]:
        """Nodes that are registered, sorted."""
        if self._names is None:
            self._names = tuple(sorted(name for name, node in self._nodes.items() if node.facts is not None))
        return self._names

    def pods_on(self, name: str) -> list[Holder]:
        node = self._nodes.get(name)
        return [node.pods[uid] for uid in sorted(node.pods)] if node else []

    def rooms(self, namespace: str, vendors: Iterable[str], *, nominee: str = "") -> QuotaRooms:
        """What quotas leave now and later, only for vendors that have a limit here. The nominee's own nomination does
        not count."""
        if not self.quotas.limits_anything:
            return {}
        nominated = {vendor: NO_USE for vendor in vendors if vendor in self.rules}
        named: set[str] = set()
        for nomination in self.nominations.others(nominee):
            victims = [entry.facts for uid in nomination.victims - named if (entry := self._pods.get(uid)) is not None]
            named |= nomination.victims
            for vendor, use in nominated.items():
                more = quota_use([nomination.facts], namespace, vendor).minus(quota_use(victims, namespace, vendor))
                nominated[vendor] = use.plus(more.peak(NO_USE))
        return self._rooms(namespace, nominated)

    def _rooms(self, namespace: str, nominated: Mapping[str, Use]) -> QuotaRooms:
        found = {v: self.quotas.room(namespace, self.rules[v], nominated=use) for v, use in nominated.items()}
        return {vendor: room for vendor, room in found.items() if room != UNLIMITED}

    def state(self) -> dict[str, Any]:
        """Everything that matters, in plain comparable form: two ledgers with equal state decide alike."""
        return {
            "nodes": {
                name: {
                    "facts": node.facts,
                    "problem": node.problem,
                    "cards": {
                        uuid: (card.used, card.used_memory, card.used_cores, sorted(map(_slot_key, card.mig)))
                        for uuid, card in node.cards.items()
                    },
                    "held": sorted(uuid for uuid, card in node.cards.items() if card.held),
                    "tenants": {
                        uuid: sorted(tenant.uid for tenant in card.tenants) for uuid, card in node.cards.items()
                    },
                }
                for name, node in sorted(self._nodes.items())
            },
            "pods": {uid: (entry.state, entry.facts) for uid, entry in sorted(self._pods.items())},
            "nominations": {each.facts.uid: (each.facts, each.victims) for each in self.nominations.all()},
            "quotas": self.quotas.state(),
        }

    # -- inside

    def _check_settled(self) -> None:
        if self.transactions:
            raise TransactionError("a transaction is open: only it may change the ledger")

    def _tell_pod(self, entry: Holder) -> None:
        if self.listener is not None:
            self.listener.on_pod(entry.facts, entry.state, observed=entry.observed)

    def _tell_change(self, before: Holder | None, now: Holder | None) -> None:
        """What a holder was, and what it has become."""
        listener = self.listener
        if before is not None and now is None and before.observed:
            self.arrays.given_back += len(before.holdings)
        if listener is None or now is before:
            return
        is_held = now is not None and now.state is not GrantState.NOMINATED
        if before is not None and before.state is GrantState.NOMINATED:
            listener.on_nomination(before.facts, None)
        elif before is not None and not is_held:
            listener.on_pod(before.facts, None, observed=before.observed)
        if now is not None and is_held:
            self._tell_pod(now)
        elif now is not None:
            listener.on_nomination(now.facts, now.victims)

    def _check(self, transition: HolderTransition, uid: str) -> None:
        self._check_settled()
        entry = self.holder(uid)
        state = None if entry is None else entry.state
        if state not in transition.sources or (entry is not None and entry.observed):
            shown = "absent" if entry is None else "shown by the API" if entry.observed else entry.state.value
            raise IllegalHolderTransition(f"holder {uid} is {shown}: {transition.name} is not possible")

    def _put(self, entry: Holder) -> Holder:
        """Instead of what the holder was before, whatever that is."""
        before = self._remove(entry.facts.uid)
        self._add(entry)
        self._tell_change(before, entry)
        return entry

    def _remove(self, uid: str) -> Holder | None:
        entry = self._pods.pop(uid, None)
        if entry is None:
            return self._remove_nomination(uid) if uid in self.nominations else None
        self._reserved.pop(uid, None)
        if entry.meant_for is not None:
            self.holds.remove(entry)
        self._charge_quota(entry.facts, sign=-1)
        name = entry.facts.node
        node = self._nodes[name]
        del node.pods[uid]
        was_unread = node.unread.pop(uid, None) is not None
        node.uncharge(entry)
        if node.facts is not None:
            self._refresh(name, node, None if was_unread else list(entry.holdings))
        self._tidy(name, node)
        return entry

    def _remove_nomination(self, uid: str) -> Holder:
        entry = self.nominations.take_away(uid)
        if entry.meant_for is not None:
            self.holds.remove(entry)
        node = self._nodes.get(entry.node)
        if node is not None and node.facts is not None:
            node.cards = node.cards_with(self.nominations.on_node(entry.node))
            self._refresh(entry.node, node)
        return entry

    def _add(self, entry: Holder) -> None:
        """A holder that is absent."""
        facts = entry.facts
        if entry.meant_for is not None:
            self.holds.add(entry)
        if entry.state is GrantState.NOMINATED:
            self._add_nomination(entry)
            return
        self._pods[facts.uid] = entry
        if entry.state is GrantState.RESERVED:
            self._reserved[facts.uid] = entry
        self._charge_quota(facts, sign=1)
        node = self._nodes.get(facts.node)
        if node is None:
            node = self._nodes[facts.node] = NodeEntry(self.rules)
        node.pods[facts.uid] = entry
        if facts.problem:
            node.unread[facts.uid] = facts.problem
        if node.facts is not None:
            entry.holdings = holdings(facts, node.devices, self.rules)
            node.charge(entry)
            self._refresh(facts.node, node, None if facts.problem else list(entry.holdings))

    def _add_nomination(self, entry: Holder) -> None:
        self.nominations.put(entry)
        node = self._nodes.get(entry.node)
        if node is not None and node.facts is not None:
            entry.holdings = holdings(entry.facts, node.devices, self.rules)
            self._refresh(entry.node, node)

    def _charge_quota(self, facts: PodFacts, *, sign: int) -> None:
        for vendor, containers in facts.grants.items():
            self.quotas.charge(facts.namespace, vendor, demand(facts.spans, enumerate(containers)), sign=sign)

    def _refresh(self, name: str, node: NodeEntry, touched: list[str] | None = None) -> None:
        """Bring the arrays up to date: the whole node, or only the cards that one pod touched."""
        if self.nominations and (nominations := self.nominations.on_node(name)):
            node.cards = node.cards_with(nominations)
            touched = None
        if touched is not None:
            if touched:  # a node without cards has no column
                self.arrays.update(name, [node.cards[uuid] for uuid in touched])
        elif node.cards or node.problem:
            self.arrays.put(name, list(node.cards.values()), unavailable=bool(node.problem))
        else:
            self.arrays.remove(name)

    def _tidy(self, name: str, node: NodeEntry) -> None:
        if node.facts is None and not node.pods:
            del self._nodes[name]


def _slot_key(slot: Any) -> tuple[str, int, int]:
    return slot.profile, slot.placement.start, slot.placement.size


def facts_of(pod: PodRequest, placement: Placement) -> PodFacts:
    """A placement as the API will show it once it is bound."""
    settings: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = ()
    for key, constraint in pod.constraints:
        if constraint.extra:
            settings += ((key, constraint.extra),)
    return PodFacts(
        uid=pod.uid,
        namespace=pod.namespace,
        name=pod.name,
        node=placement.node,
        spans=spans_of(pod.roles),
        grants=placement.grants,
        settings=settings,
    )


def replay(
    rules: Mapping[str, Rules],
    *,
    nodes: Iterable[NodeFacts] = (),
    pods: Iterable[PodFacts] = (),
    quotas: Iterable[QuotaFacts] = (),
) -> Ledger:
    """A ledger from what the API shows now, in whatever order it is given."""
    ledger = Ledger(rules)
    for node in nodes:
        ledger.observe_node(node)
    for pod in pods:
        ledger.observe_pod(pod)
    for quota in quotas:
        ledger.observe_quota(quota)
    return ledger
