"""What is known of bound pods and their budgets, and for how long."""

from __future__ import annotations

from tessera.core.search import finish
from tessera.scheduler.eviction.victim_book import (
    DEFAULT_GRACE_S,
    LEAVING_S,
    OPTED_OUT,
    STUCK,
    VictimBook,
    read_traits,
)
from tests.support.builders import PodBuilder, gpu_pod
from tests.support.preemption import budget

HELD = "n1-0,NVIDIA,1000,0:;"


def bound(name: str, node: str = "n1") -> PodBuilder:
    return gpu_pod(name, mem=1000).on(node, HELD)


class Book(VictimBook):
    """With a clock that a test moves, and the nodes of which it told that something is new."""

    def __init__(self, *pods: PodBuilder) -> None:
        self.at = 0.0
        self.changed: list[str] = []
        self.binding: set[str] = set()
        super().__init__(
            time=lambda: self.at, on_change=self.changed.append, is_binding=lambda group: group in self.binding
        )
        self.put(*pods)

    def put(self, *pods: PodBuilder) -> None:
        for pod in pods:
            self.put_pod(pod.api(), pod.facts())

    def settled(self) -> VictimBook:
        """As a search finds it."""
        finish(self.match_budgets([*self._pods]))
        return self

    def protection(self, name: str) -> str:
        traits = self.traits(f"uid-{name}")
        assert traits is not None
        return traits.protection

    def leaves(self, name: str) -> bool:
        traits = self.traits(f"uid-{name}")
        assert traits is not None
        return traits.is_leaving


def test_a_pod_is_known_until_it_is_gone() -> None:
    book = Book(bound("a").with_priority(5), bound("b").with_priority(7))
    assert book.lowest_priority == 5
    book.drop_pod("uid-a")
    assert (book.traits("uid-a"), book.lowest_priority) == (None, 7)
    book.drop_pod("uid-b")
    assert book.lowest_priority is None
    book.drop_pod("uid-b")
    assert book.changed == ["n1"] * 4


def test_only_what_is_new_about_a_pod_is_told() -> None:
    book = Book(bound("a"))
    book.changed.clear()
    book.put(bound("a"))
    assert book.changed == []
    book.put(bound("a").terminating())
    assert set(book.changed) == {"n1"}
    assert book.leaves("a")


def test_what_was_known_of_a_pod_before_it_changed_is_forgotten() -> None:
    book = Book(bound("a").with_priority(5))
    book.spare("uid-a", "why", seconds=60)
    book.put(bound("a").with_priority(7))
    assert (book.lowest_priority, book.protection("a")) == (7, "")


def test_each_change_of_a_budget_is_a_new_revision() -> None:
    book, seen = Book(bound("a").labelled(app="web")), set[int]()
    key, made = budget("web", 2, app="web")
    seen.add(book.revision)
    book.put_budget(key, made)
    seen.add(book.revision)
    book.drop_budget(key)
    seen.add(book.revision)
    assert len(seen) == 3


def test_budgets_follow_the_labels_of_a_pod_and_come_and_go() -> None:
    book = Book(bound("a").labelled(app="web"), bound("b"))
    for made in (budget("web", 2, app="web"), budget("all", 0)):
        book.put_budget(*made)
    assert book.settled().budgets("uid-a") == ("default/all", "default/web")
    assert book.budgets("uid-b") == ("default/all",)
    assert book.budgets("uid-unknown") == ()
    assert [book.disruptions_allowed(name) for name in ("default/web", "default/all", "default/none")] == [2, 0, 0]
    book.put(bound("b").labelled(app="web"))
    assert book.settled().budgets("uid-b") == ("default/all", "default/web"), "nothing else about it has changed"
    book.drop_budget("default/all")
    book.drop_budget("default/never-there")
    assert book.settled().budgets("uid-a") == ("default/web",)
    book.drop_budget("default/web")
    assert (book.settled().budgets("uid-a"), book.disruptions_allowed("default/web")) == ((), 0)


def test_a_pod_whose_eviction_was_accepted_leaves_until_a_watch_should_have_shown_it() -> None:
    book = Book(bound("a"), bound("b"))
    book.changed.clear()
    book.note_evicted("uid-a")
    book.note_evicted("uid-unknown")
    assert book.changed == ["n1"]
    assert (book.leaves("a"), book.leaves("b")) == (True, False)
    book.at = LEAVING_S - 1
    book.forget_overdue()
    assert book.leaves("a")
    book.at = LEAVING_S
    book.forget_overdue()
    assert not book.leaves("a")
    assert book.changed == ["n1", "n1"]


def test_a_spared_pod_is_protected_for_so_long() -> None:
    book = Book(bound("a"), bound("b"))
    book.changed.clear()
    book.spare("uid-a", "its budget refused", seconds=30)
    book.spare("uid-unknown", "its budget refused", seconds=30)
    assert (book.protection("a"), book.protection("b")) == ("its budget refused", "")
    book.at = 29
    book.forget_overdue()
    assert book.protection("a") == "its budget refused"
    book.at = 30
    book.forget_overdue()
    assert book.protection("a") == ""
    assert book.changed == ["n1", "n1"]


def test_a_pod_that_was_waited_for_in_vain_neither_leaves_nor_is_evicted_until_it_is_gone() -> None:
    book = Book(bound("a").terminating(), bound("b"))
    book.changed.clear()
    book.note_stuck("uid-a")
    book.note_stuck("uid-unknown")
    assert (book.leaves("a"), book.protection("a"), book.protection("b")) == (False, STUCK, "")
    assert book.changed == ["n1"]
    book.drop_pod("uid-a")
    book.put(bound("a"))
    assert book.protection("a") == ""


def test_what_was_noted_of_a_pod_ends_with_it() -> None:
    book = Book(bound("a"))
    book.note_evicted("uid-a")
    book.spare("uid-a", "refused", seconds=30)
    book.drop_pod("uid-a")
    book.at = 2 * LEAVING_S
    book.forget_overdue()
    book.at = 0.0
    book.put(bound("a"))
    assert (book.leaves("a"), book.protection("a")) == (False, "")


def test_the_members_of_a_group_are_known_together() -> None:
    def grouped(name: str) -> PodBuilder:
        return bound(name).annotate(("scheduling.x-k8s.io/pod-group", "train"))

    book = Book(grouped("b"), grouped("a"), bound("alone"))
    assert list(book.members("default/train")) == ["uid-a", "uid-b"]
    book.drop_pod("uid-a")
    assert list(book.members("default/train")) == ["uid-b"]
    book.drop_pod("uid-b")
    assert list(book.members("default/train")) == []


def test_no_pod_of_a_group_is_a_victim_while_another_one_is_being_bound() -> None:
    book = Book(gpu_pod("a").in_gang("g", 2).on("n1", "n1-0,NVIDIA,1,0:;"))
    book.binding = {"default/g"}
    assert book.traits_of(["uid-a"])[0].protection == "other members of its gang are being bound"
    book.binding = set()
    assert book.traits_of(["uid-a"])[0].protection == ""


def test_traits_of_a_pod() -> None:
    plain = read_traits(bound("a").api())
    assert (plain.priority, plain.protection, plain.group, plain.is_leaving) == (0, "", "", False)
    assert plain.grace_s == DEFAULT_GRACE_S
    assert plain.key == "default/a"
    assert read_traits(bound("a").started("2026-01-01T00:00:10Z").api()).started == 1767225610
    assert read_traits(bound("a").started("never").api()).started == plain.started
    assert read_traits(bound("a").annotate(("tessera.io/preemptible", "false")).api()).protection == OPTED_OUT
    assert read_traits(bound("a").annotate(("tessera.io/preemptible", "true")).api()).protection == ""
    assert "file of its node" in read_traits(bound("a").annotate(("kubernetes.io/config.mirror", "x")).api()).protection
