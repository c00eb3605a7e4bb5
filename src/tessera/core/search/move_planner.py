"""One plan of moves in the making: for each copy of a pod the cheapest pods that leave, each with another place.

The cheapest pods are found whose leaving makes a copy fit (`node_victims`, with the number of pods first), and each
of them must find another place (`relocation`) beside the copy. Of all nodes the cheapest are tried first. Where no pod
finds a place directly, others may make room for it in turn (`DEPTH`). A pod moves at most once. The plan is made again
on copies by the plain rule before it is returned; the ledger, on which it is tried, is as before then.

Planning may pause at each yield, and relies on a ledger that only it changes: a copy of one that lives meanwhile.

A plan costs a bounded time: what it does is counted (`MAX_WORK`), and when that is used up, the plan has what was
found until then. Large clusters in which most pods find no other place get there.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Collection, Generator, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tessera.core.ledger.holders import move_hold_uid
from tessera.core.ledger.holdings import PodFacts
from tessera.core.ledger.ledger import facts_of
from tessera.core.ledger.transaction import Transaction
from tessera.core.model.grants import Placement
from tessera.core.model.requests import HostRequest, PodRequest
from tessera.core.search import Steps
from tessera.core.search.move_bounds import MoveBounds
from tessera.core.search.node_victims import NodeSearch, NodeVictims, Scratch
from tessera.core.search.relocation import NO_HOST, MovablePod, Move, Relocation, replay_moves
from tessera.core.search.selection import Candidates
from tessera.core.search.victims import Cost, PodBook, PodTraits

ANY_PRIORITY = 2**31
"""above every priority that an API can show"""
BARE_PRIORITY = ANY_PRIORITY - 1
"""that a bare pod counts with: it moves after all others"""
DEPTH = 2
"""how many pods may make room for each other one behind the other"""
MAX_TRIES = 64
"""nodes tried for one copy where pods make room in turn, the cheapest first; a tenth of it for those behind"""
MAX_WORK = 500_000
"""in units of about 10 microseconds: with what is not counted, 5 s for 5000 nodes with 8 cards"""
TARGET_WORK = 10
"""to find a target, and one more for every `NODES_OF_A_UNIT` nodes"""
NODES_OF_A_UNIT = 12
LOOK_WORK = 2
"""at one pod, for the order of nodes"""
SEARCH_WORK = 20
"""to search a node, beside what grows with its pods"""
TRY_WORK = 60
"""to try a set of pods, beside the targets"""
RECHECK_STEPS = 8
"""after which pods are looked at again that fitted nowhere else"""
NODES_AT_ONCE, PODS_AT_ONCE = 64, 2_048
"""looked at between two pauses: about 5 ms"""
NOT_MOVABLE = "is not moved"
NO_OTHER_PLACE = "fits nowhere else"


@dataclass(frozen=True, slots=True)
class Goal:
    """What is to fit."""

    request: PodRequest
    count: float = math.inf
    candidates: Candidates | None = None
    """None: all nodes"""
    host: HostRequest = NO_HOST


@dataclass(frozen=True, slots=True)
class DefragmentationPlan:
    """Steps to be made one after the other, and what they gain."""

    steps: tuple[tuple[Move, ...], ...] = ()
    """the pods of one step leave together: one pod, or a gang"""
    gained: tuple[PodFacts, ...] = ()
    """copies that fit afterwards, beside those that fit already"""
    fitting: int = 0
    """copies that fit as it is"""
    fitting_places: tuple[PodFacts, ...] = ()
    """of these copies; none if whole cards are the goal"""
    kept: tuple[tuple[str, int], ...] = ()
    """why pods stay, with their number, the most frequent first"""
    problem: str = ""
    """what did not fit when the plan was made again: then it has no steps"""
    is_cut_short: bool = False
    """it took too long to look at all ways"""

    @property
    def moves(self) -> int:
        return sum(len(step) for step in self.steps)


@dataclass(slots=True)
class _Queue:
    """Nodes for one request, the cheapest first: by a bound until a node was searched, then by its best set."""

    heap: list[tuple[Cost, str, int, NodeVictims | None]] = field(default_factory=list)
    """cost, node, version, and the set if the node was searched"""
    versions: dict[str, int] = field(default_factory=dict)
    """by node; entries of other versions are void"""
    spared: dict[str, set[str]] = field(default_factory=dict)
    """by node: pods that found no place together with the others of their set"""
    seen: int = -1
    """position in the log of the ledger's arrays"""


class _BookView:
    """A book with other traits of some pods."""

    def __init__(self, book: PodBook, change: Callable[[PodTraits], PodTraits]) -> None:
        self._book = book
        self._change = change

    @property
    def lowest_priority(self) -> int | None:
        return self._book.lowest_priority

    def traits(self, uid: str) -> PodTraits | None:
        traits = self._book.traits(uid)
        return None if traits is None else self._change(traits)

    def members(self, group: str) -> Collection[str]:
        return self._book.members(group)

    def match_budgets(self, uids: Iterable[str]) -> Generator[None, None, None]:
        return self._book.match_budgets(uids)

    def budgets(self, uid: str) -> tuple[str, ...]:
        return self._book.budgets(uid)

    def disruptions_allowed(self, budget: str) -> int:
        return self._book.disruptions_allowed(budget)


class Planner:
    """One plan in the making, on the ledger itself."""

    def __init__(
        self,
        transaction: Transaction,
        book: PodBook,
        pods: Mapping[str, MovablePod],
        *,
        max_moves: float,
        highest_priority: float = math.inf,
    ) -> None:
        """The transaction is not kept: a plan changes nothing. `highest_priority`: of pods that may move."""
        self.relocation = Relocation(transaction)
        self.transaction = transaction
        self.fitting = 0
        self.ledger = transaction.ledger
        bare = frozenset(uid for uid, pod in pods.items() if pod.is_bare)
        self.book: PodBook = book
        if bare:
            self.book = _BookView(book, lambda t: t._replace(priority=BARE_PRIORITY) if t.uid in bare else t)
        self.pods = pods
        self.max_moves = max_moves
        self._highest_priority = highest_priority
        self.steps: list[tuple[Move, ...]] = []
        self._gained: list[tuple[PodRequest, PodFacts]] = []
        self._placed: list[PodFacts] = []
        """copies that fit without any move"""
        self.settled: set[str] = set()
        """pods that have moved, or are about to"""
        self._homeless: dict[Hashable, int | None] = {}
        """kind of pod -> the number of steps after which it fitted nowhere; None: it had a place once"""
        self._queues: dict[Hashable, _Queue] = {}
        self._bounds = MoveBounds(self.ledger)
        self._work = 0

    @property
    def moves(self) -> int:
        return sum(len(step) for step in self.steps)

    @property
    def may_go_on(self) -> bool:
        """Whether more moves and more work are allowed."""
        return self.moves < self.max_moves and self._work < MAX_WORK

    def spend(self, work: int) -> None:
        self._work += work

    def finish(self) -> Steps[DefragmentationPlan]:
        """The plan, after it was made again on a copy. The ledger is as before by now."""
        nodes = {facts.node for _, facts in self._gained}
        leaving = [entry.uid for name in nodes for entry in self.ledger.pods_on(name) if self._is_leaving(entry.uid)]
        problem = replay_moves(self.ledger, self.steps, self.pods, self._gained, fitting=self._placed, leaving=leaving)
        kept: Counter[str] = Counter()
        for number, uid in enumerate(self.pods):
            reason = self._reason(uid)
            kept.update([reason] if reason else ())
            if number % PODS_AT_ONCE == 0:
                yield
        if problem:
            return DefragmentationPlan(fitting=self.fitting, kept=tuple(kept.most_common()), problem=problem)
        return DefragmentationPlan(
            tuple(self.steps),
            tuple(facts for _, facts in self._gained),
            self.fitting,
            tuple(self._placed),
            tuple(kept.most_common()),
            is_cut_short=self._work >= MAX_WORK,
        )

    def _is_leaving(self, uid: str) -> bool:
        traits = self.book.traits(uid)
        return traits is not None and traits.is_leaving

    def _reason(self, uid: str) -> str:
        traits = self.book.traits(uid)
        return "" if traits is None or uid in self.settled else traits.protection

    # -- copies

    def place_fitting(self, goal: Goal) -> Steps[None]:
        """Copies that need no move."""
        while self.fitting < goal.count:
            request = self._copy(goal)
            placement = self.relocation.find_target(request, goal.candidates, goal.host)
            if placement is None:
                return
            self._placed.append(facts_of(request, placement))
            self.relocation.put(self._placed[-1], goal.host)
            self.fitting += 1
            yield

    def run(self, goal: Goal, deepest: int) -> Steps[None]:
        """Copies that need moves, until there are no more of either."""
        for depth in range(deepest + 1):
            while self.fitting + len(self._gained) < goal.count and self.may_go_on:
                request = self._copy(goal)
                placement = self._find_target(request, goal.candidates, goal.host)
                if placement is not None:  # The moves for another copy have made room for this one, too.
                    self.relocation.put(facts_of(request, placement), goal.host)
                elif not (yield from self._make_room(request, goal.candidates, goal.host, depth)):
                    break
                entry = self.ledger.pod(request.uid)
                assert entry is not None  # room was made for it
                self._gained.append((request, entry.facts))

    def _find_target(self, request: PodRequest, candidates: Candidates | None, host: HostRequest) -> Placement | None:
        self.spend(TARGET_WORK + len(self.ledger.arrays.names) // NODES_OF_A_UNIT)
        return self.relocation.find_target(request, candidates, host)

    def _copy(self, goal: Goal) -> PodRequest:
        number = self.fitting + len(self._gained) + 1
        request = goal.request
        return request.called(uid=f"goal/{request.name}/{number}", namespace=request.namespace, name=request.name)

    # -- room for one pod

    def _make_room(
        self, request: PodRequest, candidates: Candidates | None, host: HostRequest, depth: int, *, inner: bool = False
    ) -> Steps[bool]:
        """Place the pod by moving others: those of one node, each with at most `depth` others behind it."""
        queue = yield from self._queue(request, candidates, depth, inner=inner)
        aside = []
        tries = math.inf if not depth and not inner else MAX_TRIES // 8 if inner else MAX_TRIES
        done = False
        while queue.heap and tries > 0 and not done and self._work < MAX_WORK:
            yield
            cost, node, version, found = entry = heapq.heappop(queue.heap)
            if version != queue.versions.get(node) or self.moves + max(cost.pods, 1) > self.max_moves:
                continue
            if found is None:
                found = self._search(request, node, queue, depth)
                if found is not None:
                    heapq.heappush(queue.heap, (found.cost, node, version, found))
                continue
            if not found.victims or (inner and found.leaving):
                continue  # It is enough to wait for pods that leave already; a move must not rely on them.
            tries -= 1
            stuck = yield from self._displace(request, host, found, depth)
            done = stuck is None
            if not done:
                queue.seen = self.ledger.arrays.now  # Everything is as it was.
            if stuck:
                queue.spared.setdefault(node, set()).add(stuck)
                heapq.heappush(queue.heap, (found.cost, node, version, None))
            elif not done:
                aside.append(entry)
        for entry in aside:
            heapq.heappush(queue.heap, entry)
        return done

    def _displace(self, request: PodRequest, host: HostRequest, found: NodeVictims, depth: int) -> Steps[str | None]:
        """Place the pod where the victims are, and these elsewhere. None: done; else nothing has changed, and it is the
        pod that finds no place, or empty."""
        transaction, steps = self.transaction, len(self.steps)
        mark = transaction.mark()
        self.spend(TRY_WORK)
        if self.settled.intersection(found.leaving):
            return ""
        transaction.nominate(facts_of(request, found.placement), frozenset((*found.victims, *found.leaving)))
        self.settled.update(found.victims)
        stuck = yield from self._place_all(found.victims, depth)
        transaction.withdraw(request.uid)
        if stuck is None:
            moves = tuple(self.move(uid) for uid in found.victims)
            self.steps += [moves] if self._is_gang(moves) else [(move,) for move in moves]
            if self.relocation.has_host_room(found.node, host) and self.moves <= self.max_moves:
                self.relocation.put(facts_of(request, found.placement), host)
                return None
            stuck = ""
        self.settled.difference_update(found.victims)
        del self.steps[steps:]
        transaction.roll_back(mark)
        return stuck

    def _place_all(self, uids: Iterable[str], depth: int) -> Steps[str | None]:
        """Hold a place for the successor of each; None, or the first that finds none."""
        for uid in sorted(uids, key=lambda uid: (-self._held(uid), uid)):
            pod = self.pods[uid]
            request = pod.request.called(uid=move_hold_uid(uid), namespace="", name=pod.request.name)
            placement = self._find_target(request, pod.candidates, pod.host)
            if placement is not None:
                self.relocation.put(facts_of(request, placement), pod.host)
                continue
            if not depth:
                return uid
            if not (yield from self._make_room(request, pod.candidates, pod.host, depth - 1, inner=True)):
                return uid
        return None

    def move(self, uid: str) -> Move:
        """The pod takes the place that is held for it."""
        old, held, pod = self.ledger.pod(uid), self.ledger.pod(move_hold_uid(uid)), self.pods[uid]
        assert old is not None  # it is a victim
        assert held is not None  # a place was found before
        source = old.facts
        target = held.facts._replace(uid=uid, namespace=source.namespace, name=source.name)
        self.relocation.remove(move_hold_uid(uid), pod.host)
        self.relocation.put(target, pod.host)
        return Move(uid, source, target)

    def _is_gang(self, moves: Iterable[Move]) -> bool:
        return any(traits.group for move in moves if (traits := self.book.traits(move.uid)) is not None)

    def _held(self, uid: str) -> int:
        entry = self.ledger.pod(uid)
        return 0 if entry is None else sum(holding.use.memory for holding in entry.holdings.values())

    # -- which pods of a node

    def _search(self, request: PodRequest, node: str, queue: _Queue, depth: int) -> NodeVictims | None:
        book = self._movers(queue.spared.get(node, ()), direct=not depth)
        scratch = Scratch(self.ledger, book)
        search = NodeSearch(scratch, book, request, priority=ANY_PRIORITY, node=node, fewest_first=True)
        found = search.run()
        self.spend(SEARCH_WORK + search.work)
        return found

    def _movers(self, spared: Collection[str], *, direct: bool) -> _BookView:
        """The book, in which what does not move is protected."""

        def protect(traits: PodTraits) -> PodTraits:
            if traits.protection:
                return traits
            reason = NO_OTHER_PLACE if traits.uid in spared else self.obstacle(traits.uid, direct=direct)
            return traits._replace(protection=reason) if reason else traits

        return _BookView(self.book, protect)

    def obstacle(self, uid: str, *, direct: bool) -> str:
        """Why a pod does not move; `direct`: without others that make room for it."""
        pod = self.pods.get(uid)
        if pod is None or uid in self.settled or pod.request.priority > self._highest_priority:
            return NOT_MOVABLE
        return NO_OTHER_PLACE if direct and self._is_homeless(pod) else ""

    def _is_homeless(self, pod: MovablePod) -> bool:
        """Whether pods like this one fit nowhere else now."""
        kind = (pod.request.shape, id(pod.candidates), pod.host)
        steps = self._homeless.get(kind, -RECHECK_STEPS)
        if steps is not None and len(self.steps) >= steps + RECHECK_STEPS:
            request = pod.request.called(uid=move_hold_uid(""), namespace="", name="")
            has_place = self._find_target(request, pod.candidates, pod.host) is not None
            steps = self._homeless[kind] = None if has_place else len(self.steps)
        return steps is not None

    # -- the order of nodes

    def _queue(self, request: PodRequest, candidates: Candidates | None, depth: int, *, inner: bool) -> Steps[_Queue]:
        """Up to date with the ledger."""
        arrays = self.ledger.arrays
        queue = self._queues.setdefault((request.shape, id(candidates), depth, inner), _Queue())
        changed = arrays.changed_since(queue.seen) if queue.seen >= 0 else None
        names: Sequence[str] = candidates.registered if candidates is not None else self.ledger.node_names()
        if changed is not None:
            touched = {arrays.names[row] for row in changed}
            names = [name for name in names if name in touched]
        queue.seen = arrays.now
        for number, name in enumerate(names, 1):
            if number % NODES_AT_ONCE == 0:
                yield
            if not depth:
                yield from self._judge_kinds(name)
            queue.versions[name] = queue.versions.get(name, 0) + 1
            queue.spared.pop(name, None)
            bound = self._bounds.bound(request, name, lambda uid: self._mover(uid, direct=not depth))
            if bound is not None:
                heapq.heappush(queue.heap, (bound, name, queue.versions[name], None))
        return queue

    def _judge_kinds(self, node: str) -> Steps[None]:
        """Find out between other work which kinds of its pods fit elsewhere: each takes some milliseconds, once."""
        for entry in self.ledger.pods_on(node):
            pod = self.pods.get(entry.uid)
            if pod is not None and (pod.request.shape, id(pod.candidates), pod.host) not in self._homeless:
                self._mover(entry.uid, direct=True)
                yield

    def _mover(self, uid: str, *, direct: bool) -> PodTraits | None:
        """The traits of a pod that may move, or leaves already."""
        self.spend(LOOK_WORK)
        traits = self.book.traits(uid)
        if traits is None or traits.is_leaving:
            return traits
        return None if traits.protection or self.obstacle(uid, direct=direct) else traits
