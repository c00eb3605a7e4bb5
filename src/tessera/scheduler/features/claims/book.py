"""Every ResourceClaim that the API shows, and the only place where what a claim holds is charged or released.

    (absent) --- the API shows it ---> IDLE <---------------------------------------.
                                        | start                                     | a later version shows what
                                        v                                           | became of the write
                                     WRITING --- lose_track: no answer ---> UNCERTAIN
                                        | finish: written, or certainly not
                                        '--> IDLE

An allocated claim is a holder of the ledger under its own uid, counted once however many pods use it. A claim that is
being allocated is one from before the first write is sent: its pod may go, but the write may land all the same. Only a
version of the claim that shows it without an allocation, and that no earlier write can change, ends that. Objects
arrive here from the informer and as answers to writes, in any order; the API server numbers versions in the order of
the writes, so an older one is recognised and ignored. What bound pods use of a claim that holds less than that is
theirs (`users`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from tessera.core.ledger.holders import GrantState
from tessera.core.ledger.holdings import PodFacts
from tessera.scheduler.pod_cycle import HOLDS_RESERVATION, PodCycles
from tessera.vendors.claims.allocations import claim_facts
from tessera.vendors.claims.asks import BadClaim, ClaimAsk, read_claim
from tessera.vendors.claims.pools import PoolDevices
from tessera.wire import keys
from tessera.wire.resource_api import DRIVER, DeviceClass, ResourceClaim

POD = "Pod"


class WriteState(Enum):
    """Whether a write of this process may change a claim."""

    IDLE = "idle"
    WRITING = "writing"
    UNCERTAIN = "uncertain"


@dataclass(slots=True, eq=False)
class ClaimRecord:
    """One claim. Changed by `ClaimBook` only."""

    key: str
    claim: ResourceClaim
    """in the newest version that is known"""
    state: WriteState = WriteState.IDLE
    pod: str = ""
    """uid of the pod that has, or had, a reservation for it"""
    ask: ClaimAsk | BadClaim | None = None
    """None if it has not been read yet"""
    facts: PodFacts | None = None
    """what it holds; None if it has no devices of ours"""
    pools: tuple[str, ...] = ()
    """of those devices"""

    @property
    def uid(self) -> str:
        return self.claim.metadata.uid

    @property
    def is_allocated(self) -> bool:
        return self.claim.status.allocation is not None

    @property
    def consumers(self) -> frozenset[str]:
        """uids of the pods that it is reserved for"""
        return frozenset(each.uid for each in self.claim.status.reserved_for or ())

    @property
    def fence(self) -> str:
        return (self.claim.metadata.annotations or {}).get(keys.FENCE, "")


class ClaimBook:
    """Used from the event loop only."""

    def __init__(
        self, cycles: PodCycles, pools: Mapping[str, PoolDevices], on_claim: Callable[[ClaimRecord], None]
    ) -> None:
        """`pools`: the devices that claims may have, by pool. `on_claim`: a claim appeared or changed, or a write of it
        has ended."""
        self._cycles = cycles
        self._ledger = cycles.ledger
        self._pools = pools
        self._on_claim = on_claim
        self._records: dict[str, ClaimRecord] = {}
        self._by_pool: dict[str, dict[str, None]] = {}
        """keys of the claims that have devices of a pool"""
        self._classes: dict[str, DeviceClass] = {}

    def __iter__(self) -> Iterator[ClaimRecord]:
        return iter(list(self._records.values()))

    def get(self, key: str, uid: str = "") -> ClaimRecord | None:
        """The claim of this name; with `uid`, only if it is still that one."""
        record = self._records.get(key)
        return None if record is None or (uid and record.uid != uid) else record

    @property
    def classes(self) -> Mapping[str, DeviceClass]:
        return self._classes

    def ask(self, record: ClaimRecord) -> ClaimAsk | BadClaim:
        """What the claim asks for; its spec never changes."""
        if record.ask is None:
            record.ask = read_claim(record.claim, self._classes)
        return record.ask

    @property
    def holding(self) -> int:
        """How many claims have devices of ours."""
        return sum(1 for record in self._records.values() if record.facts is not None)

    def is_charged(self, record: ClaimRecord) -> bool:
        """Whether the ledger holds something for it."""
        return self._ledger.pod(record.uid) is not None

    def count(self, state: WriteState) -> int:
        return sum(1 for record in self._records.values() if record.state is state)

    def may_be_ours(self, claim: ResourceClaim) -> bool:
        """Whether a scheduler with these classes, or earlier ones, may have been about to allocate it."""
        ask = read_claim(claim, self._classes)
        return not isinstance(ask, BadClaim) or not ask.is_foreign

    # -- what the API shows

    def observe(self, claim: ResourceClaim) -> None:
        """The informer shows the claim."""
        key = f"{claim.metadata.namespace}/{claim.metadata.name}"
        record = self._records.get(key)
        if record is not None and record.uid != claim.metadata.uid:
            if not is_newer(claim, record.claim):
                return
            self.drop(key)
            record = None
        if record is None:
            record = self._records[key] = ClaimRecord(key, claim)
        elif is_newer(claim, record.claim):
            record.claim = claim
            if record.state is WriteState.UNCERTAIN:
                # What was sent before was for an older version, and lands no more.
                record.state = WriteState.IDLE
        self._charge(record)
        self._on_claim(record)

    def learn(self, record: ClaimRecord, claim: ResourceClaim) -> None:
        """An answer shows the claim. What is sent next is for this version, and only a later one shows its end.

        A claim of the same name that was made since is left to the informer, which shows the end of the old one first.
        """
        if self._records.get(record.key) is record and claim.metadata.uid == record.uid:
            self.observe(claim)

    def drop(self, key: str) -> None:
        """The claim is gone; a write for it cannot land any more."""
        record = self._records.pop(key, None)
        if record is not None:
            record.state = WriteState.IDLE
            self._set_facts(record, None)
            self._release(record)
            self._cycles.users.recount(record.uid)
            self._on_claim(record)

    def put_class(self, found: DeviceClass) -> None:
        self._classes[found.metadata.name] = found
        self._read_again()

    def drop_class(self, name: str) -> None:
        self._classes.pop(name, None)
        self._read_again()

    def _read_again(self) -> None:
        for record in self:
            record.ask = None
            if not record.is_allocated:
                self._on_claim(record)

    def recount(self, pool: str) -> list[ClaimRecord]:
        """The devices of a pool have changed: count its claims again, and return them."""
        found = [self._records[key] for key in self._by_pool.get(pool, ())]
        for record in found:
            self._charge(record)
        return found

    def facts(self, claim: ResourceClaim) -> PodFacts | None:
        """What a claim holds; None if it has no devices of ours."""
        return claim_facts(claim, self._pools)

    # -- writes of this process

    def take(self, record: ClaimRecord, pod: str) -> None:
        """A pod has a reservation for it."""
        record.pod = pod

    def is_taken(self, record: ClaimRecord, *, other_than: str) -> bool:
        """Whether another pod has a reservation for it, which is about to be written."""
        cycle = self._cycles.get(record.pod) if record.pod not in ("", other_than) else None
        if cycle is None or cycle.state not in HOLDS_RESERVATION or cycle.prepared is None:
            return False
        return cycle.prepared.claims is not None and record.uid in cycle.prepared.claims.uids

    def start(self, record: ClaimRecord, *, pod: str, facts: PodFacts | None = None) -> None:
        """IDLE -> WRITING, for this pod; for none if it is released. With `facts` it is allocated: it holds that from
        now on, and the pod does not."""
        assert record.state is WriteState.IDLE  # two writes at once could not be told apart
        record.state, record.pod = WriteState.WRITING, pod
        if facts is not None:
            self._ledger.put_pod(facts, GrantState.BOUND)
            self._hand_over(record)
            self._cycles.users.recount(record.uid)

    def finish(self, record: ClaimRecord, answer: ResourceClaim | None = None) -> None:
        """WRITING -> IDLE: written, with what the API server answered, or certainly not written."""
        if record.state is WriteState.WRITING:
            record.state = WriteState.IDLE
        if self._records.get(record.key) is not record:
            return  # It is gone, whatever the answer was.
        if answer is not None and is_newer(answer, record.claim):
            record.claim = answer
        self._charge(record)
        self._on_claim(record)

    def lose_track(self, record: ClaimRecord) -> None:
        """WRITING -> UNCERTAIN: a write may have landed, or may yet."""
        if record.state is WriteState.WRITING and self._records.get(record.key) is record:
            record.state = WriteState.UNCERTAIN

    # -- inside

    def _charge(self, record: ClaimRecord) -> None:
        """Make the ledger hold what the newest version shows, or what may yet become of it."""
        self._set_facts(record, self.facts(record.claim))
        if record.facts is not None:
            had_entry = self._ledger.pod(record.uid) is not None
            if self._ledger.observe_pod(record.facts) and had_entry:
                self._cycles.unschedulable.on_room()
            self._hand_over(record)
        elif record.state is WriteState.IDLE or record.is_allocated:
            self._release(record)
        else:
            # A write is under way, perhaps to release it: then what it held until now is free.
            entry = self._ledger.pod(record.uid)
            if entry is not None and entry.observed:
                self._release(record)
        self._cycles.users.recount(record.uid)

    def _set_facts(self, record: ClaimRecord, facts: PodFacts | None) -> None:
        for pool in record.pools:
            self._by_pool[pool].pop(record.key, None)
            if not self._by_pool[pool]:
                del self._by_pool[pool]
        record.facts = facts
        record.pools = () if facts is None else tuple({each.pool for each in record.claim.devices_of(DRIVER)})
        for pool in record.pools:
            self._by_pool.setdefault(pool, {})[record.key] = None

    def _hand_over(self, record: ClaimRecord) -> None:
        cycle = self._cycles.get(record.pod) if record.pod else None
        if cycle is not None:
            self._cycles.hand_to_claim(cycle, record.uid)

    def _release(self, record: ClaimRecord) -> None:
        if self._ledger.release(record.uid):
            self._cycles.unschedulable.on_room()


def is_newer(one: ResourceClaim, other: ResourceClaim) -> bool:
    """Whether it is the later version. The API server's versions are numbers that grow with every write."""
    return int(one.metadata.resource_version or 0) > int(other.metadata.resource_version or 0)


def owner_uid(claim: ResourceClaim) -> str:
    """The pod that the claim was made for; empty if it was made by people."""
    references = claim.metadata.owner_references or ()
    return next((each.uid for each in references if each.controller and each.kind == POD), "")
