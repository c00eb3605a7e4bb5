"""Augmenting paths, by example; that they find a place wherever there is one is a property of plans of gangs."""

from __future__ import annotations

from collections.abc import Generator, Iterator

from tessera.core.search import finish, gang_trial
from tessera.core.search.gang_trial import find_path


class Seats:
    """Members may sit on some of the seats; each is a kind of its own."""

    def __init__(self, usable: dict[str, str], **taken: str) -> None:
        self.usable = usable
        self.taken = taken
        """by seat"""
        self.asked: list[str] = []
        """whether a seat is free for them"""

    def free(self, member: str) -> Generator[None, None, str | None]:
        self.asked.append(member)
        yield from ()
        return next((seat for seat in self.usable[member] if seat not in self.taken), None)

    def others(self, member: str) -> Iterator[tuple[str, str]]:
        return ((seat, self.taken[seat]) for seat in self.usable[member] if seat in self.taken)

    def path(self, member: str) -> list[tuple[str, str]] | None:
        return finish(find_path(member, kind=self.usable.__getitem__, free=self.free, taken=self.others))


def test_a_free_place_is_taken_and_no_member_moves() -> None:
    assert Seats({"a": "xy"}, x="b").path("a") == [("a", "y")]


def test_members_move_along_the_shortest_path_and_each_gets_a_place_of_its_own() -> None:
    seats = Seats({"a": "x", "b": "xy", "c": "yz", "d": "yw"}, x="b", y="c")
    assert seats.path("a") == [("a", "x"), ("b", "y"), ("c", "z")]


def test_there_is_no_path_if_all_that_could_move_have_no_other_place() -> None:
    seats = Seats({"a": "x", "b": "xy", "c": "y"}, x="b", y="c")
    assert seats.path("a") is None
    assert seats.asked == ["a", "b", "c"]


def test_of_members_that_may_use_the_same_places_one_is_asked() -> None:
    seats = Seats({"a": "xyz", "b": "xy", "c": "xy"}, x="b", y="c", z="a")
    assert seats.path("a") is None
    assert seats.asked == ["a", "b"]


def test_the_search_pauses_after_each_member_without_a_free_place_and_ends_after_some_kinds() -> None:
    chain = [f"m{i:02}" for i in range(gang_trial.MAX_KINDS + 2)]
    usable = {name: name + chain[i + 1] if i + 1 < len(chain) else name for i, name in enumerate(chain)}
    pauses = find_path(
        chain[0],
        kind=usable.__getitem__,
        free=lambda _: Seats({"none": ""}).free("none"),
        taken=lambda name: [(usable[name][3:], usable[name][3:])] if usable[name][3:] else [],
    )
    assert sum(1 for _ in pauses) == gang_trial.MAX_KINDS
