"""A book of pods for tests of preemption: plain dictionaries, and the optimum by trying every set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, combinations

from tessera.core.fit.fit import fit_pod
from tessera.core.ledger.holders import GrantState, Holder
from tessera.core.ledger.ledger import Ledger, replay
from tessera.core.model.misfits import Misfit
from tessera.core.model.requests import PodRequest
from tessera.core.search.victims import Cost, PodTraits


@dataclass
class PlainBook:
    """`PodBook` with everything written down."""

    pods: dict[str, PodTraits] = field(default_factory=dict)
    budgets_of: dict[str, tuple[str, ...]] = field(default_factory=dict)
    allowed: dict[str, int] = field(default_factory=dict)

    @property
    def lowest_priority(self) -> int | None:
        return min((traits.priority for traits in self.pods.values()), default=None)

    def traits(self, uid: str) -> PodTraits | None:
        return self.pods.get(uid)

    def members(self, group: str) -> Collection[str]:
        return sorted(uid for uid, traits in self.pods.items() if traits.group == group)

    def match_budgets(self, uids: Iterable[str]) -> Generator[None, None, None]:
        yield from ()

    def budgets(self, uid: str) -> tuple[str, ...]:
        return self.budgets_of.get(uid, ())

    def disruptions_allowed(self, budget: str) -> int:
        return self.allowed.get(budget, 0)


Rank = tuple[Cost, str, tuple[str, ...]]


def brute_force(
    ledger: Ledger, book: PlainBook, pod: PodRequest, *, priority: int, nodes: Iterable[str]
) -> Rank | None:
    """The best of all sets of all nodes, each tried on a ledger that never saw the victims."""
    sets = sorted(each for name in nodes for each in _sets(ledger, book, priority, name))
    for cost, node, victims, gone in sets:
        if fits_without(ledger, pod, node, set(gone)):
            return cost, node, victims
    return None


def _sets(
    ledger: Ledger, book: PlainBook, priority: int, node: str
) -> Iterator[tuple[Cost, str, tuple[str, ...], tuple[str, ...]]]:
    """All sets of pods that may leave, with those that leave already."""
    entries = {entry.facts.uid: entry for entry in ledger.pods()}
    leaving = {uid for uid in entries if uid in book.pods and book.pods[uid].is_leaving}
    on_node = [uid for uid, entry in entries.items() if entry.facts.node == node and uid not in leaving]
    units = sorted({unit for uid in on_node if (unit := _unit(entries, book, uid, priority, leaving))})
    for chosen in chain.from_iterable(combinations(units, size) for size in range(len(units) + 1)):
        victims = tuple(sorted(set(chain.from_iterable(chosen))))
        counts = Counter(budget for uid in victims for budget in book.budgets(uid))
        if any(count > book.disruptions_allowed(budget) for budget, count in counts.items()):
            continue
        left_here = {uid for uid in leaving if entries[uid].facts.node == node}
        yield _cost(entries, book, victims), node, victims, tuple(sorted({*victims, *left_here}))


def _unit(entries: dict[str, Holder], book: PlainBook, uid: str, priority: int, leaving: set[str]) -> tuple[str, ...]:
    """The pod with its group, or nothing if one of them must stay."""
    traits = book.pods.get(uid)
    if traits is None:
        return ()
    members = book.members(traits.group) if traits.group else (uid,)
    staying = [member for member in members if member not in leaving]
    for member in staying:
        one, entry = book.pods[member], entries.get(member)
        if entry is None or entry.state is not GrantState.BOUND or not entry.observed or entry.facts.problem:
            return ()
        if one.priority >= priority or one.protection or len(book.budgets(member)) > 1:
            return ()
    return tuple(staying)


def fits_without(ledger: Ledger, pod: PodRequest, node: str, gone: Collection[str]) -> bool:
    """Whether the pod fits on a ledger that never saw what is gone."""
    nodes = [view.facts for name in ledger.node_names() if (view := ledger.node(name)) is not None]
    pods = [entry.facts for entry in ledger.pods() if entry.facts.uid not in gone]
    objects, _ = ledger.quotas.state()
    assert isinstance(objects, dict)
    left = replay(ledger.rules, nodes=nodes, pods=pods, quotas=objects.values())
    view = left.node(node)
    rooms = left.rooms(pod.namespace, pod.vendors)
    return view is not None and not isinstance(fit_pod(view, pod, left.rules, rooms), Misfit)


def _cost(entries: dict[str, Holder], book: PlainBook, victims: tuple[str, ...]) -> Cost:
    if not victims:
        return Cost()
    priorities = sorted((book.pods[uid].priority for uid in victims), reverse=True)
    return Cost(
        priorities[0],
        len(victims),
        tuple(priorities),
        tuple(sorted((-book.pods[uid].started for uid in victims), reverse=True)),
        sum(holding.use.memory for uid in victims for holding in entries[uid].holdings.values()),
    )
