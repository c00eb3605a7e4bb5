"""Agent, kubelet or scheduler end before, during or after an Allocate: no wrong slice, no leak, no phase that stays.

moment     what has happened to the pod with an init container and two more when somebody ends
before     it is bound
during     its first Allocate is under way: the slice is made, and the answer has not left
between    its first container has its answer
after      all have, and nothing is written of it yet
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from grpc import aio

from tessera.node.fleet import Fleet
from tessera.node.handover.assignments import Assignment
from tessera.node.modes import hami_core
from tessera.node.modes.base import ContainerResponse, SharingMode
from tessera.node.modes.hami_core import DirRetention
from tessera.wire import keys
from tessera_lab.sandbox.api.faults import Hold
from tessera_lab.sandbox.objects import containers_of, node_of
from tests.support.agent import AgentNode, Json
from tests.support.agent_cluster import ScheduledNode, scheduled_node
from tests.support.commands import Command, started
from tests.support.product import container, gpu_pod, pod

BY_ENVIRONMENT: Json = {}
BY_ANSWER: Json = {"flags": {"pass-device-specs": "true"}}
BY_MIG: Json = {"node": {"operatingmode": "mig"}}
WAYS = {"by environment": BY_ENVIRONMENT, "by answer": BY_ANSWER, "by mig": BY_MIG}
MOMENTS = ("before", "during", "between", "after")
AGENT = "tessera-device-plugin"
WRITES_POD: Json = {"method": "PATCH", "path": "/pods/p$", "agent": AGENT}
CARDS = {"cards": [{"model": "A100-SXM4-80GB", "count": 4}], "state": "state.json"}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders that nobody needs go at once."""
    monkeypatch.setattr(hami_core, "LOOK_EVERY_S", 0.05)
    monkeypatch.setattr(hami_core, "DirRetention", lambda: DirRetention(grace=0.0))


def the_pod(way: str, name: str = "p") -> Json:
    """Three containers of one device each, whose slices must not be mixed up."""
    sizes = (9000, 19000, 39000) if way == "by mig" else (1000, 2000, 3000)
    first, second, third = (container(f"c{at}", gpu=1, mem=size) for at, size in enumerate(sizes))
    wishes = {"nvidia.com/vgpu-mode": "mig"} if way == "by mig" else {}
    return pod(name, second, third, init=[first], annotations=wishes)


class Gate(SharingMode):
    """A sharing mode whose next answer waits at the door, when all is made."""

    def __init__(self, mode: SharingMode) -> None:
        super().__init__()
        self._mode = mode
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()

    async def start(self, fleet: Fleet) -> None:
        await self._mode.start(fleet)

    async def hand_over(self, claim: Assignment, ids: Sequence[str], *, certain: bool = True) -> ContainerResponse:
        return await self._through(self._mode.hand_over(claim, ids, certain=certain))

    async def hand_over_downward_api(self, ids: Sequence[str]) -> ContainerResponse:
        return await self._through(self._mode.hand_over_downward_api(ids))

    async def reconcile(self, live: Sequence[Assignment], fleet: Fleet) -> None:
        await self._mode.reconcile(live, fleet)

    async def stop(self) -> None:
        await self._mode.stop()

    async def _through(self, answering: Coroutine[Any, Any, ContainerResponse]) -> ContainerResponse:
        answer = await answering
        self.reached.set()
        await self.opened.wait()
        return answer


def gate(node: AgentNode) -> Gate:
    allocator = node.process.around.handover.allocator
    found = Gate(allocator.mode)
    allocator.mode = found
    return found


class Story:
    """One pod through one restart."""

    def __init__(self, cluster: ScheduledNode, moment: str, way: str) -> None:
        self.cluster = cluster
        self._way = way
        self.node, self.kubelet = cluster.node, cluster.kubelet
        self._moment = moment
        self._gate: Gate | None = None
        self._hold = Hold(asyncio.Event(), asyncio.Event())
        self._asking: asyncio.Task[None] | None = None

    async def until_the_moment(self) -> None:
        await self.kubelet.bound("p")
        match self._moment:
            case "during":
                self._gate = gate(self.node)
                self._asking = asyncio.create_task(self.kubelet.ask("p", 0))
                await self._gate.reached.wait()
            case "between":
                await self.kubelet.ask("p", 0)
            case "after":
                if self._way != "by mig":
                    # There the identity of an instance is written before the answer.
                    self.node.plane.server.faults.next(self._hold, **WRITES_POD)
                for position in range(3):
                    await self.kubelet.ask("p", position)

    async def plugin_ends(self) -> None:
        """kubelet cannot use an answer that never came, and rejects the pod."""
        await self.node.kill()
        self._open()
        if self._asking is not None:
            with pytest.raises(aio.AioRpcError):
                await self._asking
        await self.node.start()
        await self.node.kubelet.listed()

    async def kubelet_ends(self) -> None:
        """It asks again for what is not in its checkpoint."""
        if self._asking is not None:
            self._asking.cancel()
            with suppress(asyncio.CancelledError):
                await self._asking
        before = len(self.node.kubelet.registrations)
        await self.node.kubelet.restart()
        self._open()
        await self.node.kubelet.registered(times=before + 1)
        await self.node.kubelet.listed()

    async def scheduler_ends(self) -> None:
        await self.cluster.product.restart_scheduler()
        self._open()
        if self._asking is not None:
            await self._asking

    def _open(self) -> None:
        if self._gate is not None:
            self._gate.opened.set()
        self.node.plane.server.faults.clear()
        self._hold.release.set()

    @property
    def is_rejected(self) -> bool:
        """Whether its Allocate failed, which kubelet does not try again."""
        return (
            self._asking is not None
            and self._asking.done()
            and not self._asking.cancelled()
            and (self._asking.exception() is not None)
        )


ENDS: dict[str, Callable[[Story], Coroutine[Any, Any, None]]] = {
    "plugin": Story.plugin_ends,
    "kubelet": Story.kubelet_ends,
    "scheduler": Story.scheduler_ends,
}


# At the other moments the plugin is really killed, below.
CASES = [("plugin", "during"), *product(("kubelet", "scheduler"), MOMENTS)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("who", "moment"), CASES)
async def test_whoever_ends_at_whatever_moment_every_container_gets_its_own_slice(
    tmp_path: Path, who: str, moment: str, way: str
) -> None:
    async with scheduled_node(tmp_path, cards=CARDS, **WAYS[way]) as cluster:
        await cluster.create(the_pod(way))
        story = Story(cluster, moment, way)
        await story.until_the_moment()
        await ENDS[who](story)
        if story.is_rejected:
            await cluster.kubelet.reject("p", "the plugin is gone")
            await cluster.node.phase_is("p", "failed")
        else:
            assert await cluster.kubelet.admit("p")
            await cluster.handed_over("p")
        await the_next_pod_is_served(cluster, way)
        assert cluster.kubelet.wrong_slices() == []
        await cluster.nothing_is_left()


async def the_next_pod_is_served(cluster: ScheduledNode, way: str) -> None:
    """Nobody stands in its way, also where it looks just as the one before."""
    await cluster.create(the_pod(way, "q"))
    await cluster.kubelet.bound("q")
    assert await cluster.kubelet.admit("q")
    await cluster.handed_over("q")


@pytest.mark.parametrize("way", WAYS)
async def test_an_answer_that_kubelet_had_no_time_to_write_down_is_given_again(tmp_path: Path, way: str) -> None:
    async with scheduled_node(tmp_path, cards=CARDS, **WAYS[way]) as cluster:
        await cluster.create(the_pod(way))
        await cluster.kubelet.bound("p")
        await cluster.kubelet.ask("p", 0)
        cluster.kubelet.checkpoint.clear()
        await cluster.node.kubelet.restart()
        await cluster.node.kubelet.registered(times=2)
        await cluster.node.kubelet.listed()
        assert await cluster.kubelet.admit("p")
        await cluster.handed_over("p")
        assert cluster.kubelet.wrong_slices() == []
        await cluster.nothing_is_left()


# -- really killed


@asynccontextmanager
async def agent_process(node: AgentNode, **environ: str) -> AsyncIterator[Command]:
    """`tessera device-plugin` as a process of its own, which kubelet can use."""
    before = len(node.kubelet.lists)
    flags = [f"--{name}={value}" for name, value in node.flags.items()]
    async with started("device-plugin", *flags, f"--kubeconfig={node.plane.kubeconfig}", **environ) as command:
        await command.until(node.kubelet.until(lambda: len(node.kubelet.lists) > before and node.kubelet.health))
        yield command


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("moment", MOMENTS)
async def test_an_agent_that_is_killed_leaves_nothing_that_the_next_one_cannot_put_right(
    tmp_path: Path, moment: str, way: str
) -> None:
    async with scheduled_node(tmp_path, cards=CARDS, **WAYS[way]) as cluster:
        node, kubelet = cluster.node, cluster.kubelet
        await node.stop()
        rejected = False
        async with agent_process(node) as command:
            await cluster.create(the_pod(way))
            await kubelet.bound("p")
            hold = Hold(asyncio.Event(), asyncio.Event())
            node.plane.server.faults.next(hold, **WRITES_POD)
            if moment == "during":
                rejected = True
                await killed_in_allocate(cluster, command, hold, writes=way == "by mig")
            else:
                if way == "by mig":
                    # The identity of an instance is written before the answer.
                    hold.release.set()
                for position in range({"before": 0, "between": 1, "after": 3}[moment]):
                    await kubelet.ask("p", position)
                command.send(signal.SIGKILL)
                await command.end()
        node.plane.server.faults.clear()
        hold.release.set()
        await node.start()
        await node.kubelet.listed()
        if rejected:
            await kubelet.reject("p", "the plugin is gone")
            await node.phase_is("p", keys.PHASE_FAILED)
        else:
            assert await kubelet.admit("p")
            await cluster.handed_over("p")
        await the_next_pod_is_served(cluster, way)
        assert kubelet.wrong_slices() == []
        await cluster.nothing_is_left()


async def killed_in_allocate(cluster: ScheduledNode, command: Command, hold: Hold, *, writes: bool) -> None:
    """With the instance made and nobody told, where something is written; otherwise before it can answer."""
    if not writes:
        # A stopped process takes no call, and a connection that it accepted ends with it.
        command.send(signal.SIGSTOP)
    asking = asyncio.create_task(cluster.kubelet.ask_at_random())
    if writes:
        await hold.reached.wait()
    command.send(signal.SIGKILL)
    await command.end()
    with pytest.raises(aio.AioRpcError):
        await asking


async def test_pods_that_wait_for_their_turn_get_it_from_the_next_scheduler(tmp_path: Path) -> None:
    async with scheduled_node(tmp_path, **BY_ANSWER) as cluster:
        manifests = [gpu_pod(f"w{number}", gpu=1, mem=1000 + number) for number in range(4)]
        await cluster.create(*manifests)
        await cluster.kubelet.bound("w0")
        await cluster.product.restart_scheduler()
        left = {manifest["metadata"]["name"] for manifest in manifests}
        while left:
            # Who is next after w0 is the next scheduler's to say.
            name = await cluster.node.plane.wait_for(
                lambda: next((each for each in sorted(left) if node_of(cluster.node.pod(each))), ""), 30.0
            )
            assert await cluster.kubelet.admit(name)
            await cluster.handed_over(name)
            left.remove(name)
        assert cluster.kubelet.wrong_slices() == []
        await cluster.nothing_is_left()


async def test_a_restarted_kubelet_keeps_what_running_pods_have(tmp_path: Path) -> None:
    async with scheduled_node(tmp_path, **BY_ANSWER) as cluster:
        await cluster.create(gpu_pod("a", gpu=1, mem=1000))
        await cluster.kubelet.bound("a")
        assert await cluster.kubelet.admit("a")
        await cluster.handed_over("a")
        asked = cluster.kubelet.asked
        await cluster.node.kubelet.restart()
        await cluster.node.kubelet.registered(times=2)
        await cluster.node.kubelet.listed()
        assert await cluster.kubelet.admit("a")
        assert cluster.kubelet.asked == asked
        assert len(containers_of(cluster.node.pod("a"))) == len(cluster.kubelet.checkpoint)
        assert cluster.kubelet.wrong_slices() == []
