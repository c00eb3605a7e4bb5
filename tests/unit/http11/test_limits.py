"""Connections, bytes and time of the event loop: the peer that uses most gives way, and no other waits for it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from tessera.http11.limits import (
    BURST_S,
    ITERATION_S,
    LOG_EVERY_S,
    MAX_BUFFERED_BYTES,
    LoopIteration,
    LoopShare,
    PeerTable,
    RefusalLog,
)
from tessera.services.common_settings import ListenerLimits
from tests.support.event_loops import in_fake_time
from tests.support.logs import captured

MANY = "too many connections"
MIB = 2**20


@dataclass(eq=False)
class Connection:
    """A connection that notes what it is told."""

    peer: str
    is_busy: bool = False
    held_bytes: int = 0
    told: list[str] = field(default_factory=list)

    def give_way(self, reason: str) -> None:
        self.told.append(reason)

    def take_turn(self) -> None:
        self.told.append("turn")


def table(connections: int = 4, per_peer: int = 3) -> PeerTable:
    return PeerTable(ListenerLimits(connections=connections, connections_per_peer=per_peer))


def add(peers: PeerTable, connection: Connection) -> str:
    refusal = peers.make_room(connection.peer)
    if not refusal:
        peers.add(connection)
    return refusal


# -- connections


def test_one_address_has_its_limit_and_others_are_still_admitted() -> None:
    peers = table()
    mine = [Connection("a") for _ in range(4)]
    assert [add(peers, each) for each in mine] == ["", "", "", "too many connections of one address"]
    assert add(peers, Connection("b")) == ""
    peers.remove(mine[0])
    peers.remove(mine[0])
    assert add(peers, Connection("a")) == ""


def test_when_all_are_used_the_address_with_most_gives_its_oldest_idle_one() -> None:
    peers = table()
    busy, old, young = Connection("a", is_busy=True), Connection("a"), Connection("a")
    others = [Connection("b"), Connection("c")]
    assert [add(peers, each) for each in (busy, old, young, *others)] == [""] * 5
    assert (busy.told, old.told, young.told) == ([], [MANY], [])


def test_an_address_cannot_push_out_one_that_has_as_many() -> None:
    peers = table()
    held = [Connection("a"), Connection("a"), Connection("b"), Connection("b")]
    assert [add(peers, each) for each in (*held, Connection("a"), Connection("b"))] == [""] * 4 + [MANY, MANY]
    assert add(peers, Connection("c")) == ""
    assert [each.told for each in held] == [[MANY], [], [], []]


def test_connections_whose_handlers_run_are_not_pushed_out() -> None:
    peers = table()
    for peer in "aaab":
        add(peers, Connection(peer, is_busy=True))
    assert add(peers, Connection("c")) == MANY


# -- bytes


def test_unfinished_bodies_share_one_budget_and_the_address_that_holds_most_loses() -> None:
    peers = table(connections=100, per_peer=100)
    slow, quick = [Connection("a") for _ in range(120)], Connection("b")
    for each in (*slow[:99], quick):
        assert add(peers, each) == ""
    kept = sum(peers.hold(each, MIB) for each in slow[:99])
    assert sum(each.held_bytes for each in slow) <= MAX_BUFFERED_BYTES
    assert kept < 99 or any(each.told for each in slow)
    assert peers.hold(quick, 8 * MIB)
    assert quick.told == []
    assert sum(each.held_bytes for each in (*slow, quick)) <= MAX_BUFFERED_BYTES


def test_a_connection_that_holds_most_itself_is_told_so() -> None:
    peers = table()
    mine = Connection("a")
    add(peers, mine)
    assert peers.hold(mine, MAX_BUFFERED_BYTES)
    assert not peers.hold(mine, 1)
    assert (mine.held_bytes, mine.told) == (0, [])


def test_bytes_that_are_released_can_be_held_again() -> None:
    peers = table()
    first, second = Connection("a"), Connection("b")
    add(peers, first)
    add(peers, second)
    for _ in range(10):
        assert peers.hold(first, MAX_BUFFERED_BYTES)
        peers.release(first, MAX_BUFFERED_BYTES)
        peers.release(first, 1)
    assert peers.hold(first, MAX_BUFFERED_BYTES)
    peers.remove(first)
    assert peers.hold(second, MAX_BUFFERED_BYTES)
    assert (first.told, second.told) == ([], [])


# -- time of the event loop


@in_fake_time
async def test_a_peer_waits_only_when_it_has_used_more_than_a_burst() -> None:
    share = LoopShare(0.25, LoopIteration())
    assert not share.must_wait("a")
    share.charge("a", BURST_S)
    await asyncio.sleep(0)
    assert not share.must_wait("a")
    share.charge("a", 0.001)
    await asyncio.sleep(0)
    assert share.must_wait("a")
    assert not share.must_wait("b")
    await asyncio.sleep(0.001 / 0.25)
    assert not share.must_wait("a")


@pytest.mark.parametrize("others", [0, 3])
@in_fake_time
async def test_a_peer_gets_its_share_and_peers_that_wait_get_the_same(others: int) -> None:
    share, cost, turns = LoopShare(0.1, LoopIteration()), 0.01, 50
    loop = asyncio.get_running_loop()
    spent: dict[str, int] = {}

    class Greedy(Connection):
        def take_turn(self) -> None:
            spent[self.peer] = spent.get(self.peer, 0) + 1
            share.charge(self.peer, cost)
            share.wait(self)

    for number in range(1 + others):
        for _ in range(1 + number):
            share.wait(Greedy(f"peer {number}"))
    await asyncio.sleep(turns * cost / 0.1 * (1 + others))
    assert loop.time() == pytest.approx(turns * cost / 0.1 * (1 + others))
    # However many connections each of them has.
    assert all(turns <= count <= 1.1 * turns + 2 for count in spent.values()), spent
    assert len(spent) == 1 + others


@in_fake_time
async def test_connections_of_one_peer_take_turns_in_order_and_lost_ones_are_forgotten() -> None:
    share, order = LoopShare(0.1, LoopIteration()), []

    class Noting(Connection):
        def take_turn(self) -> None:
            order.append(self.told[0])
            share.charge(self.peer, 0.1)

    share.charge("a", 1.0)
    waiting = [Noting("a", told=[name]) for name in ("first", "lost", "second", "third")]
    for each in waiting:
        share.wait(each)
    share.discard(waiting[1])
    await asyncio.sleep(9.9)
    assert order == []
    await asyncio.sleep(60)
    assert order == ["first", "second", "third"]
    share.forget_paid()
    assert not share.must_wait("a")


@in_fake_time
async def test_an_iteration_of_the_loop_is_for_one_request_of_all_shares_and_peers_take_turns() -> None:
    iteration, order = LoopIteration(), list[str]()
    shares = [LoopShare(0.5, iteration, burst=10.0) for _ in range(2)]

    class Noting(Connection):
        def take_turn(self) -> None:
            order.append(self.peer)
            shares[0].charge(self.peer, ITERATION_S)

    shares[0].charge("a", ITERATION_S)
    assert [share.must_wait(peer) for share in shares for peer in "ab"] == [True] * 4
    for peer in "aaab":
        shares[0].wait(Noting(peer))
    shares[1].wait(Noting("c"))
    for _ in range(7):
        served = len(order)
        await asyncio.sleep(0)
        assert len(order) <= served + 1
    assert sorted(order) == list("aaabc")
    # A peer does not wait for all connections of another.
    assert order.index("b") < 3
    assert not shares[0].must_wait("a")


# -- the log


@in_fake_time
async def test_refusals_are_one_line_a_minute() -> None:
    with captured() as logs:
        refusals = RefusalLog()
        for _ in range(1000):
            refusals.note("this is not HTTP/1.1", "10.0.0.1")
        await asyncio.sleep(LOG_EVERY_S)
        refusals.note("too slow", "10.0.0.2")
    assert [(event["event"], event["counts"], event["last_peer"]) for event in logs.events] == [
        ("requests refused", {"this is not HTTP/1.1": 1}, "10.0.0.1"),
        ("requests refused", {"this is not HTTP/1.1": 999, "too slow": 1}, "10.0.0.2"),
    ]
