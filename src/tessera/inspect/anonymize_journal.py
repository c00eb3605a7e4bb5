"""Replaces names in the records of a journal with those that `anonymize` puts into a snapshot.

New names sort like the old ones and card ids change only where they contain a node's name, so an anonymous journal
replays to the same decisions. The names have to be known before the first record is changed, so a journal is read
twice: `find_names`, then `JournalAnonymizer`. Messages are free text and are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from tessera.core.requests import Role
from tessera.inspect.anonymize import FoundNames, NewNames, TextReplacer, replace_texts
from tessera.inspect.journal_filter import subject_of
from tessera.wire.journal import (
    Attributes,
    Bind,
    Constraint,
    Container,
    Denied,
    Device,
    Evicted,
    Gang,
    Grant,
    Grants,
    HostRecord,
    NodeRecord,
    NodeState,
    NominationRecord,
    PodAsk,
    PodRecord,
    PodRef,
    PodState,
    Published,
    QuotaRecord,
    Record,
    Refused,
    Start,
)

LEFT_OUT = "(left out)"
"""instead of a text that must not be empty, because it says that something is wrong"""


def find_names(record: Record, found: FoundNames) -> None:
    """Adds all names of the record."""
    subject = subject_of(record)
    found.namespaces.add(subject.namespace)
    found.pods.add(subject.name)
    found.uids.add(subject.uid)
    found.nodes.add(subject.node)
    match record:
        case Start():
            found.processes.add(record.identity)
        case NominationRecord():
            found.uids.update(record.victims)
        case QuotaRecord():
            found.quotas.add(record.name)
        case Gang():
            found.pods.add(record.name)


class JournalAnonymizer:
    """Replaces the names of records whose names were all found."""

    def __init__(self, names: NewNames) -> None:
        self._names = names
        self._text = TextReplacer(names).text

    def anonymize(self, record: Record) -> Record:
        names = self._names
        match record:
            case Start():
                # Whole values only: a node called gpu must not change the name of a resource.
                sections = replace_texts(record.device_sections, lambda text: names.nodes.get(text, text))
                return replace(record, identity=names.processes[record.identity], device_sections=sections)
            case NodeRecord():
                state = None if record.state is None else self._node(record.state)
                return replace(record, name=names.nodes[record.name], state=state)
            case HostRecord():
                return replace(record, name=names.nodes[record.name])
            case PodRecord():
                held = None if record.state is None else self._holder(record.state)
                return replace(record, uid=names.uids[record.uid], state=held)
            case NominationRecord():
                claimed = None if record.state is None else self._holder(record.state)
                # New names sort like the old ones, so the victims stay sorted.
                victims = tuple(names.uids[uid] for uid in record.victims)
                return replace(record, uid=names.uids[record.uid], state=claimed, victims=victims)
            case QuotaRecord():
                return replace(record, namespace=names.namespaces[record.namespace], name=names.quotas[record.name])
            case Denied():
                name = names.pods[record.name]
                return replace(record, namespace=names.namespaces[record.namespace], name=name, message=LEFT_OUT)
            case Gang():
                namespace = names.namespaces[record.namespace]
                return replace(record, namespace=namespace, name=names.pods[record.name], text=LEFT_OUT)
        return self._about_pod(record)

    def _about_pod(self, record: Record) -> Record:
        change: dict[str, Callable[[Any], object]] = {
            "pod": self._pod,
            "node": self._names.nodes.__getitem__,
            "ask": self._ask,
            "grants": self._grants,
        }
        changed = {name: change[name](getattr(record, name)) for name in change if hasattr(record, name)}
        match record:
            case Refused(of_gang=True):
                changed["reasons"] = {LEFT_OUT: sum(record.reasons.values())}
            case Bind():
                changed["error"] = LEFT_OUT if record.error else ""
            case Evicted():
                changed["message"] = ""
        return replace(record, **changed)

    def _pod(self, pod: PodRef) -> PodRef:
        names = self._names
        return PodRef(names.namespaces[pod.namespace], names.pods[pod.name], names.uids[pod.uid])

    def _node(self, state: NodeState) -> NodeState:
        return replace(
            state,
            devices=tuple(map(self._device, state.devices)),
            cordoned=self._texts(state.cordoned),
            traits=self._values(state.traits),
            problem=LEFT_OUT if state.problem else "",
        )

    def _device(self, device: Device) -> Device:
        links = {self._text(uuid): score for uuid, score in device.links.items()}
        return replace(
            device,
            uuid=self._text(device.uuid),
            links=links,
            custom=replace_texts(device.custom, self._text),
            published=tuple(map(self._published, device.published)),
        )

    def _published(self, found: Published) -> Published:
        return replace(found, common=self._attributes(found.common), own=self._attributes(found.own))

    def _attributes(self, found: Attributes) -> Attributes:
        return tuple((name, kind, replace_texts(value, self._text)) for name, kind, value in found)

    def _holder(self, state: PodState) -> PodState:
        names = self._names
        return replace(
            state,
            namespace=names.namespaces[state.namespace],
            name=names.pods[state.name],
            node=names.nodes[state.node],
            grants=self._grants(state.grants),
            stray_mig=tuple((self._text(uuid), slot) for uuid, slot in state.stray_mig),
            settings={vendor: self._values(settings) for vendor, settings in state.settings.items()},
            problem=LEFT_OUT if state.problem else "",
        )

    def _grants(self, grants: Grants) -> Grants:
        return {
            vendor: tuple(tuple(map(self._grant, container)) for container in containers)
            for vendor, containers in grants.items()
        }

    def _grant(self, grant: Grant) -> Grant:
        return replace(grant, uuid=self._text(grant.uuid), custom=self._values(grant.custom))

    def _ask(self, ask: PodAsk) -> PodAsk:
        constraints = {vendor: self._constraint(one) for vendor, one in ask.constraints.items()}
        containers = tuple(self._container(place, one) for place, one in enumerate(ask.containers))
        return replace(ask, constraints=constraints, containers=containers)

    def _container(self, place: int, container: Container) -> Container:
        """A request of a claim has the claim's name, which is often the pod's and more."""
        if container.role is not Role.CLAIM:
            return container
        requests = tuple(
            asked if asked.accepts is None else replace(asked, accepts=self._constraint(asked.accepts))
            for asked in container.requests
        )
        return replace(container, name=f"claim-{place}", requests=requests)

    def _constraint(self, constraint: Constraint) -> Constraint:
        return replace(
            constraint,
            use_uuids=self._texts(constraint.use_uuids),
            avoid_uuids=self._texts(constraint.avoid_uuids),
            extra=self._values(constraint.extra),
            selectors=self._texts(constraint.selectors),
            instances=tuple((self._text(uuid), slot) for uuid, slot in constraint.instances),
        )

    def _texts(self, texts: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(self._text, texts))

    def _values(self, table: Mapping[str, str]) -> dict[str, str]:
        return {key: self._text(value) for key, value in table.items()}
