"""Whatever is tried on a ledger and taken back, the ledger, its arrays and its audit are as before, and what is kept is
told once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.core.fit.quota import QuotaFacts
from tessera.core.ledger.audit import audit
from tessera.core.ledger.holders import GrantState, IllegalHolderTransition
from tessera.core.ledger.holdings import PodFacts
from tessera.core.ledger.ledger import Ledger
from tessera.core.ledger.transaction import Transaction, TransactionError
from tessera.core.model.devices import NodeFacts
from tessera.core.model.requests import HostRequest
from tessera.core.search.selection import Selector
from tests.support import strategies as some
from tests.support.oracles import select_and_check

UIDS = tuple(f"pod-{i}" for i in range(5))
HOSTS = st.builds(HostRequest, st.sampled_from((0, 500)), st.sampled_from((0, 1024)))
STATES = st.sampled_from((GrantState.RESERVED, GrantState.BOUND))


def picture(ledger: Ledger) -> dict[str, Any]:
    """Everything that a decision may depend on, the arrays byte by byte."""
    arrays = {name: value.tobytes() for name, value in vars(ledger.arrays).items() if isinstance(value, np.ndarray)}
    assert arrays
    entries = {entry.facts.uid: (entry.state, entry.deadline, entry.observed, entry.facts) for entry in ledger.pods()}
    return {
        "state": ledger.state(),
        "entries": entries,
        "arrays": arrays,
        "names": list(ledger.arrays.names),
        "hosts": {name: ledger.arrays.host_free(name) for name in some.NODES},
        "audit": audit(ledger),
        "deadlines": [each.deadline for each in ledger.nominations.all()],
        "overdue": [[each.uid for each in ledger.overdue(now)] for now in (0, 10, 20)],
        "given back": ledger.arrays.given_back,
        "cards": ledger.card_count,
    }


class Copy:
    """A second ledger that only hears what the first one tells."""

    def __init__(self, source: Ledger) -> None:
        self.ledger = Ledger(source.rules)
        self.told = 0
        source.listener = self

    def on_node(self, name: str, facts: NodeFacts | None) -> None:
        self.told += 1
        assert facts is not None
        self.ledger.observe_node(facts)

    def on_pod(self, facts: PodFacts, state: GrantState | None, *, observed: bool) -> None:
        self.told += 1
        if state is None:
            assert self.ledger.release(facts.uid)
        else:
            self.ledger.put_pod(facts, state, observed=observed)

    def on_nomination(self, facts: PodFacts, victims: frozenset[str] | None) -> None:
        self.told += 1
        if victims is None:
            assert self.ledger.withdraw(facts.uid)
        else:
            self.ledger.nominate(facts, victims)

    def on_quota(self, namespace: str, name: str, facts: QuotaFacts | None) -> None:
        self.told += 1
        assert facts is not None
        self.ledger.observe_quota(facts)

    def on_host(self, name: str, free: HostRequest | None) -> None:
        self.told += 1
        assert free is not None
        self.ledger.observe_host(name, free)

    def heard(self) -> Mapping[str, Any]:
        return self.ledger.state() | {"hosts": {name: self.ledger.arrays.host_free(name) for name in some.NODES}}


def a_change(data: st.DataObject, ledger: Ledger, transaction: Transaction, pool: tuple[str, ...]) -> None:
    uid = data.draw(st.sampled_from(UIDS))
    match data.draw(st.sampled_from(("put", "put", "remove", "nominate", "withdraw", "host"))):
        case "put":
            facts, deadline = data.draw(some.foreign_pods(pool, uid)), data.draw(st.sampled_from((5.0, 15.0)))
            transaction.put(facts, data.draw(STATES), observed=data.draw(st.booleans()), deadline=deadline)
        case "remove":
            held = ledger.pod(uid) or ledger.nominations.get(uid)
            assert transaction.remove(uid) is held
        case "nominate":
            if ledger.pod(uid) is None:
                victims = frozenset(data.draw(st.sets(st.sampled_from(UIDS), max_size=3)))
                transaction.nominate(data.draw(some.foreign_pods(pool, uid)), victims, deadline=5.0)
        case "withdraw":
            transaction.withdraw(uid)
        case _:
            transaction.observe_host(data.draw(st.sampled_from(some.NODES)), data.draw(HOSTS))


def try_something(data: st.DataObject, ledger: Ledger, pool: tuple[str, ...], depth: int = 2) -> None:
    """In a transaction that is open: changes, marks that are returned to, and transactions inside."""
    transaction = ledger.transactions[-1]
    for _ in range(data.draw(st.integers(0, 4))):
        what = data.draw(st.sampled_from(("change", "change", "change", "mark", "inside", "read")))
        if what == "change":
            a_change(data, ledger, transaction, pool)
        elif what == "read":
            selector = Selector(ledger)
            pod = data.draw(some.pod_requests(pool, "asking"))
            select_and_check(selector, pod, selector.candidates(some.NODES))
        elif depth and what == "mark":
            mark, before = transaction.mark(), picture(ledger)
            try_something(data, ledger, pool, depth - 1)
            transaction.roll_back(mark)
            assert picture(ledger) == before
        elif depth:
            before = picture(ledger)
            with ledger.begin() as inner:
                try_something(data, ledger, pool, depth - 1)
                is_kept = data.draw(st.booleans())
                if is_kept:
                    inner.keep()
            assert is_kept or picture(ledger) == before


def a_ledger(data: st.DataObject, pool: tuple[str, ...]) -> tuple[Ledger, Copy]:
    ledger = Ledger(some.VENDORS)
    copy = Copy(ledger)
    for facts in data.draw(some.clusters(pool)):
        ledger.observe_node(facts)
    for quota in data.draw(st.lists(some.quotas(pool), max_size=2)):
        ledger.observe_quota(quota)
    for name in data.draw(st.sets(st.sampled_from(some.NODES), max_size=2)):
        ledger.observe_host(name, data.draw(HOSTS))
    with ledger.begin() as transaction:
        for _ in range(data.draw(st.integers(0, 5))):
            a_change(data, ledger, transaction, pool)
        transaction.keep()
    return ledger, copy


def told(ledger: Ledger) -> Mapping[str, Any]:
    return ledger.state() | {"hosts": {name: ledger.arrays.host_free(name) for name in some.NODES}}


@given(data=st.data(), pool=some.pools)
def test_what_is_taken_back_leaves_no_trace_and_what_is_kept_is_told(
    data: st.DataObject, pool: tuple[str, ...]
) -> None:
    ledger, copy = a_ledger(data, pool)
    assert copy.heard() == told(ledger)
    selector, asking = Selector(ledger), data.draw(some.pod_requests(pool, "asking"))
    candidates = selector.candidates(some.NODES)
    select_and_check(selector, asking, candidates)
    before, version, heard = picture(ledger), ledger.version, copy.told
    with ledger.begin() as transaction:
        try_something(data, ledger, pool)
        select_and_check(selector, asking, selector.candidates(some.NODES))
        is_changed, is_kept = picture(ledger)["arrays"] != before["arrays"], data.draw(st.booleans())
        assert not is_changed or ledger.version != version
        assert copy.told == heard, "nothing is told of what is only tried"
        if is_kept:
            transaction.keep()
    if is_kept:
        assert copy.heard() == told(ledger)
    else:
        assert picture(ledger) == before
        assert copy.told == heard
    select_and_check(selector, asking, selector.candidates(some.NODES))


A_POD = PodFacts("pod", "team", "pod", "n1")
CHANGES: Mapping[str, Callable[[Ledger], object]] = {
    "observe_node": lambda ledger: ledger.observe_node(NodeFacts("n1")),
    "forget_node": lambda ledger: ledger.forget_node("n1"),
    "observe_pod": lambda ledger: ledger.observe_pod(A_POD),
    "put_pod": lambda ledger: ledger.put_pod(A_POD, GrantState.BOUND),
    "release": lambda ledger: ledger.release("pod"),
    "nominate": lambda ledger: ledger.nominate(A_POD, frozenset()),
    "withdraw": lambda ledger: ledger.withdraw("pod"),
    "bind": lambda ledger: ledger.bind("pod"),
    "unbind": lambda ledger: ledger.unbind("pod", deadline=1.0),
    "observe_quota": lambda ledger: ledger.observe_quota(QuotaFacts("team", "quota", {})),
    "forget_quota": lambda ledger: ledger.forget_quota("team", "quota"),
    "observe_host": lambda ledger: ledger.observe_host("n1", HostRequest(1, 1)),
    "forget_host": lambda ledger: ledger.forget_host("n1"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_nothing_changes_the_ledger_past_a_transaction(name: str) -> None:
    ledger = Ledger(some.VENDORS)
    with ledger.begin(), pytest.raises(TransactionError):
        CHANGES[name](ledger)
    with suppress(IllegalHolderTransition):
        CHANGES[name](ledger)


def test_only_the_innermost_transaction_may_be_used_and_none_after_its_end() -> None:
    ledger = Ledger(some.VENDORS)
    with ledger.begin() as outer:
        with ledger.begin() as inner:
            with pytest.raises(TransactionError):
                outer.remove("pod")
            for end in (outer.keep, outer.discard):
                with pytest.raises(TransactionError):
                    end()
            inner.keep()
        with pytest.raises(TransactionError):
            inner.observe_host("n1", HostRequest(1, 1))
        outer.keep()
    with pytest.raises(TransactionError):
        outer.remove("pod")
