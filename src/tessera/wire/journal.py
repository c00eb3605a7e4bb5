"""The decision journal: JSON lines that record every change of the ledger and every decision, in their order.

A decision is a function of the ledger, the request and the set of candidates, so the records are all that a replay
needs. A file, and each reading of a running scheduler, begins with `Start`, the state at that moment and `SnapshotEnd`,
so it can be replayed alone. A decision stands before the change of the ledger that it causes.
"""

from __future__ import annotations

from typing import Any, Literal, Self

import msgspec

from tessera.core.fit.quota import QuotaFacts
from tessera.core.ledger.holders import GrantState
from tessera.core.ledger.holdings import PodFacts
from tessera.core.model import grants as core_grants
from tessera.core.model.demand_forecast import DemandForecast
from tessera.core.model.devices import NodeFacts
from tessera.core.model.requests import HostRequest
from tessera.wire.errors import WireError
from tessera.wire.journal_values import (
    Forecast,
    Grants,
    Host,
    NodeState,
    PodAsk,
    PodRef,
    PodState,
    Value,
    grants_value,
)

FORMAT = 2
"""of the records; a reader refuses a larger number, because a decision may depend on something that it does not know"""


class CandidateMask(Value, frozen=True):
    """The nodes that a decision could choose from, relative to the nodes that the ledger's arrays had then.

    A list of candidates is thousands of names, in every decision. Candidates without registered devices are only
    counted: none of them is ever chosen, whatever its name.
    """

    count: int = 0
    """candidates in all"""
    mask: bytes | None = None
    """one bit per node of `CardArrays.order`, free columns left out, the first node in the highest bit of the first
    byte; None = all nodes"""
    others: int = 0
    """candidates that are not among these nodes"""
    searched: bool = False
    """the list was only searched for the best nodes until one of them was found: `mask` leaves out those that it does
    not name, and has all other nodes. So the decision comes out the same; `count` is that of a list of this length"""


# -- records


class _Record(
    msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", tag_field="kind", kw_only=True, gc=False
):
    """Base of the records."""

    time: float
    """seconds since the epoch"""
    sequence: int
    """grows by one per record of a process; the state of a snapshot has the number of the change that it comes from"""


class Start(_Record, frozen=True, kw_only=True, tag="start"):
    """The process and the configuration that the vendors are built from; again when that is reloaded."""

    format: int
    """`FORMAT`"""
    version: str
    """of Tessera"""
    identity: str
    """of the process: sequence numbers of different processes have nothing to do with each other"""
    device_sections: dict[str, Any] | None
    """of device-config.yaml; None = the chart's values"""
    enable_ascend: bool = False
    enable_iluvatar: bool = False
    node_policy: str
    device_policy: str
    scheduler_name: str


class NodeRecord(_Record, frozen=True, kw_only=True, tag="node"):
    """A node's registration from now on."""

    name: str
    state: NodeState | None = None
    """None = gone"""

    @classmethod
    def of(cls, name: str, facts: NodeFacts | None = None, **stamp: Any) -> Self:
        return cls(name=name, state=None if facts is None else NodeState.of(facts), **stamp)


class PodRecord(_Record, frozen=True, kw_only=True, tag="pod"):
    """What a pod holds from now on."""

    uid: str
    state: PodState | None = None
    """None = it holds nothing any more"""
    grants: Literal["reserved", "bound"] = "bound"
    """values of `GrantState`"""
    observed: bool = False
    """the API shows the pod on its node"""

    @classmethod
    def of(
        cls,
        uid: str,
        facts: PodFacts | None = None,
        state: GrantState = GrantState.BOUND,
        observed: bool = False,
        **stamp: Any,
    ) -> Self:
        held = None if facts is None else PodState.of(facts)
        grants: Literal["reserved", "bound"] = "reserved" if state is GrantState.RESERVED else "bound"
        return cls(uid=uid, state=held, grants=grants, observed=observed, **stamp)


class NominationRecord(_Record, frozen=True, kw_only=True, tag="nomination"):
    """What a pod claims from now on, over pods that are about to leave."""

    uid: str
    state: PodState | None = None
    """None = its nomination has ended"""
    victims: tuple[str, ...] = ()
    """uids, sorted"""

    @classmethod
    def of(cls, uid: str, facts: PodFacts | None = None, victims: frozenset[str] = frozenset(), **stamp: Any) -> Self:
        claim = None if facts is None else PodState.of(facts)
        return cls(uid=uid, state=claim, victims=tuple(sorted(victims)), **stamp)


class QuotaRecord(_Record, frozen=True, kw_only=True, tag="quota"):
    """A ResourceQuota from now on."""

    namespace: str
    name: str
    limits: dict[str, int] | None = None
    """by resource; None = gone"""

    @classmethod
    def of(cls, key: tuple[str, str], facts: QuotaFacts | None = None, **stamp: Any) -> Self:
        """`key`: namespace and name."""
        return cls(namespace=key[0], name=key[1], limits=None if facts is None else dict(facts.limits), **stamp)

    def value(self) -> QuotaFacts | None:
        return None if self.limits is None else QuotaFacts(self.namespace, self.name, self.limits)


class HostRecord(_Record, frozen=True, kw_only=True, tag="host"):
    """What a node has free beside its cards; recorded only with a policy that looks ahead."""

    name: str
    free: Host | None = None
    """None = not known any more"""

    @classmethod
    def of(cls, name: str, free: HostRequest | None = None, **stamp: Any) -> Self:
        return cls(name=name, free=Host.of(free), **stamp)


class ForecastRecord(_Record, frozen=True, kw_only=True, tag="forecast"):
    """A forecast that requests refer to."""

    id: int
    forecast: Forecast

    @classmethod
    def of(cls, number: int, forecast: DemandForecast, **stamp: Any) -> Self:
        return cls(id=number, forecast=Forecast.of(forecast), **stamp)


class SnapshotEnd(_Record, frozen=True, kw_only=True, tag="snapshot-end"):
    """All records since `Start` are the state at this moment; what follows is what happened."""


class _Decision(_Record, frozen=True, kw_only=True):
    """What is common to decisions."""

    pod: PodRef
    ask: PodAsk
    candidates: CandidateMask | None
    """None = not recorded, because they could not be read or were too large"""
    ledger_version: int
    """number of the last record that changed the state"""
    microseconds: int


class Placed(_Decision, frozen=True, kw_only=True, tag="placed"):
    """A node was chosen; the reservation is the `PodRecord` that follows."""

    node: str
    grants: Grants
    score: float = 0.0
    at_bind: bool = False
    """on one given node (`fit_pod`), not chosen among candidates: the node that a bind request named, or the one that
    is held for the member of a gang"""

    def placement(self) -> core_grants.Placement:
        return core_grants.Placement(self.node, grants_value(self.grants), self.score)


class Refused(_Decision, frozen=True, kw_only=True, tag="refused"):
    """No candidate fits."""

    reasons: dict[str, int]
    """`Misfit.text`, and how many candidates it was given for; see `selection.Refused.reason_counts`"""
    refusals: int = 1
    """how often this pod was refused so far, this time included: those that have no record were the same refusal, with
    the same candidates and reasons as the record before"""
    at_bind: bool = False
    of_gang: bool = False
    """the pod's gang waits as a whole: the reason is that of the gang, and nothing was selected for the pod alone"""

    @property
    def first(self) -> bool:
        return self.refusals == 1


class Unfinished(_Decision, frozen=True, kw_only=True, tag="unfinished"):
    """The decision took more work than one call may do and goes on."""


class Bind(_Record, frozen=True, kw_only=True, tag="bind"):
    """A bind request was answered."""

    pod: PodRef
    node: str
    error: str = ""


class Denied(_Record, frozen=True, kw_only=True, tag="denied"):
    """A pod was denied at admission."""

    namespace: str
    name: str
    """or its generateName"""
    message: str


class Woken(_Record, frozen=True, kw_only=True, tag="woken"):
    """A refused pod fits now, and kube-scheduler is made to ask again."""

    pod: PodRef


ReleaseReason = Literal["ended", "deleted", "expired", "given up"]


class Released(_Record, frozen=True, kw_only=True, tag="released"):
    """What a pod held is free."""

    pod: PodRef
    node: str
    why: ReleaseReason


class Evicted(_Record, frozen=True, kw_only=True, tag="evicted"):
    """A pod was evicted on purpose."""

    pod: PodRef
    node: str
    message: str = ""


class Gang(_Record, frozen=True, kw_only=True, tag="gang"):
    """A gang is in another state, or waits for another reason."""

    namespace: str
    name: str
    state: str
    text: str


class TookOver(_Record, frozen=True, kw_only=True, tag="took-over"):
    """This process decides from now on."""


class SteppedDown(_Record, frozen=True, kw_only=True, tag="stepped-down"):
    """This process decides no more."""


StateRecord = NodeRecord | PodRecord | NominationRecord | QuotaRecord | HostRecord | ForecastRecord
Decision = Placed | Refused | Unfinished
Note = Bind | Denied | Woken | Released | Evicted | Gang | TookOver | SteppedDown
Record = Start | StateRecord | SnapshotEnd | Decision | Note

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)


def encode_record(record: Record) -> bytes:
    """One line, with its end."""
    return _encoder.encode(record) + b"\n"


class NewerFormat(WireError):
    """Of a newer Tessera: what follows may mean something else than it seems to."""


def decode_record(line: bytes | str) -> Record:
    """Raises `WireError` for a line that is not a record, and for one of a newer format."""
    try:
        record = _decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise WireError(f"not a journal record: {error}") from error
    if isinstance(record, Start) and record.format > FORMAT:
        raise NewerFormat(f"journal format {record.format} is not supported; this tessera reads formats up to {FORMAT}")
    return record
