"""Evicts the pods that hold slices of cards, until none is left or the time is over.

    HOLDS ──▶ EVICTED ──▶ GONE
     │  ▲
     ▼  │ the budget allows it, or the apiserver answers again
    WAITS ──▶ (the time is over: left)
    REFUSED: it needs another option, or the user has no right to evict it

Disruption budgets are kept: pods leave through the Eviction API only. Whether a pod still holds a card is what the
ledger says about the pods on the node, read again in each round. The API does not show what the scheduler has reserved:
a pod that it placed before the cordon is bound a moment later. So the last look is some seconds after the cordon, and
the result says that a later bind was not waited for. A pod whose devices are unknown is never taken for one that holds
nothing: it is a doubt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from tessera.core.ledger.holders import Holder, HolderKind
from tessera.inspect.explanation import PodVerdict, explain
from tessera.inspect.offline_cluster import OfflineCluster
from tessera.inspect.render.lines import Style, StyledLine, TableColumn, count_of, table
from tessera.inspect.slices import sorted_users
from tessera.inspect.state import Json
from tessera.kube.client import KubeClient
from tessera.kube.errors import KubeError
from tessera.kube.eviction import CONCURRENT, EvictionResult, evict_pod
from tessera.maintenance.cordon import NamedCard
from tessera.wire import keys

FIRST_ROUND_S, ROUND_S = 0.25, 2.0
"""between two looks at the nodes: pods that end quickly are seen to, and then the apiserver is spared"""
SETTLE_S = 5.0
"""after the cordon, before a card counts as drained: pods that were placed before are bound by then, unless something
else than devices holds them up"""


class PodStage(Enum):
    """How far a pod is."""

    HOLDS = "Holds"
    WAITS = "Waits"
    EVICTED = "Evicted"
    REFUSED = "Refused"
    GONE = "Gone"


@dataclass(frozen=True, slots=True)
class HoldingPod:
    """A pod that holds slices of cards that are drained."""

    namespace: str
    name: str
    uid: str
    node: str
    cards: tuple[str, ...]
    """those of the cards, as NODE/INDEX"""
    memory_mib: int
    """of these cards"""
    controller: str
    """kind and name of the workload that will replace it; empty for a bare pod"""
    has_local_data: bool = False
    """it has an emptyDir, whose content is lost"""
    is_mirror: bool = False
    is_terminating: bool = False

    @property
    def text(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Holders:
    """The pods that hold the cards, and those that may."""

    pods: tuple[HoldingPod, ...] = ()
    doubts: tuple[str, ...] = ()
    """pods on the nodes whose devices are unknown, and why"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainOptions:
    force: bool = False
    """evict bare pods, which nothing replaces"""
    delete_emptydir_data: bool = False
    timeout_s: float = 600.0

    def obstacle(self, pod: HoldingPod) -> str:
        """Why the pod is not evicted without another option, as `kubectl drain` has it; empty if it is."""
        if pod.is_mirror:
            return "a file of its node defines it: remove that file"
        if pod.is_terminating:
            return ""
        if not pod.controller and not self.force:
            return "it is a bare pod, which nothing creates again (--force evicts it)"
        if pod.has_local_data and not self.delete_emptydir_data:
            return "it has an emptyDir, whose content would be lost (--delete-emptydir-data evicts it)"
        return ""


@dataclass(slots=True)
class PodProgress:
    """One pod on its way."""

    pod: HoldingPod
    stage: PodStage = PodStage.HOLDS
    reason: str = ""
    retry_at: float = 0.0


@dataclass(frozen=True, slots=True)
class DrainResult:
    """The end."""

    pods: tuple[PodProgress, ...]
    doubts: tuple[str, ...]

    @property
    def left(self) -> list[PodProgress]:
        return [each for each in self.pods if each.stage is not PodStage.GONE]

    @property
    def is_drained(self) -> bool:
        return not self.left and not self.doubts


def find_holders(cluster: OfflineCluster, pods: Collection[Json], cards: Sequence[NamedCard]) -> Holders:
    """`pods` are those on the nodes as the API shows them, `cluster` was read from them."""
    by_uid = {pod["metadata"]["uid"]: pod for pod in pods}
    names = {(card.node, card.card): card.text for card in cards}
    parts: dict[str, list[tuple[Holder, list[str]]]] = {}
    """by pod: what holds cards for it, the pod itself or a ResourceClaim, and which of them"""
    doubts: list[str] = []
    for node in dict.fromkeys(card.node for card in cards):
        for entry in cluster.ledger.pods_on(node):
            held = [uuid for uuid in _held(entry) if (node, uuid) in names]
            if held:
                users = [uid for uid in _users(cluster, entry) if uid in by_uid]
                for uid in users:
                    parts.setdefault(uid, []).append((entry, held))
                if not users:
                    doubts.append(f"{_title(entry)} holds it, but no pod of the node uses it")
            elif entry.facts.problem:
                doubts.append(f"{entry.facts.namespace}/{entry.facts.name}: {entry.facts.problem}")
        doubts += _unaccounted(cluster, node)
    found = [_holding_pod(by_uid[uid], held, names) for uid, held in parts.items()]
    return Holders(tuple(sorted(found, key=lambda pod: (pod.namespace, pod.name))), tuple(sorted(doubts)))


def _held(entry: Holder) -> list[str]:
    """The cards of the pod, also those that its node does not register any more."""
    named = (grant.uuid for containers in entry.facts.grants.values() for grants in containers for grant in grants)
    return list(dict.fromkeys((*entry.holdings, *named)))


def _users(cluster: OfflineCluster, entry: Holder) -> list[str]:
    """The uids of the pods that have what this is: the pod itself, or those that a claim is reserved for."""
    if entry.kind is not HolderKind.CLAIM:
        return [entry.facts.uid]
    return [user.uid for user in sorted_users(cluster.view.users_of, entry.facts)]


def _title(entry: Holder) -> str:
    kind = "ResourceClaim" if entry.kind is HolderKind.CLAIM else "pod"
    return f"{kind} {entry.facts.namespace}/{entry.facts.name}"


def _holding_pod(
    document: Json, parts: Sequence[tuple[Holder, list[str]]], names: Mapping[tuple[str, str], str]
) -> HoldingPod:
    metadata, node = document["metadata"], parts[0][0].facts.node
    cards = dict.fromkeys(names[node, uuid] for _, held in parts for uuid in held)
    owner = next((each for each in metadata.get("ownerReferences") or () if each.get("controller")), None)
    return HoldingPod(
        metadata["namespace"],
        metadata["name"],
        metadata["uid"],
        node,
        tuple(cards),
        sum(entry.holdings[uuid].use.memory for entry, held in parts for uuid in held if uuid in entry.holdings),
        f"{owner['kind']}/{owner['name']}" if owner is not None else "",
        has_local_data=any("emptyDir" in volume for volume in document["spec"].get("volumes") or ()),
        is_mirror=keys.MIRROR_POD in (metadata.get("annotations") or {}),
        is_terminating=bool(metadata.get("deletionTimestamp")),
    )


def _unaccounted(cluster: OfflineCluster, node: str) -> Iterator[str]:
    """Pods that another scheduler placed there: nothing says which cards they hold."""
    for key, pod in sorted(cluster.pods.items()):
        if pod.spec.node_name == node and cluster.ledger.pod(pod.metadata.uid) is None:
            found = explain(cluster, key)
            if found.status is PodVerdict.UNACCOUNTED:
                yield f"{key}: {found.problem}"


@dataclass(slots=True)
class Drain:
    """One drain of some cards that are cordoned already."""

    client: KubeClient
    look: Callable[[], Awaitable[Holders]]
    """the pods that hold the cards now"""
    options: DrainOptions
    report: Callable[[str], None]
    """told of every change, one line each"""
    _progress: dict[str, PodProgress] = field(default_factory=dict)
    """by uid"""

    async def rehearse(self, holders: Holders) -> DrainResult:
        """Asks the apiserver about each eviction as a dry run. Changes nothing; pods that it allows count as gone. Asks
        about none where `run` would evict none."""
        self._observe(holders)
        if not self._is_blocked():
            await self._evict(dry_run=True)
        return DrainResult(tuple(self._progress.values()), holders.doubts)

    async def run(self, holders: Holders) -> DrainResult:
        """Evicts until no pod is left, only refused ones are, or the time is over. Evicts none if the first look shows
        one that needs another option."""
        clock = asyncio.get_running_loop().time
        settled, deadline = clock() + SETTLE_S, clock() + self.options.timeout_s
        self._observe(holders)
        if self._is_blocked():
            return DrainResult(tuple(self._progress.values()), holders.doubts)
        pause = FIRST_ROUND_S
        while True:
            self._observe(holders)
            left = [each for each in self._progress.values() if each.stage is not PodStage.GONE]
            is_done = all(each.stage is PodStage.REFUSED for each in left) and (left or clock() >= settled)
            if is_done or clock() >= deadline:
                return DrainResult(tuple(self._progress.values()), holders.doubts)
            await self._evict()
            await asyncio.sleep(max(0.0, min(pause, deadline - clock())))
            pause = min(ROUND_S, 2 * pause)
            holders = await self._look_again(holders)

    def _is_blocked(self) -> bool:
        """Whether a pod needs another option; then the others stay too, and are told why."""
        if not any(each.stage is PodStage.REFUSED for each in self._progress.values()):
            return False
        for progress in self._progress.values():
            if progress.stage is PodStage.HOLDS:
                self._set(progress, PodStage.HOLDS, "not evicted as long as others need an option")
        return True

    async def _look_again(self, before: Holders) -> Holders:
        """What was seen last, if the apiserver does not answer: unknown is never gone."""
        try:
            return await self.look()
        except KubeError as error:
            self.report(f"the nodes cannot be read: {error}; trying again")
            return before

    def _observe(self, holders: Holders) -> None:
        for pod in holders.pods:
            progress = self._progress.setdefault(pod.uid, PodProgress(pod))
            progress.pod = pod
            obstacle = self.options.obstacle(pod)
            if obstacle:
                self._set(progress, PodStage.REFUSED, obstacle)
            elif pod.is_terminating and progress.stage is not PodStage.EVICTED:
                self._set(progress, PodStage.EVICTED, "it is being deleted already")
            elif progress.stage is PodStage.GONE:
                # One look could not tell what it holds.
                self._set(progress, PodStage.HOLDS)
        present = {pod.uid for pod in holders.pods}
        for uid, progress in self._progress.items():
            if uid not in present:
                self._set(progress, PodStage.GONE)

    async def _evict(self, *, dry_run: bool = False) -> None:
        now = asyncio.get_running_loop().time()
        turns = asyncio.Semaphore(CONCURRENT)

        async def take_turn(progress: PodProgress) -> None:
            async with turns:
                await self._evict_one(progress, dry_run=dry_run)

        due = [
            each
            for each in self._progress.values()
            if each.stage in (PodStage.HOLDS, PodStage.WAITS) and each.retry_at <= now
        ]
        await asyncio.gather(*map(take_turn, due))

    async def _evict_one(self, progress: PodProgress, *, dry_run: bool) -> None:
        pod = progress.pod
        answer = await evict_pod(self.client, pod.namespace, pod.name, uid=pod.uid, dry_run=dry_run)
        if answer.result is EvictionResult.EVICTED:
            self._set(progress, PodStage.GONE if dry_run else PodStage.EVICTED, "would be evicted" if dry_run else "")
        elif answer.is_final:
            self._set(progress, PodStage.REFUSED, answer.reason)
        elif answer.result is not EvictionResult.GONE:  # The next look shows that.
            progress.retry_at = asyncio.get_running_loop().time() + answer.retry_s
            self._set(progress, PodStage.WAITS, answer.reason)

    def _set(self, progress: PodProgress, stage: PodStage, reason: str = "") -> None:
        if (progress.stage, progress.reason) != (stage, reason):
            progress.stage, progress.reason = stage, reason
            self.report(f"{progress.pod.text}: {reason or stage.value.lower()}")


# -- for people and programs


def holders_table(holders: Holders, *, width: int | None) -> list[StyledLine]:
    """The pods that hold the cards, and those that may."""
    columns: list[TableColumn[HoldingPod]] = [
        TableColumn("POD", lambda pod: pod.text),
        TableColumn("CARDS", lambda pod: ", ".join(pod.cards)),
        TableColumn("MIB", lambda pod: pod.memory_mib, right=True),
        TableColumn("CREATED BY", lambda pod: pod.controller or "-"),
    ]
    lines = table(columns, holders.pods, width=width) if holders.pods else [StyledLine("no pod holds a slice")]
    return [*lines, *(StyledLine(f"may hold a slice: {text}", Style.WARN) for text in holders.doubts)]


LATE_BIND = (
    "a pod that was placed before the cordon, and waits for a volume or its gang, may still come: repeat to be sure"
)


def result_lines(cards: Sequence[NamedCard], result: DrainResult, *, dry_run: bool) -> Iterator[StyledLine]:
    what, gone = ", ".join(card.text for card in cards), len(result.pods) - len(result.left)
    if result.is_drained:
        done = "would be drained" if dry_run else "drained"
        evicted = f"{count_of(gone, 'pod')} {'would be evicted' if dry_run else 'gone'}"
        yield StyledLine(f"{what}: {done}, {evicted}", Style.GOOD)
        if not dry_run:
            yield StyledLine(LATE_BIND, Style.DIM)
        return
    left = [*(f"{each.pod.text} ({each.reason or each.stage.value.lower()})" for each in result.left), *result.doubts]
    yield StyledLine(f"{what}: not drained, {count_of(len(left), 'pod')} left", Style.BAD)
    yield from (StyledLine(text).indented() for text in left)


def drain_document(cards: Sequence[NamedCard], result: DrainResult, *, dry_run: bool) -> Json:
    return {
        "dry_run": dry_run,
        "drained": result.is_drained,
        "cards": [{"node": card.node, "index": card.index, "card": card.card} for card in cards],
        "pods": [
            {"namespace": each.pod.namespace, "name": each.pod.name, "stage": each.stage.value, "reason": each.reason}
            for each in result.pods
        ],
        "doubts": list(result.doubts),
    }
