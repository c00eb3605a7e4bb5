"""What a record of a journal is about."""

from __future__ import annotations

from typing import NamedTuple

from tessera.wire.journal import (
    Bind,
    Denied,
    Evicted,
    Gang,
    HostRecord,
    NodeRecord,
    NominationRecord,
    Placed,
    PodRecord,
    QuotaRecord,
    Record,
    Refused,
    Released,
    Unfinished,
    Woken,
)


class Subject(NamedTuple):
    """A pod, a node or both; empty where the record does not say."""

    namespace: str = ""
    name: str = ""
    """of the pod"""
    uid: str = ""
    node: str = ""

    @property
    def pod(self) -> str:
        return f"{self.namespace}/{self.name}" if self.name else ""


def subject_of(record: Record) -> Subject:
    """Of a gang or a quota, its namespace alone: it is no pod."""
    match record:
        case Placed() | Bind() | Released() | Evicted():
            return Subject(record.pod.namespace, record.pod.name, record.pod.uid, record.node)
        case Refused() | Unfinished() | Woken():
            return Subject(record.pod.namespace, record.pod.name, record.pod.uid)
        case PodRecord() | NominationRecord():
            held = record.state
            return (
                Subject(uid=record.uid) if held is None else Subject(held.namespace, held.name, record.uid, held.node)
            )
        case Denied():
            return Subject(record.namespace, record.name)
        case NodeRecord() | HostRecord():
            return Subject(node=record.name)
        case QuotaRecord() | Gang():
            return Subject(record.namespace)
    return Subject()
