"""Which pods to move so that others fit: whole cards, or copies of one pod.

For each further copy the cheapest pods are found whose leaving makes it fit (`node_preemption`, with the number of pods
first), and each of them must find another place (`relocation`) beside the copy. Of all nodes the cheapest are tried
first. Where no pod finds a place directly, others may make room for it in turn (`DEPTH`). A pod moves at most once.
Every plan is made again on copies by the plain rule before it is returned; the ledger is as before.

To move a pod means to evict it, so the same pods are left alone as in preemption: protected ones, those whose budget
allows nothing, and gangs of which one may not move. Priorities do not forbid a move; they decide between equal numbers.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tessera.core.devices import MIG, Device, MigSlot
from tessera.core.grants import Grant
from tessera.core.holdings import PodFacts
from tessera.core.ledger import Ledger, facts_of
from tessera.core.node_preemption import NodeSearch
from tessera.core.relocation import NO_HOST, MovablePod, Move, Trial, hold_uid, pin, replay_moves
from tessera.core.requests import WHOLE_CARD_CORES, Constraint, ContainerRequest, HostRequest, PodRequest, Request
from tessera.core.selection import Candidates
from tessera.core.small_cluster import SmallCluster, is_known
from tessera.core.victims import NO_PRIORITY, Cost, PodBook, PodTraits, VictimSet

ANY_PRIORITY = 2**31
"""above every priority that an API can show"""
DEPTH = 2
"""how many pods may make room for each other one behind the other"""
MOST_TRIES = 64
"""nodes tried for one copy where pods make room in turn, the cheapest first; a tenth of it for those behind"""
WINDOW = 8
"""cards that are looked at together with one that is to be emptied"""
MOST_WORK = 300_000
"""nodes looked at, after which no pods make room in turn: some seconds"""
SEARCH_WORK = 10
"""times as long as a look at a node takes a search on it"""
RECHECK_STEPS = 8
"""after which pods are looked at again that fitted nowhere else"""
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
    kept: tuple[tuple[str, int], ...] = ()
    """why pods stay, with their number, the most frequent first"""
    problem: str = ""
    """what did not fit when the plan was made again: then it has no steps"""

    @property
    def moves(self) -> int:
        return sum(len(step) for step in self.steps)


def plan_whole_cards(
    ledger: Ledger,
    book: PodBook,
    pods: Mapping[str, MovablePod],
    *,
    most_moves: float = math.inf,
    depth: int = DEPTH,
) -> DefragmentationPlan:
    """As many cards as possible without any pod, by the fewest moves. A pod moves to a card that no pod uses only where
    that empties two others, and only an exact search finds that."""
    planner = _Planner(ledger, book, pods, most_moves=most_moves)
    with planner.trial.on_ledger():
        planner.take_idle_cards()
        planner.pack_cards()
        goals = [Goal(request) for request in _whole_cards(ledger)]
        for goal in goals:
            planner.run(goal, 0)
        if depth:
            planner.pack_windows()
        for goal in goals:
            planner.run(goal, depth)
    return planner.finish()


def _whole_cards(ledger: Ledger) -> list[PodRequest]:
    """One for each vendor, and one for each kind of card in MIG mode, whose largest instance is less than all of it."""
    found: dict[str, PodRequest] = {}
    for kind in ledger.arrays.kinds:
        vendor, sample = kind.vendor, kind.sample
        largest = max((each.memory for each in sample.mig_profiles), default=0) if sample.mode == MIG else 0
        name, constraint = f"whole {vendor} card", None
        asked = Request(vendor, count=1, percent=100, cores=WHOLE_CARD_CORES)
        if sample.mode == MIG:
            name = f"{name}, {sample.model} with {largest} MiB"
            asked = replace(asked, percent=0, memory=largest)
            constraint = Constraint(mode=MIG, use_models=(sample.model.lower(),))
        if vendor in ledger.rules and asked.memory_on(1):
            constraints = () if constraint is None else ((vendor, constraint),)
            found[name] = PodRequest("", "", name, (ContainerRequest("main", requests=(asked,)),), constraints)
    return [found[name] for name in sorted(found)]


def plan_room(
    ledger: Ledger,
    book: PodBook,
    pods: Mapping[str, MovablePod],
    goal: Goal,
    *,
    most_moves: float = math.inf,
    depth: int = DEPTH,
) -> DefragmentationPlan:
    """Room for the goal's copies, as many as possible. Those that fit already need no move."""
    planner = _Planner(ledger, book, pods, most_moves=most_moves)
    with planner.trial.on_ledger():
        planner.place_fitting(goal)
        planner.run(goal, depth)
    return planner.finish()


def _largest_instance(device: Device) -> MigSlot | None:
    """Of a card in MIG mode: with it no other fits on the card."""
    slots = [MigSlot(profile.name, place) for profile in device.mig_profiles for place in profile.placements]
    return max(slots, key=lambda slot: slot.placement.size, default=None) if device.mode == MIG else None


class _SharedCard(NamedTuple):
    node: str
    pods: int
    used: int
    """MiB"""
    free: int
    """MiB"""


@dataclass(slots=True)
class _Queue:
    """Nodes for one request, the cheapest first: by a bound until a node was searched, then by its best set."""

    heap: list[tuple[Cost, str, int, VictimSet | None]] = field(default_factory=list)
    """cost, node, version, and the set if the node was searched"""
    versions: dict[str, int] = field(default_factory=dict)
    """by node; entries of other versions are void"""
    spared: dict[str, set[str]] = field(default_factory=dict)
    """by node: pods that found no place together with the others of their set"""
    seen: int = -1
    """position in the log of the ledger's arrays"""


class _MoveBook:
    """A book in which every pod is protected that cannot move now."""

    def __init__(self, book: PodBook, obstacle: Callable[[str], str]) -> None:
        self._book = book
        self._obstacle = obstacle

    @property
    def lowest_priority(self) -> int | None:
        return self._book.lowest_priority

    def traits(self, uid: str) -> PodTraits | None:
        traits = self._book.traits(uid)
        if traits is None or traits.protection:
            return traits
        reason = self._obstacle(uid)
        return traits._replace(protection=reason) if reason else traits

    def members(self, group: str) -> Collection[str]:
        return self._book.members(group)

    def budgets(self, uid: str) -> tuple[str, ...]:
        return self._book.budgets(uid)

    def disruptions_allowed(self, budget: str) -> int:
        return self._book.disruptions_allowed(budget)


class _Planner:
    """One plan in the making, on the ledger itself."""

    def __init__(self, ledger: Ledger, book: PodBook, pods: Mapping[str, MovablePod], *, most_moves: float) -> None:
        self.trial = Trial(ledger)
        self.fitting = 0
        self._ledger = ledger
        self._book = book
        self._pods = pods
        self._most_moves = most_moves
        self._steps: list[tuple[Move, ...]] = []
        self._gained: list[tuple[PodRequest, PodFacts]] = []
        self._placed: list[PodFacts] = []
        """copies that fit without any move"""
        self._settled: set[str] = set()
        """pods that have moved, or are about to"""
        self._homeless: dict[Hashable, int | None] = {}
        """kind of pod -> the number of steps after which it fitted nowhere; None: it had a place once"""
        self._idle: dict[str, str] = {}
        """uuids of cards that no pod uses, and the uids of what stands for it"""
        self._queues: dict[Hashable, _Queue] = {}
        self._work = 0
        """nodes looked at; a search counts as `SEARCH_WORK`"""

    @property
    def moves(self) -> int:
        return sum(len(step) for step in self._steps)

    def finish(self) -> DefragmentationPlan:
        """The plan, after it was made again on a copy. The ledger is as before by now."""
        leaving = [entry.facts.uid for entry in self._ledger.pods() if self._is_leaving(entry.facts.uid)]
        problem = replay_moves(
            self._ledger, self._steps, self._pods, self._gained, fitting=self._placed, leaving=leaving
        )
        kept = Counter(reason for uid in self._pods if (reason := self._reason(uid)))
        if problem:
            return DefragmentationPlan(fitting=self.fitting, kept=tuple(kept.most_common()), problem=problem)
        return DefragmentationPlan(
            tuple(self._steps), tuple(facts for _, facts in self._gained), self.fitting, tuple(kept.most_common())
        )

    def _is_leaving(self, uid: str) -> bool:
        traits = self._book.traits(uid)
        return traits is not None and traits.is_leaving

    def _reason(self, uid: str) -> str:
        traits = self._book.traits(uid)
        return "" if traits is None or uid in self._settled else traits.protection

    # -- whole cards

    def take_idle_cards(self) -> None:
        """Put a pod on each card that no pod uses and that would take one: no other pod moves there."""
        for name in self._ledger.node_names():
            self.fitting += self._take_idle_cards(name)

    def _take_idle_cards(self, name: str, *, most: float = math.inf) -> int:
        """How many of the node it took."""
        view, taken = self._ledger.node(name), 0
        for card in view.cards if view is not None and not view.facts.problem else ():
            device = card.device
            if taken < most and not card.used and not card.cordoned and not card.held and device.healthy:
                whole = Grant(
                    device.uuid,
                    device.vendor,
                    device.memory,
                    device.cores,
                    device.index,
                    slots=device.slots,
                    mig=_largest_instance(device),
                )
                uid = f"idle/{name}/{device.uuid}"
                self._idle[device.uuid] = uid
                self.trial.put(PodFacts(uid, "", uid, name, grants={device.vendor: ((whole,),)}))
                taken += 1
        return taken

    def pack_cards(self) -> None:
        """Make the moves that empty the most cards, if there are few enough to know them all."""
        small = SmallCluster(self._ledger, self._pods, idle=frozenset(self._idle.values()))
        for name in self._ledger.node_names():
            self._collect(small, name)
            if small.is_too_large:
                return
        self._make(small)

    def pack_windows(self) -> None:
        """Empty single cards, each together with those that have the most room: exact for so few."""
        shared = self._shared_cards() if self.moves < self._most_moves else {}
        for uuid in sorted(shared, key=lambda uuid: (shared[uuid].pods, shared[uuid].used, uuid))[:MOST_TRIES]:
            if uuid not in shared:
                continue  # An earlier window has emptied it, or moved what could move.
            others = sorted(shared, key=lambda other: (-shared[other].free, other))
            cards = {uuid: shared[uuid].node} | {other: shared[other].node for other in others[:WINDOW]}
            small = SmallCluster(self._ledger, self._pods, cards=cards, only=uuid)
            for name in sorted(set(cards.values())):
                self._collect(small, name)
            if self._make(small):
                shared = self._shared_cards()

    def _shared_cards(self) -> dict[str, _SharedCard]:
        """Cards with pods of which at least one may move."""
        found: dict[str, _SharedCard] = {}
        for name in self._ledger.node_names():
            view = self._ledger.node(name)
            for card in view.cards if view is not None else ():
                tenants = [tenant.uid for tenant in card.tenants] if is_known(self._ledger, card) else []
                if any(not self._obstacle(uid, direct=False) for uid in tenants) and card.free_memory > 0:
                    found[card.device.uuid] = _SharedCard(name, len(tenants), card.used_memory, card.free_memory)
        return found

    def _collect(self, small: SmallCluster, name: str) -> None:
        search = self._node_search(PodRequest("", "", "", ()), name, ())
        for entry in self._ledger.pods_on(name):
            traits = self._book.traits(entry.facts.uid)
            if traits is not None and not traits.group and not search.obstacle(entry):
                small.add(entry, (traits.priority, -traits.started))

    def _make(self, small: SmallCluster) -> bool:
        """Whether all its moves could be made, and there are some; else nothing has changed."""
        mark, steps = self.trial.mark(), len(self._steps)
        moves = small.moves(most_moves=self._most_moves - self.moves)
        used = self._idle.keys() & {move.uuid for move in moves}
        for uuid in used:
            self.trial.remove(self._idle[uuid])
        for uid, node, uuid, slot in moves:
            pod = self._pods[uid]
            request = pod.request.called(uid=hold_uid(uid), namespace="", name=pod.request.name)
            request = pin(request, (uuid,), () if slot is None else ((uuid, slot),))
            placement = self.trial.place_on(request, node) if self.trial.has_host_room(node, pod.host) else None
            if placement is None:
                self._settled.difference_update(move.uid for step in self._steps[steps:] for move in step)
                del self._steps[steps:]
                self.trial.undo(mark)
                return False
            self.trial.put(facts_of(request, placement), pod.host)
            self._settled.add(uid)
            self._steps.append((self._move(uid),))
        left = len(used)  # As many of the cards that were emptied are no gain.
        for name in sorted({move.source.node for step in self._steps[steps:] for move in step}):
            left -= self._take_idle_cards(name, most=left)
        return bool(moves)

    # -- copies

    def place_fitting(self, goal: Goal) -> None:
        """Copies that need no move."""
        while self.fitting < goal.count:
            request = self._copy(goal)
            placement = self.trial.find_target(request, goal.candidates, goal.host)
            if placement is None:
                return
            self._placed.append(facts_of(request, placement))
            self.trial.put(self._placed[-1], goal.host)
            self.fitting += 1

    def run(self, goal: Goal, deepest: int) -> None:
        """Copies that need moves, until there are no more of either."""
        for depth in range(deepest + 1):
            while self.fitting + len(self._gained) < goal.count and self.moves < self._most_moves:
                request = self._copy(goal)
                placement = self.trial.find_target(request, goal.candidates, goal.host)
                if placement is not None:  # The moves for another copy have made room for this one, too.
                    self.trial.put(facts_of(request, placement), goal.host)
                elif not self._make_room(request, goal.candidates, goal.host, depth):
                    break
                entry = self._ledger.pod(request.uid)
                assert entry is not None  # room was made for it
                self._gained.append((request, entry.facts))

    def _copy(self, goal: Goal) -> PodRequest:
        number = self.fitting + len(self._gained) + 1
        request = goal.request
        return request.called(uid=f"goal/{request.name}/{number}", namespace=request.namespace, name=request.name)

    # -- room for one pod

    def _make_room(
        self, request: PodRequest, candidates: Candidates | None, host: HostRequest, depth: int, *, inner: bool = False
    ) -> bool:
        """Place the pod by moving others: those of one node, each with at most `depth` others behind it."""
        queue = self._queue(request, candidates, depth, inner=inner)
        aside = []
        tries = math.inf if not depth and not inner else MOST_TRIES // 8 if inner else MOST_TRIES
        done = False
        while queue.heap and tries > 0 and not done:
            cost, node, version, found = entry = heapq.heappop(queue.heap)
            if version != queue.versions.get(node) or self.moves + max(cost.pods, 1) > self._most_moves:
                continue
            if found is None:
                found = self._search(request, node, queue, depth)
                if found is not None:
                    heapq.heappush(queue.heap, (found.cost, node, version, found))
                continue
            if not found.victims or (inner and found.leaving):
                continue  # It is enough to wait for pods that leave already; a move must not rely on them.
            tries -= 1
            stuck = self._displace(request, host, found, depth)
            done = stuck is None
            if not done:
                queue.seen = self._ledger.arrays.now  # Everything is as it was.
            if stuck:
                queue.spared.setdefault(node, set()).add(stuck)
                heapq.heappush(queue.heap, (found.cost, node, version, None))
            elif not done:
                aside.append(entry)
        for entry in aside:
            heapq.heappush(queue.heap, entry)
        return done

    def _displace(self, request: PodRequest, host: HostRequest, found: VictimSet, depth: int) -> str | None:
        """Place the pod where the victims are, and these elsewhere. None: done; else nothing has changed, and it is the
        pod that finds no place, or empty."""
        ledger, mark, steps = self._ledger, self.trial.mark(), len(self._steps)
        if self._settled.intersection(found.leaving):
            return ""
        ledger.nominate(facts_of(request, found.placement), frozenset((*found.victims, *found.leaving)))
        self._settled.update(found.victims)
        stuck = self._place_all(found.victims, depth)
        ledger.withdraw(request.uid)
        if stuck is None:
            moves = tuple(self._move(uid) for uid in found.victims)
            self._steps += [moves] if self._is_gang(moves) else [(move,) for move in moves]
            if self.trial.has_host_room(found.node, host) and self.moves <= self._most_moves:
                self.trial.put(facts_of(request, found.placement), host)
                return None
            stuck = ""
        self._settled.difference_update(found.victims)
        del self._steps[steps:]
        self.trial.undo(mark)
        return stuck

    def _place_all(self, uids: Iterable[str], depth: int) -> str | None:
        """Hold a place for the successor of each; None, or the first that finds none."""
        for uid in sorted(uids, key=lambda uid: (-self._held(uid), uid)):
            pod = self._pods[uid]
            request = pod.request.called(uid=hold_uid(uid), namespace="", name=pod.request.name)
            placement = self.trial.find_target(request, pod.candidates, pod.host)
            if placement is not None:
                self.trial.put(facts_of(request, placement), pod.host)
                continue
            may_push = depth > 0 and self._work <= MOST_WORK
            if not may_push or not self._make_room(request, pod.candidates, pod.host, depth - 1, inner=True):
                return uid
        return None

    def _move(self, uid: str) -> Move:
        """The pod takes the place that is held for it."""
        old, held, pod = self._ledger.pod(uid), self._ledger.pod(hold_uid(uid)), self._pods[uid]
        assert old is not None  # it is a victim
        assert held is not None  # a place was found before
        source = old.facts
        target = held.facts._replace(uid=uid, namespace=source.namespace, name=source.name)
        self.trial.release(hold_uid(uid), pod.host)
        self.trial.put(target, pod.host)
        return Move(uid, source, target)

    def _is_gang(self, moves: Iterable[Move]) -> bool:
        return any(traits.group for move in moves if (traits := self._book.traits(move.uid)) is not None)

    def _held(self, uid: str) -> int:
        entry = self._ledger.pod(uid)
        return 0 if entry is None else sum(holding.use.memory for holding in entry.holdings.values())

    # -- which pods of a node

    def _search(self, request: PodRequest, node: str, queue: _Queue, depth: int) -> VictimSet | None:
        self._work += SEARCH_WORK
        return self._node_search(request, node, queue.spared.get(node, ()), direct=not depth).run()

    def _node_search(
        self, request: PodRequest, node: str, spared: Collection[str], *, direct: bool = False
    ) -> NodeSearch:
        book = _MoveBook(
            self._book, lambda uid: NO_OTHER_PLACE if uid in spared else self._obstacle(uid, direct=direct)
        )
        return NodeSearch(self._ledger, book, request, priority=ANY_PRIORITY, node=node, fewest_first=True)

    def _obstacle(self, uid: str, *, direct: bool) -> str:
        """Why a pod does not move; `direct`: without others that make room for it."""
        pod = self._pods.get(uid)
        if pod is None or uid in self._settled:
            return NOT_MOVABLE
        return NO_OTHER_PLACE if direct and self._is_homeless(pod) else ""

    def _is_homeless(self, pod: MovablePod) -> bool:
        """Whether pods like this one fit nowhere else now."""
        kind = (pod.request.shape, id(pod.candidates), pod.host)
        steps = self._homeless.get(kind, -RECHECK_STEPS)
        if steps is not None and len(self._steps) >= steps + RECHECK_STEPS:
            request = pod.request.called(uid=hold_uid(""), namespace="", name="")
            has_place = self.trial.find_target(request, pod.candidates, pod.host) is not None
            steps = self._homeless[kind] = None if has_place else len(self._steps)
        return steps is not None

    # -- the order of nodes

    def _queue(self, request: PodRequest, candidates: Candidates | None, depth: int, *, inner: bool) -> _Queue:
        """Up to date with the ledger."""
        arrays = self._ledger.arrays
        queue = self._queues.setdefault((request.shape, id(candidates), depth, inner), _Queue())
        changed = arrays.changed_since(queue.seen) if queue.seen >= 0 else None
        names: Sequence[str] = candidates.registered if candidates is not None else self._ledger.node_names()
        if changed is not None:
            touched = {arrays.names[row] for row in changed}
            names = [name for name in names if name in touched]
        queue.seen = arrays.now
        self._work += len(names)
        for name in names:
            queue.versions[name] = queue.versions.get(name, 0) + 1
            queue.spared.pop(name, None)
            bound = self._bound(request, name, direct=not depth)
            if bound is not None:
                heapq.heappush(queue.heap, (bound, name, queue.versions[name], None))
        return queue

    def _bound(self, request: PodRequest, node: str, *, direct: bool) -> Cost | None:
        """What evicting pods of the node costs at least; None if none of them may move."""
        asked = request.requests[0][1]
        is_exclusive = len(request.requests) == 1 and asked.cores >= WHOLE_CARD_CORES
        by_card: dict[str, list[tuple[int, int]]] = {}
        stays: set[str] = set()
        cheapest: Cost | None = None
        spans_cards = False
        for entry in self._ledger.pods_on(node):
            uid = entry.facts.uid
            traits = self._book.traits(uid)
            if traits is None or traits.protection or self._obstacle(uid, direct=direct):
                stays.update(entry.holdings)
                continue
            cost = Cost(NO_PRIORITY, 1, (traits.priority,), (-traits.started,))
            cheapest = cost if cheapest is None or cost < cheapest else cheapest
            spans_cards = spans_cards or len(entry.holdings) > 1
            for uuid in entry.holdings:
                by_card.setdefault(uuid, []).append((traits.priority, -traits.started))
        if not is_exclusive:
            return cheapest
        costs = sorted(_card_cost(tenants) for uuid, tenants in by_card.items() if uuid not in stays)
        idle = len(self._ledger.devices(node)) - len(by_card.keys() | stays)
        missing = max(asked.count - idle, 1)
        if missing > len(costs):
            return None
        if missing == 1 or spans_cards:
            return costs[0]
        return Cost(NO_PRIORITY, sum(cost.pods for cost in costs[:missing]))


def _card_cost(tenants: list[tuple[int, int]]) -> Cost:
    """Of moving all these pods, without the work lost."""
    priorities = tuple(sorted((priority for priority, _ in tenants), reverse=True))
    return Cost(NO_PRIORITY, len(tenants), priorities, tuple(sorted((age for _, age in tenants), reverse=True)))
