"""What is tried in a transaction is what the same events make of the ledger, and is taken back without a trace."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tessera.core.ledger.holders import GrantState
from tessera.core.ledger.holdings import PodFacts
from tessera.core.ledger.ledger import Ledger
from tessera.core.ledger.transaction import Transaction
from tessera.core.model.requests import HostRequest
from tests.support.builders import cluster, gpu_pod, node

THERE = gpu_pod("there", mem=100).on("n1", "n1-0,NVIDIA,100,0:;").facts()
NEW = gpu_pod("new", mem=200).on("n1", "n1-1,NVIDIA,200,0:;").facts()
CLAIMED = gpu_pod("claimed", mem=300).on("n1", "n1-0,NVIDIA,300,0:;").facts()
VICTIMS = frozenset({THERE.uid})
HOST = HostRequest(cpu=500, memory=2048)

Told = list[tuple[Any, ...]]
CHANGES: Mapping[str, tuple[Callable[[Transaction], object], Callable[[Ledger], object]]] = {
    "a pod that reserves": (
        lambda trial: trial.put(NEW, GrantState.RESERVED, deadline=7.0),
        lambda ledger: ledger.put_pod(NEW, GrantState.RESERVED, deadline=7.0),
    ),
    "a pod without a deadline": (
        lambda trial: trial.put(NEW, GrantState.RESERVED),
        lambda ledger: ledger.put_pod(NEW, GrantState.RESERVED),
    ),
    "a pod that the API shows": (
        lambda trial: trial.put(NEW, GrantState.BOUND, observed=True),
        lambda ledger: ledger.put_pod(NEW, GrantState.BOUND, observed=True),
    ),
    "a pod instead of its nomination": (
        lambda trial: trial.put(CLAIMED, GrantState.RESERVED, deadline=7.0),
        lambda ledger: ledger.put_pod(CLAIMED, GrantState.RESERVED, deadline=7.0),
    ),
    "a pod that leaves": (lambda trial: trial.remove(THERE.uid), lambda ledger: ledger.release(THERE.uid)),
    "a nomination": (
        lambda trial: trial.nominate(NEW, VICTIMS, deadline=8.0),
        lambda ledger: ledger.nominate(NEW, VICTIMS, deadline=8.0),
    ),
    "a nomination that ends": (
        lambda trial: trial.withdraw(CLAIMED.uid),
        lambda ledger: ledger.withdraw(CLAIMED.uid),
    ),
    "a pod that holds a place is not nominated": (
        lambda trial: trial.withdraw(THERE.uid),
        lambda ledger: ledger.withdraw(THERE.uid),
    ),
    "what a host has free": (
        lambda trial: trial.observe_host("n1", HOST),
        lambda ledger: ledger.observe_host("n1", HOST),
    ),
    "what another host has free": (
        lambda trial: trial.observe_host("n2", HOST),
        lambda ledger: ledger.observe_host("n2", HOST),
    ),
    "what was known of a host": (
        lambda trial: trial.observe_host("n1", HostRequest(cpu=4000, memory=1024)),
        lambda ledger: ledger.observe_host("n1", HostRequest(cpu=4000, memory=1024)),
    ),
}


class Listener:
    def __init__(self, ledger: Ledger) -> None:
        self.told: Told = []
        ledger.listener = self

    def on_node(self, name: str, facts: object) -> None:
        self.told.append(("node", name, facts))

    def on_pod(self, facts: PodFacts, state: GrantState | None, *, observed: bool) -> None:
        self.told.append(("pod", facts.uid, state, observed))

    def on_nomination(self, facts: PodFacts, victims: frozenset[str] | None) -> None:
        self.told.append(("nomination", facts.uid, victims))

    def on_quota(self, namespace: str, name: str, facts: object) -> None:
        self.told.append(("quota", namespace, name, facts))

    def on_host(self, name: str, free: HostRequest | None) -> None:
        self.told.append(("host", name, free))


def ledger() -> Ledger:
    found = cluster(node("n1").gpus(2), node("n2").gpus(1)).ledger
    found.observe_pod(THERE)
    found.nominate(CLAIMED, VICTIMS, deadline=9.0)
    found.observe_host("n1", HostRequest(cpu=4000, memory=1024))
    return found


def picture(ledger: Ledger) -> dict[str, Any]:
    return ledger.state() | {
        "deadlines": {each.uid: each.deadline for each in (*ledger.pods(), *ledger.nominations.all())},
        "observed": [each.uid for each in ledger.pods() if each.observed],
        "overdue": [each.uid for each in ledger.overdue(1000.0)],
        "hosts": [ledger.arrays.host_free(name) for name in ("n1", "n2")],
    }


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_kept_is_what_the_event_makes_of_the_ledger(name: str) -> None:
    tried, decided = ledger(), ledger()
    heard, expected = Listener(tried), Listener(decided)
    change, event = CHANGES[name]
    with tried.begin() as trial:
        change(trial)
        assert heard.told == []
        trial.keep()
        assert not trial.is_open
    event(decided)
    assert picture(tried) == picture(decided)
    assert heard.told == expected.told
    assert tried.transactions == []


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_taken_back_leaves_the_same_ledger_and_the_same_version(name: str) -> None:
    tried = ledger()
    heard, before, version = Listener(tried), picture(tried), tried.version
    with tried.begin() as trial:
        CHANGES[name][0](trial)
    assert (picture(tried), tried.version, heard.told) == (before, version, [])
    with tried.begin() as outer:
        with tried.begin() as inner:
            CHANGES[name][0](inner)
            inner.keep()
        outer.discard()
    assert (picture(tried), tried.version, heard.told) == (before, version, [])


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_kept_inside_is_kept_and_told_with_the_outer_one(name: str) -> None:
    tried, decided = ledger(), ledger()
    heard, expected = Listener(tried), Listener(decided)
    with tried.begin() as outer:
        with tried.begin() as inner:
            CHANGES[name][0](inner)
            inner.keep()
        assert heard.told == []
        outer.keep()
    CHANGES[name][1](decided)
    assert (picture(tried), heard.told) == (picture(decided), expected.told)


def test_a_mark_keeps_what_was_before_it() -> None:
    tried, decided = ledger(), ledger()
    with tried.begin() as trial:
        trial.put(NEW, GrantState.RESERVED, deadline=math.inf)
        mark = trial.mark()
        trial.remove(NEW.uid)
        trial.remove(THERE.uid)
        trial.roll_back(mark)
        trial.keep()
    decided.put_pod(NEW, GrantState.RESERVED, deadline=math.inf)
    assert picture(tried) == picture(decided)


def test_a_pod_that_comes_and_goes_in_one_transaction_is_not_told() -> None:
    tried = ledger()
    heard = Listener(tried)
    with tried.begin() as trial:
        trial.put(NEW, GrantState.RESERVED)
        trial.remove(NEW.uid)
        trial.observe_host("n1", HOST)
        trial.observe_host("n1", HostRequest(cpu=4000, memory=1024))
        trial.keep()
    assert heard.told == []
