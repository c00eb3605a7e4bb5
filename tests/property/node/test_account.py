"""Random lives of a node under schedulers that give cards away twice: what is handed out never exceeds a card, and what
fits is never refused.

The oracle counts what kubelet was answered: a container until its pod has ended, or is gone from the API and from
kubelet's list; a claim until it is unprepared. It knows nothing that the node is not told."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from tessera.kube.client import KubeClient
from tessera.node.arbiter import Arbiter
from tessera.node.dra.prepared_claims import PreparedClaims
from tessera.node.dra.preparer import ClaimPreparer
from tessera.node.fleet import Fleet
from tessera.node.handover.assignments import ObjectKey
from tessera.node.modes.base import AllocationRefused
from tessera.node.settings import AgentSettings
from tessera.node.watched_value import WatchedValue
from tessera.wire.node_config import NodeSettings
from tessera.wire.resource_api import DRIVER, ResourceClaim
from tests.support.event_loops import in_fake_time
from tests.support.handover_node import NODE, HandoverNode, bound
from tests.support.sharing_modes import card
from tests.support.strategies import examples

MIB = 1 << 20
CARDS = ("GPU-a", "GPU-b")
MEMORY, CORES, SHARES = 10, 100, 3
"""of each card"""
SHARED = NodeSettings(split_count=SHARES)
WHOLE = NodeSettings(mode="none")

T = TypeVar("T")
Slice = tuple[int, int, int]
"""index of the card, MiB and cores"""
Amounts = tuple[int, int, int]
"""shares, MiB and cores"""
NOTHING: Amounts = (0, 0, 0)


@dataclass(frozen=True)
class Bind:
    """A pod that kubelet admits at once; the first `inits` containers are init containers."""

    containers: tuple[Slice, ...]
    inits: int
    downward_api: bool


@dataclass(frozen=True)
class Prepare:
    """A claim that is allocated and prepared."""

    requests: tuple[Slice, ...]


@dataclass(frozen=True)
class Act:
    """Something that happens to one of the pods or claims that are there."""

    what: str
    which: int
    more: Slice = (0, 1, 1)


ACTS = ("end", "force delete", "stop", "unprepare", "delete claim", "edit claim", "prepare again", "restart", "pause")
Step = Bind | Prepare | Act

slices = st.tuples(st.integers(0, 1), st.integers(1, MEMORY), st.sampled_from([0, 0, 30, 60, 100]))
steps: st.SearchStrategy[list[Step]] = st.lists(
    st.one_of(
        st.builds(Bind, st.lists(slices, min_size=1, max_size=3).map(tuple), st.integers(0, 2), st.booleans()),
        st.builds(Prepare, st.lists(slices, min_size=1, max_size=2).map(tuple)),
        st.builds(Act, st.sampled_from(ACTS), st.integers(0, 20), slices),
    ),
    max_size=25,
)


def plus(one: Amounts, other: Amounts) -> Amounts:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2]


def peak(one: Amounts, other: Amounts) -> Amounts:
    return max(one[0], other[0]), max(one[1], other[1]), max(one[2], other[2])


@dataclass
class Holder:
    """A pod or claim, as the oracle sees it."""

    inits: int = 0
    got: dict[int, Slice] = field(default_factory=dict)
    """by position"""
    in_api: bool = True
    is_listed: bool = True

    def takes(self, index: int, got: Mapping[int, Slice] | None = None) -> Amounts:
        """Init containers run one after the other, before the others."""
        first = rest = NOTHING
        for position, (at, memory, cores) in (self.got if got is None else got).items():
            if at == index and position < self.inits:
                first = peak(first, (1, memory, cores))
            elif at == index:
                rest = plus(rest, (1, memory, cores))
        return peak(first, rest)


class DirectClaims(PreparedClaims):
    """Without a thread, which has no fake time."""

    async def _call(self, work: Callable[[], T]) -> T:
        return work()


class Claims:
    """The API, as far as a preparer reads it."""

    def __init__(self) -> None:
        self.found: dict[str, ResourceClaim] = {}

    async def find(self, path: str, _kind: type[ResourceClaim]) -> ResourceClaim | None:
        return self.found.get(path.rpartition("/")[2])

    def put(self, name: str, requests: tuple[Slice, ...], *, whole: bool) -> None:
        results: list[dict[str, Any]] = [
            {"request": f"r{at}", "driver": DRIVER, "pool": NODE, "device": CARDS[index].lower()}
            | ({} if whole else {"consumedCapacity": {"memory": f"{memory}Mi", "cores": str(cores), "shares": "1"}})
            for at, (index, memory, cores) in enumerate(requests)
        ]
        made = {
            "metadata": {"namespace": "default", "name": name, "uid": f"uid-{name}"},
            "status": {"allocation": {"devices": {"results": results}}},
        }
        self.found[name] = msgspec.json.decode(msgspec.json.encode(made), type=ResourceClaim)


class Life:
    """One node, its kubelet and the oracle."""

    def __init__(self, folder: Path, node: NodeSettings) -> None:
        self.folder = folder
        self.settings = AgentSettings(node_name=NODE, node=node)
        self.whole = node.mode == "none"
        self.most: Amounts = (1 if self.whole else SHARES, MEMORY, CORES)
        self.fleet = WatchedValue(
            Fleet(tuple(card(uuid, index, memory_bytes=MEMORY * MIB) for index, uuid in enumerate(CARDS)))
        )
        self.claims_api = Claims()
        self.pods: dict[str, Holder] = {}
        self.claims: dict[str, Holder] = {}
        self.made = 0
        self.world = HandoverNode()
        self.running: Any = None

    async def start(self, world: HandoverNode) -> None:
        self.world = world
        self.prepared = DirectClaims(self.folder / "state", self.folder / "cdi")
        arbiter = Arbiter(self.settings, self.fleet, holdings=world.agent.holdings, prepared=self.prepared)
        self.preparer = ClaimPreparer(
            cast(KubeClient, self.claims_api),
            self.settings,
            self.fleet,
            mode=world.mode,
            arbiter=arbiter,
            prepared=self.prepared,
            boot="this",
        )
        self.running = world.running()
        await self.running.__aenter__()
        await self.preparer.recover()
        # Nothing is served before the checkpoint is read.
        await world.at_rest(0.001)
        world.agent.use(self.settings, world.mode, arbiter)

    async def stop(self) -> None:
        await self.preparer.stop()
        await self.running.__aexit__(None, None, None)

    # -- the oracle

    def used(self, index: int, *, but: Holder) -> Amounts:
        total = NOTHING
        for each in (*self.pods.values(), *self.claims.values()):
            if each is not but:
                total = plus(total, each.takes(index))
        return total

    def fits(self, holder: Holder, got: Mapping[int, Slice]) -> bool:
        """Whether it could have this; a card of which it takes nothing more is not looked at."""
        for index in range(len(CARDS)):
            total, before = self.used(index, but=holder), holder.takes(index)
            after = holder.takes(index, got)
            if any(n > o and t + n > m for n, o, t, m in zip(after, before, total, self.most, strict=True)):
                return False
        return True

    def check(self) -> None:
        for index in range(len(CARDS)):
            total = self.used(index, but=Holder())
            assert all(used <= most for used, most in zip(total, self.most, strict=True)), (index, total)

    # -- what happens

    def sized(self, asked: tuple[Slice, ...]) -> tuple[Slice, ...]:
        return tuple((index, MEMORY, CORES) for index, *_ in asked) if self.whole else asked

    async def bind(self, step: Bind) -> None:
        name, self.made = f"p{self.made}", self.made + 1
        given = self.sized(step.containers)
        inits = min(step.inits, len(given) - 1)
        texts = [f"{CARDS[index][4:]}/{memory}/{cores}" for index, memory, cores in given]
        every = list(range(len(given))) if step.downward_api else []
        self.world.api.put(bound(name, *texts, inits=inits, downward_api=every, at=self.made))
        holder = self.pods[name] = Holder(inits)
        for position, each in enumerate(given):
            # Which pod of those that use the downward API asks is not told, so each is asked for as a whole.
            at_once = step.downward_api and self.settings.uses_downward_api
            wanted = dict(enumerate(given)) if at_once else {**holder.got, position: each}
            fits = self.fits(holder, wanted)
            refusal = await refused(self.world.ask(f"{name}-{position}"))
            assert ("does not fit" in refusal, bool(refusal)) == (not fits, not fits), refusal
            if refusal:
                self.world.api.status(name, "Failed")
                del self.pods[name]
                return
            holder.got = wanted
            if position >= inits:
                self.world.resources.holds(name, f"c{position}", f"{name}-{position}")
        self.world.api.status(name, "Running")

    async def prepare(self, step: Prepare) -> None:
        name, self.made = f"c{self.made}", self.made + 1
        self.claims_api.put(name, step.requests, whole=self.whole)
        holder, got = Holder(), dict(enumerate(self.sized(step.requests)))
        fits = self.fits(holder, got)
        refusal = await refused(self.preparer.prepare(key(name)))
        assert ("does not fit" in refusal, bool(refusal)) == (not fits, not fits), refusal
        if fits:
            holder.got = got
            self.claims[name] = holder

    async def act(self, step: Act) -> None:
        match step.what:
            case "restart":
                await self.stop()
                world = self.world
                earlier = list(world.checkpoint)
                await self.start(HandoverNode(earlier=earlier, api=world.api, kubelet=world.resources))
            case "pause":
                await asyncio.sleep(10)
            case "end" | "force delete" | "stop":
                self.change_pod(step)
            case _ if self.claims:
                await self.change_claim(step)

    def change_pod(self, step: Act) -> None:
        in_api = step.what != "stop"
        names = [name for name, each in self.pods.items() if each.in_api == in_api]
        if not names:
            return
        name = names[step.which % len(names)]
        held = self.world.resources.held
        if step.what == "force delete":
            self.world.api.delete(name)
            self.pods[name].in_api = False
            return
        for holder in [each for each in held if each[1] == name]:
            del held[holder]
        del self.pods[name]
        if step.what == "end":
            self.world.api.status(name, "Succeeded")

    async def change_claim(self, step: Act) -> None:
        name = list(self.claims)[step.which % len(self.claims)]
        if step.what == "unprepare":
            await self.preparer.unprepare(key(name))
            del self.claims[name]
        elif step.what == "delete claim":
            self.claims_api.found.pop(name, None)
        elif step.what == "edit claim":
            self.claims_api.put(name, (step.more,), whole=self.whole)
        else:
            # Whatever it is answered, the claim keeps what it has, and gets nothing else.
            before = self.prepared.get(f"uid-{name}")
            await refused(self.preparer.prepare(key(name)))
            assert self.prepared.get(f"uid-{name}") == before


async def refused(asking: Awaitable[object]) -> str:
    """Why; empty if it was answered."""
    try:
        await asking
    except AllocationRefused as refusal:
        return str(refusal)
    return ""


def key(name: str) -> ObjectKey:
    return ObjectKey("default", name, f"uid-{name}")


FOUND = (
    [
        Bind(((0, 1, 0), (0, 1, 0)), 0, downward_api=True),
        Act("force delete", 0),
        Bind(((0, 1, 0),), 0, downward_api=False),
        Act("restart", 0),
        Prepare(((0, 1, 0),)),
    ],
    [
        Bind(((0, 1, 0), (0, 1, 0), (0, 1, 0)), 1, downward_api=False),
        Act("force delete", 0),
        Act("restart", 0),
        Bind(((0, 1, 0),), 0, downward_api=False),
    ],
    [Bind(((0, 1, 0), (0, 1, 0)), 0, downward_api=False), Bind(((0, 9, 0), (0, 9, 0)), 1, downward_api=True)],
)


@examples(2, deadline=None)
@example(FOUND[0], SHARED)
@example(FOUND[1], SHARED)
@example(FOUND[2], SHARED)
@given(steps, st.sampled_from([SHARED, WHOLE]))
@in_fake_time
async def test_what_is_handed_out_never_exceeds_a_card_and_what_fits_is_not_refused(
    plan: list[Step], node: NodeSettings
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        life = Life(Path(folder), node)
        await life.start(life.world)
        try:
            for step in plan:
                match step:
                    case Bind():
                        await life.bind(step)
                    case Prepare():
                        await life.prepare(step)
                    case Act():
                        await life.act(step)
                life.check()
        finally:
            await life.stop()
