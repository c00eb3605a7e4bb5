"""Who has a place in the ledger, and the book of what is kept for pods to come."""

from __future__ import annotations

import math

import pytest

from tessera.core.ledger.holders import GrantState, HoldBook, HolderKind, kind_of, move_hold_uid, owner_of
from tessera.core.ledger.ledger import Ledger
from tessera.core.model.grants import Placement, spans_of
from tessera.core.model.requests import Role
from tests.support.builders import cluster, gpu_pod, node

HELD = gpu_pod("p", mem=100).on("n1", "n1-0,NVIDIA,100,0:;").facts()
GANG = "default/g"


def ledger() -> Ledger:
    return cluster(node("n1").gpus(2)).ledger


def make_hold(book: Ledger, taker: str = "a") -> str:
    request = book.name_hold(GANG, gpu_pod("p", mem=100).request())
    return book.reserve(request, Placement("n1", HELD.grants), deadline=math.inf, meant_for=taker).uid


@pytest.mark.parametrize(
    ("uid", "kind", "owner"),
    [
        ("7b2e", HolderKind.POD, "7b2e"),
        ("gang/default/a/b/7", HolderKind.GANG, "default/a/b"),
        ("move/7b2e", HolderKind.MOVE, "7b2e"),
        ("other/7b2e", HolderKind.POD, "other/7b2e"),
    ],
)
def test_kind_and_owner_are_read_from_the_uids_of_old_journals_too(uid: str, kind: HolderKind, owner: str) -> None:
    assert (kind_of(HELD._replace(uid=uid)), owner_of(uid)) == (kind, owner)


@pytest.mark.parametrize(
    ("roles", "kind"),
    [
        ((), HolderKind.POD),
        ((Role.APP,), HolderKind.POD),
        ((Role.CLAIM,), HolderKind.CLAIM),
        ((Role.CLAIM, Role.CLAIM), HolderKind.CLAIM),
        ((Role.CLAIM, Role.APP), HolderKind.POD),
    ],
)
def test_what_consists_of_requests_of_a_claim_alone_is_a_claim(roles: tuple[Role, ...], kind: HolderKind) -> None:
    assert kind_of(HELD._replace(spans=spans_of(roles))) is kind


def test_a_hold_is_found_by_its_owner_and_by_the_pod_that_may_take_it() -> None:
    book = ledger()
    uid = make_hold(book)
    assert [holder.uid for holder in book.holds.of_gang(GANG)] == [uid]
    assert [holder.uid for holder in book.holds.meant_for(HolderKind.GANG, "a", "b")] == [uid]
    assert book.holds.meant_for(HolderKind.MOVE, "a") == []
    [hold] = book.holds.of_gang(GANG)
    assert hold.request is not None
    book.keep_for(hold.request, "b")
    assert book.holds.meant_for(HolderKind.GANG, "a") == []
    assert [holder.uid for holder in book.holds.meant_for(HolderKind.GANG, "b")] == [uid]
    book.release(uid)
    assert (book.holds.of_gang(GANG), book.holds.meant_for(HolderKind.GANG, "b")) == ([], [])
    assert vars(book.holds) == vars(HoldBook()), "nothing is kept of gangs that are gone"


def test_what_is_only_tried_is_no_hold_until_it_is_kept() -> None:
    book = ledger()
    tried = book.name_hold(GANG, gpu_pod("p", mem=100).request())
    with book.begin() as trial:
        trial.put(HELD._replace(uid=tried.uid), GrantState.RESERVED)
        trial.keep()
    assert book.holds.of_gang(GANG) == []
    assert book.keep_for(tried, "a").request is tried
    assert book.holds.count_of_gang(GANG) == 1


def test_a_nomination_is_no_place_that_can_be_taken_until_it_is_reserved() -> None:
    book = ledger()
    request = book.name_hold(GANG, gpu_pod("p", mem=100).request())
    book.nominate(HELD._replace(uid=request.uid), frozenset({"victim"}), request=request, meant_for="a")
    assert book.holds.count_of_gang(GANG) == 0
    assert book.holds.count_of_gang(GANG, GrantState.NOMINATED) == 1
    book.reserve(request, Placement("n1", HELD.grants), deadline=math.inf, meant_for="a")
    assert book.holds.count_of_gang(GANG) == 1
    assert book.holds.count_of_gang(GANG, GrantState.NOMINATED) == 0


def test_a_place_over_pods_that_are_moved_is_free_once_they_have_left() -> None:
    book = ledger()
    assert not book.holds.has_moves
    book.observe_pod(HELD._replace(uid="moved"))
    held = HELD._replace(uid=move_hold_uid("moved"))
    book.hold(held, taker="waits", deadline=5.0, victims=frozenset({"moved"}))
    [holder] = book.holds.of_moves()
    assert (holder.state, book.is_free(holder)) == (GrantState.NOMINATED, False)
    assert book.holds.has_moves
    book.release("moved")
    assert book.is_free(holder)
    book.release(holder.uid)
    assert not book.holds.has_moves


def test_whatever_is_overdue_is_found_in_one_place_in_order_of_uid() -> None:
    book = ledger()
    book.put_pod(HELD._replace(uid="b"), GrantState.RESERVED, deadline=5.0)
    book.nominate(HELD._replace(uid="a"), frozenset(), deadline=5.0)
    book.hold(HELD._replace(uid=move_hold_uid("x")), taker="y", deadline=5.0)
    book.put_pod(HELD._replace(uid="bound"), GrantState.BOUND, deadline=5.0)
    assert book.overdue(4.9) == []
    assert [holder.uid for holder in book.overdue(5.0)] == ["a", "b", "move/x"]
    book.extend("move/x", 6.0)
    assert [holder.uid for holder in book.overdue(5.0)] == ["a", "b"]


def test_a_copy_of_a_ledger_has_the_places_but_not_the_book() -> None:
    book = ledger()
    uid = make_hold(book)
    copy = book.copy_without_nodes()
    copy.copy_node("n1", book)
    copy.release(uid)
    assert copy.pod(uid) is None
    assert book.holds.count_of_gang(GANG) == 1
