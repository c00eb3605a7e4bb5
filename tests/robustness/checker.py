"""Judges a history. A pure function; it uses none of Tessera's rules, and it has no excuses.

    over-allocated    at some revision the live pods hold more of a card than it has, or share a card that is one pod's
    wrong grant       a pod was granted something else than it asked for, or cards of another node
    undecided         a pod has a grant without a filter answer, a bind call and a Binding of a replica that say so
    bound twice       a pod changed its node or its grant after it was bound
    not runnable      a pod that fits no empty node was bound
    not bound         a pod that could run was not bound within `BOUND_S`, while no fault happened
    failed            an agent of Tessera could not hand a pod over
    wrong slice       a container sees something else than its pod was granted
    not at rest       with nothing under way, the leader's count of a card differs from the pods that hold it, or it
                      still holds something for a pod or a gang that does not come

`decision_checker` judges what replicas sent for gangs and for preemptors. A gang that is not begun could run if there
is room for all the members that it needs at the same time.

A pod holds its grants from the revision that binds it to the revision that shows its end or removes it. What it holds
of a card is the larger of all app containers together and each init container alone that has not ended.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tests.robustness.decision_checker import DecisionChecker
from tests.robustness.history import (
    Ask,
    BindCalled,
    CalmBegan,
    Card,
    Event,
    EventSeen,
    FaultBegan,
    FaultEnded,
    FilterAnswered,
    LeaseShown,
    NodeShown,
    PodGone,
    PodShown,
    RestReached,
    RunEnded,
    StormBegan,
    WriteSent,
)

BOUND_S = 150.0
"""for a pod that could run, once no fault happens: a watch that is silent is replaced within 120 s, what only time ends
is looked at every 15 s, and kube-scheduler waits up to 10 s before it asks again"""
WHOLE = 100
"""cores: the card is not shared"""
ENDED = ("Succeeded", "Failed")
EXCERPT_LINES = 60
FRAME = (FaultBegan, FaultEnded, LeaseShown, StormBegan, CalmBegan)
"""events that say what happened around a pod"""

Grant = tuple[str, int, int]
"""uuid, MiB, cores"""
Use = tuple[int, int, int]
"""slots, MiB, cores"""


@dataclass(frozen=True)
class Violation:
    kind: str
    text: str
    at: float
    uids: tuple[str, ...] = ()
    """the pods that it is about"""


def parse_grants(text: str) -> list[list[Grant]]:
    """By container. The text is written as HAMi documents it: `uuid,type,MiB,cores:` per card, `;` per container."""
    found: list[list[Grant]] = []
    for container in text.split(";")[:-1]:
        cards = [piece.split(",") for piece in container.split(":") if piece]
        found.append([(uuid, int(memory), int(cores)) for uuid, _type, memory, cores in cards])
    return found


def use_of(pod: PodShown) -> dict[str, Use]:
    """What a pod holds of each card."""
    app: Counter[tuple[str, int]] = Counter()
    most: Counter[tuple[str, int]] = Counter()
    for position, grants in enumerate(parse_grants(pod.grants)):
        if position in pod.ended:
            continue
        is_init = position < len(pod.asks) and pod.asks[position].is_init
        alone: Counter[tuple[str, int]] = Counter()
        target = alone if is_init else app
        for uuid, memory, cores in grants:
            for index, amount in enumerate((1, memory, cores)):
                target[uuid, index] += amount
        most |= alone
    most |= app
    uuids = sorted({uuid for uuid, _ in most})
    return {uuid: (most[uuid, 0], most[uuid, 1], most[uuid, 2]) for uuid in uuids}


def check(history: Iterable[Event]) -> list[Violation]:
    checker = Checker()
    for event in history:
        checker.take(event)
    return checker.violations


@dataclass
class Checker:
    """Takes one event after the other."""

    violations: list[Violation] = field(default_factory=list)
    _nodes: dict[str, NodeShown] = field(default_factory=dict)
    _pods: dict[str, PodShown] = field(default_factory=dict)
    """all that exist, by uid"""
    _held: defaultdict[str, dict[str, Use]] = field(default_factory=lambda: defaultdict(dict))
    """card -> pod -> what it holds"""
    _filtered: set[tuple[str, str]] = field(default_factory=set)
    _called: set[tuple[str, str]] = field(default_factory=set)
    _written: set[tuple[str, str, str]] = field(default_factory=set)
    _is_calm: bool = False
    _could_run_since: dict[str, float] = field(default_factory=dict)
    """pods that are not bound, since when they would fit without a break"""
    _reported: set[str] = field(default_factory=set)
    """pods that are late"""

    def __post_init__(self) -> None:
        self._decisions = DecisionChecker(self._report)

    def take(self, event: Event) -> None:
        self._decisions.take(event)
        match event:
            case NodeShown():
                self._nodes[event.name] = event
            case PodShown():
                self._on_pod(event)
            case PodGone():
                self._pods.pop(event.uid, None)
                self._release(event.uid)
            case FilterAnswered():
                self._filtered.update((event.uid, node) for node in event.nodes)
            case BindCalled():
                self._called.add((event.uid, event.node))
            case WriteSent():
                self._written.add((event.uid, event.node, event.grants))
            case StormBegan():
                self._is_calm = False
                self._could_run_since.clear()
            case CalmBegan():
                self._is_calm = True
            case RestReached():
                self._on_rest(event)
            case _:
                pass
        if self._is_calm and isinstance(event, PodShown | PodGone | CalmBegan | RestReached | RunEnded):
            self._look_for_late_pods(event.at)

    def _report(self, kind: str, text: str, at: float, *uids: str) -> None:
        self.violations.append(Violation(kind, text, at, uids))

    # -- safety

    def _on_pod(self, pod: PodShown) -> None:
        before = self._pods.get(pod.uid)
        self._pods[pod.uid] = pod
        if not pod.node:
            return
        if before is not None and before.node and (before.node, before.grants) != (pod.node, pod.grants):
            text = f"{pod.key} was on {before.node} with {before.grants}, and is on {pod.node} with {pod.grants}"
            self._report("bound twice", text, pod.at, pod.uid)
        if before is None or not before.node:
            self._on_bound(pod)
        if pod.phase in ENDED:
            self._release(pod.uid)
            self._on_ended(pod, before)
            return
        use_by_card = use_of(pod)
        for uuid in [uuid for uuid, holders in self._held.items() if pod.uid in holders and uuid not in use_by_card]:
            del self._held[uuid][pod.uid]
        for uuid, use in use_by_card.items():
            is_new = pod.uid not in self._held[uuid]
            self._held[uuid][pod.uid] = use
            if is_new and (excess := self._excess(uuid)):
                holders = self._held[uuid]
                names = ", ".join(f"{self._pods[uid].key} {use}" for uid, use in holders.items())
                self._report("over-allocated", f"card {uuid}: {excess}; held by {names}", pod.at, *holders)

    def _on_bound(self, pod: PodShown) -> None:
        if not any(ask.count for ask in pod.asks):
            return
        if problem := self._wrong_grant(pod):
            self._report("wrong grant", f"{pod.key}: {problem}", pod.at, pod.uid)
        if not self._fits_anywhere(pod.asks, {}):
            self._report("not runnable", f"{pod.key} fits no node, and is on {pod.node}", pod.at, pod.uid)
        missing = [
            what
            for what, is_there in (
                ("a filter answer", (pod.uid, pod.node) in self._filtered),
                ("a bind call", (pod.uid, pod.node) in self._called),
                ("a Binding", (pod.uid, pod.node, pod.grants) in self._written),
            )
            if not is_there
        ]
        if missing:
            text = f"{pod.key} is on {pod.node} with {pod.grants or 'no grant'} without {' and without '.join(missing)}"
            self._report("undecided", text, pod.at, pod.uid)

    def _on_ended(self, pod: PodShown, before: PodShown | None) -> None:
        node = self._nodes.get(pod.node)
        is_new = before is None or before.phase not in ENDED
        if pod.phase == "Failed" and is_new and (node is None or not node.is_hami):
            self._report("failed", f"{pod.key} on {pod.node}: {pod.message}", pod.at, pod.uid)

    def _release(self, uid: str) -> None:
        for holders in self._held.values():
            holders.pop(uid, None)

    def _wrong_grant(self, pod: PodShown) -> str:
        node = self._nodes.get(pod.node)
        if node is None:
            return f"there is no node {pod.node}"
        granted = parse_grants(pod.grants)
        for position, ask in enumerate(pod.asks):
            grants = granted[position] if position < len(granted) else []
            uuids = {uuid for uuid, _, _ in grants}
            if not uuids <= node.cards.keys():
                return f"{pod.node} has no cards {sorted(uuids - node.cards.keys())}"
            expected = [
                (node.cards[uuid].memory if ask.memory is None else ask.memory, ask.cores) for uuid, _, _ in grants
            ]
            found = [(memory, cores) for _, memory, cores in grants]
            if len(uuids) != ask.count or len(grants) != ask.count or found != expected:
                return f"container {position} asked for {ask}, and was granted {grants}"
        return ""

    def _excess(self, uuid: str) -> str:
        """What exceeds the card; empty if nothing does."""
        card = next((node.cards[uuid] for node in self._nodes.values() if uuid in node.cards), None)
        if card is None:
            return "no node has it"
        holders = self._held[uuid].values()
        for index, (what, there) in enumerate((("slots", card.slots), ("MiB", card.memory), ("cores", card.cores))):
            used = sum(use[index] for use in holders)
            if used > there:
                return f"{used} of {there} {what}"
        if len(holders) > 1 and any(cores >= WHOLE for _, _, cores in holders):
            return f"{len(holders)} pods share it, and one of them has all its cores"
        return ""

    # -- liveness

    def _fits_anywhere(self, asks: Sequence[Ask], held: Mapping[str, Mapping[str, Use]]) -> bool:
        return any(fits(asks, node.cards, held) for node in self._nodes.values())

    def _fit_together(self, members: Sequence[PodShown]) -> bool:
        """Whether there is room for all of them, one after the other on the first node that has it."""
        taken: defaultdict[str, dict[str, Use]] = defaultdict(dict)
        for uuid, holders in self._held.items():
            taken[uuid] = dict(holders)
        for pod in members:
            node = next((node for node in self._nodes.values() if fits(pod.asks, node.cards, taken)), None)
            if node is None:
                return False
            occupy(pod, node.cards, taken)
        return True

    def _look_for_late_pods(self, now: float) -> None:
        """Since the last event nothing has changed: a pod that could run then could run until now."""
        for uid, since in self._could_run_since.items():
            if now - since > BOUND_S and uid not in self._reported:
                self._reported.add(uid)
                text = f"{self._key(uid)} could run since {since:.1f}, and was not bound at {now:.1f}"
                self._report("not bound", text, now, uid)
        alone, gangs = split_gangs(self._pods.values())
        waiting = {pod.uid for pod in alone if self._fits_anywhere(pod.asks, self._held)}
        for members in gangs:
            if self._fit_together(members):
                waiting.update(pod.uid for pod in members)
        self._could_run_since = {uid: self._could_run_since.get(uid, now) for uid in sorted(waiting)}

    def _key(self, uid: str) -> str:
        pod = self._pods.get(uid)
        return pod.key if pod is not None else uid

    def _on_rest(self, rest: RestReached) -> None:
        for text in rest.wrong_slices:
            self._report("wrong slice", text, rest.at)
        for node in self._nodes.values():
            for uuid in node.cards:
                shown = tuple(sum(use[index] for use in self._held[uuid].values()) for index in range(3))
                known = rest.use.get(uuid)
                if known != shown:
                    text = f"card {uuid}: {rest.replica} counts {known}, the API shows {shown}"
                    self._report("not at rest", text, rest.at, *self._held[uuid])
        for what, number in (("nominations", rest.nominations), ("planned gangs", rest.planned_gangs)):
            if number:
                self._report("not at rest", f"{rest.replica} has {number} {what}", rest.at)


def split_gangs(pods: Iterable[PodShown]) -> tuple[list[PodShown], list[list[PodShown]]]:
    """The pods that wait: those that are bound alone, and the members of each gang that is complete and not begun.
    What gangs wait for that are not complete does not exist."""
    alone: list[PodShown] = []
    gangs: defaultdict[str, list[PodShown]] = defaultdict(list)
    pods = [pod for pod in pods if pod.phase not in ENDED]
    begun = {pod.gang.name for pod in pods if pod.gang is not None and pod.node}
    for pod in pods:
        if pod.node or pod.is_leaving:
            continue
        if pod.gang is None or pod.gang.name in begun:
            alone.append(pod)
        else:
            gangs[pod.gang.name].append(pod)
    return alone, [members for members in gangs.values() if len(members) >= _needed(members)]


def _needed(members: Sequence[PodShown]) -> int:
    return max((pod.gang.minimum for pod in members if pod.gang is not None), default=0)


def occupy(pod: PodShown, cards: Mapping[str, Card], held: dict[str, dict[str, Use]]) -> None:
    """Give a pod that fits on these cards what it asks for."""
    for ask in pod.asks:
        free = [uuid for uuid, card in cards.items() if _has_room(card, list(held.get(uuid, {}).values()), ask)]
        for uuid in free[: ask.count]:
            memory = cards[uuid].memory if ask.memory is None else ask.memory
            held.setdefault(uuid, {})[pod.uid] = (1, memory, ask.cores)


def fits(asks: Sequence[Ask], cards: Mapping[str, Card], held: Mapping[str, Mapping[str, Use]]) -> bool:
    """Whether a scheduler must find room for these containers on these cards.

    Exact for one container. Several need that many idle cards: how they could share cards is a matter of policy.
    """
    asking = [ask for ask in asks if ask.count]
    if not asking:
        return True
    if len(asking) == 1:
        ask = asking[0]
        return sum(_has_room(card, list(held.get(uuid, {}).values()), ask) for uuid, card in cards.items()) >= ask.count
    idle = [card for uuid, card in cards.items() if not held.get(uuid)]
    return len(idle) >= sum(ask.count for ask in asking) and all(
        _has_room(card, [], ask) for ask in asking for card in idle
    )


def _has_room(card: Card, holders: Sequence[Use], ask: Ask) -> bool:
    slots, memory, cores = (sum(use[index] for use in holders) for index in range(3))
    wanted = card.memory if ask.memory is None else ask.memory
    if slots + 1 > card.slots or memory + wanted > card.memory or cores + ask.cores > card.cores:
        return False
    # A card of which all cores are given takes no pod without cores either.
    return cores < card.cores and not (ask.cores >= WHOLE and holders)


def excerpt(history: Sequence[Event], violation: Violation) -> list[Event]:
    """What led to a violation: the steps of its pods until then, with the faults and leaders of that time."""
    steps: list[Event] = []
    shown: dict[str, tuple[str, str, str]] = {}
    for event in history:
        if event.at > violation.at:
            break
        if isinstance(event, PodShown) and event.uid in violation.uids:
            state = (event.node, event.grants, event.phase)
            if shown.get(event.uid) != state:
                steps.append(event)
            shown[event.uid] = state
        elif isinstance(event, FilterAnswered):
            # A pod that waits for room is refused again and again.
            if event.uid in violation.uids and event.nodes:
                steps.append(event)
        elif isinstance(event, FRAME):
            # Only what happened in the time of the pods.
            if shown:
                steps.append(event)
        elif getattr(event, "uid", None) in violation.uids and not isinstance(event, EventSeen):
            steps.append(event)
    return steps[-EXCERPT_LINES:]
