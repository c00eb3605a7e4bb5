"""Who holds slices is told to the sharing mode after every change, and never while it is not known."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tessera.host.cards import CardFacts
from tessera.host.simulated.hardware import no_cards
from tessera.node import reconciler
from tessera.node.fleet import CardState, Fleet
from tessera.node.handover.assignments import Assignment, ObjectKey
from tessera.node.handover.pod_cache import PodCache
from tessera.node.modes.base import ContainerResponse, SharingMode
from tessera.node.reconciler import EVERY_S, GAP_S, RETRY_S, LiveAssignments, Reconciler, clean_up_mps
from tessera.node.settings import AgentSettings
from tessera.node.watched_value import WatchedValue
from tessera.wire.node_config import CardModes, NodeSettings
from tessera.wire.objects import Pod
from tessera.wire.pod_devices import DeviceEntry
from tests.support.event_loops import in_fake_time
from tests.support.fake_mps import card
from tests.support.handover_node import Api
from tests.support.logs import captured

CARD = "GPU-00000001-207a-2038-9b45-23cac89cb67a"

SETTINGS = AgentSettings(node_name="n1")


class Mode(SharingMode):
    """Remembers what it was told, and when."""

    def __init__(self) -> None:
        super().__init__()
        self.unfit: dict[str, str] = {}
        self.told: list[tuple[float, list[str], int]] = []
        """seconds, names of live pods, number of cards"""
        self.fault: Exception | None = None

    @property
    def problems(self) -> Mapping[str, str]:
        return self.unfit

    async def hand_over(self, claim: Assignment, ids: Sequence[str], *, certain: bool = True) -> ContainerResponse:
        raise NotImplementedError

    async def reconcile(self, live: Sequence[Assignment], fleet: Fleet) -> None:
        now = asyncio.get_running_loop().time()
        self.told.append((now, [claim.pod.name for claim in live], len(fleet.cards)))
        if self.fault is not None:
            raise self.fault


def pod(name: str, *, phase: str = "Running", devices: str = f"{CARD},NVIDIA,1000,10:;") -> Pod:
    return msgspec.convert(
        {
            "metadata": {
                "name": name,
                "namespace": "default",
                "uid": f"uid-{name}",
                "annotations": {"hami.io/vgpu-node": "n1", "hami.io/vgpu-devices-allocated": devices},
            },
            "spec": {"containers": [{"name": "main"}]},
            "status": {"phase": phase},
        },
        Pod,
    )


def fleet(count: int) -> Fleet:
    return Fleet(tuple(CardState(CardFacts(f"GPU-{i}", i, "NVIDIA H200")) for i in range(count)))


class Scene:
    def __init__(self) -> None:
        self.mode = Mode()
        self.pods = PodCache("n1", Api(), time=lambda: 0.0, on_gone=lambda _uid: None)
        self.fleet = WatchedValue(fleet(1))
        self.settling = Reconciler(self.mode, LiveAssignments(self.pods), self.fleet)

    async def __aenter__(self) -> Scene:
        self._task = asyncio.create_task(self.settling.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task


@in_fake_time
async def test_nothing_is_let_go_before_all_pods_are_known() -> None:
    async with Scene() as scene:
        scene.pods.put("default/a", pod("a"))
        await asyncio.sleep(60.0)
        assert scene.mode.told == []
        scene.pods.put("default/b", pod("b"))
        scene.pods.synced()
        await asyncio.sleep(GAP_S)
        assert [names for _, names, _ in scene.mode.told] == [["a", "b"]]


@in_fake_time
async def test_changes_of_pods_and_cards_are_told_at_once_and_silence_every_few_seconds() -> None:
    async with Scene() as scene:
        scene.pods.synced()
        await asyncio.sleep(1.0)
        scene.pods.put("default/a", pod("a"))
        await asyncio.sleep(1.0)
        scene.fleet.set(fleet(2))
        await asyncio.sleep(1.0)
        scene.pods.put("default/a", pod("a", phase="Succeeded"))
        await asyncio.sleep(0.5)
        assert [(names, cards) for _, names, cards in scene.mode.told[-3:]] == [(["a"], 1), (["a"], 2), ([], 2)]
        before = len(scene.mode.told)
        await asyncio.sleep(EVERY_S + GAP_S)
        assert len(scene.mode.told) == before + 1


@in_fake_time
async def test_many_changes_at_once_are_few_rounds_and_the_last_one_is_seen() -> None:
    async with Scene() as scene:
        scene.pods.synced()
        await asyncio.sleep(1.0)
        before = len(scene.mode.told)
        for number in range(100):
            scene.pods.put(f"default/p{number:02}", pod(f"p{number:02}"))
            await asyncio.sleep(0)
        await asyncio.sleep(2 * GAP_S + 0.01)
        assert len(scene.mode.told) - before <= 3
        assert len(scene.mode.told[-1][1]) == 100


@in_fake_time
async def test_nothing_is_let_go_while_a_pod_cannot_be_read() -> None:
    with captured() as logs:
        async with Scene() as scene:
            scene.pods.put("default/a", pod("a", devices="GPU-x,NVIDIA,much,10:;"))
            scene.pods.synced()
            await asyncio.sleep(60.0)
            assert scene.mode.told == []
            assert len(logs.of("slices are not reconciled")) == 1
            scene.pods.drop("default/a")
            await asyncio.sleep(GAP_S)
            assert [names for _, names, _ in scene.mode.told] == [[]]


@in_fake_time
async def test_a_fault_of_the_mode_is_said_once_and_met_again_in_the_next_round() -> None:
    with captured() as logs:
        async with Scene() as scene:
            scene.mode.fault = OSError("no such card")
            scene.pods.synced()
            await asyncio.sleep(3 * (EVERY_S + GAP_S))
            assert len(scene.mode.told) >= 3
            assert [event["problem"] for event in logs.of("slices are not reconciled")] == ["OSError: no such card"]
            scene.mode.fault = None
            await asyncio.sleep(EVERY_S + GAP_S)
            scene.mode.fault = OSError("no such card")
            await asyncio.sleep(EVERY_S + GAP_S)
            assert len(logs.of("slices are not reconciled")) == 2


@in_fake_time
async def test_cards_that_the_mode_cannot_share_are_passed_on_until_it_can() -> None:
    said: list[dict[str, str]] = []
    scene = Scene()
    scene.mode.unfit = {CARD: "its daemon does not begin"}
    scene.settling = Reconciler(
        scene.mode, LiveAssignments(scene.pods), scene.fleet, mark=lambda problems: said.append(dict(problems))
    )
    async with scene:
        scene.pods.synced()
        await asyncio.sleep(GAP_S)
        scene.mode.unfit = {}
        await asyncio.sleep(2 * EVERY_S)
    assert said[0] == {CARD: "its daemon does not begin"}
    assert said[-1] == {}


# -- what an earlier sharing mode left goes as soon as nobody needs it, and not a moment before


def claim(name: str, card: str) -> Assignment:
    return Assignment(ObjectKey("default", name, f"uid-{name}"), 0, "main", (DeviceEntry(card, "NVIDIA", 1000, 10),))


class Node(PodCache):
    """Pods that the test says, and daemons on some cards."""

    def __init__(self, *daemons: str) -> None:
        super().__init__("n1", Api(), time=lambda: 0.0, on_gone=lambda _uid: None)
        self.synced()
        self.live: list[Assignment] | None = []
        self.daemons = set(daemons)
        self.busy: set[str] = set()
        self.fault: OSError | None = None

    def live_assignments(self) -> list[Assignment] | None:
        return self.live

    async def retire_all(
        self, root: Path, modes: Any, *, program: Any, keep: Collection[str], cards: Collection[str] | None
    ) -> dict[str, str]:
        if self.fault is not None:
            raise self.fault
        meant = self.daemons if cards is None else self.daemons & set(cards)
        left = meant & (self.busy | set(keep))
        self.daemons = self.daemons - meant | left
        return dict.fromkeys(left, "it has clients")


Run = Callable[[Node], asyncio.Task[None]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    def start(node: Node) -> asyncio.Task[None]:
        monkeypatch.setattr(reconciler, "retire_mps", node.retire_all)
        return asyncio.create_task(
            clean_up_mps(SETTINGS, no_cards(), LiveAssignments(node), fleet=WatchedValue(Fleet()))
        )

    return start


@in_fake_time
async def test_where_some_cards_are_in_mode_mps_only_the_others_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A card that is not listed may be one of those in mode mps."""
    mixed = replace(SETTINGS, node=NodeSettings(card_modes=(CardModes(mode="mps", index=(0,)),)))
    first, second = "GPU-a", "GPU-b"
    states = (CardState(card(first), mode="mps"), CardState(card(second, index=1), mode="hami-core"))
    node = Node(first, second, "GPU-unlisted")
    monkeypatch.setattr(reconciler, "retire_mps", node.retire_all)
    fleet = WatchedValue(Fleet(problem="not read yet"))
    task = asyncio.create_task(clean_up_mps(mixed, no_cards(), LiveAssignments(node), fleet=fleet))
    await asyncio.sleep(0)
    assert second in node.daemons
    fleet.set(Fleet(states))
    await task
    assert node.daemons == {first, "GPU-unlisted"}


@in_fake_time
async def test_daemons_that_nobody_uses_go_at_once_and_then_there_is_nothing_to_do(run: Run) -> None:
    node = Node("GPU-a", "GPU-b")
    await run(node)
    assert (node.daemons, asyncio.get_running_loop().time()) == (set(), 0)


@in_fake_time
async def test_the_cards_of_containers_that_were_there_before_wait_for_their_end(run: Run) -> None:
    node = Node("GPU-a", "GPU-b")
    node.live = [claim("old", "GPU-a")]
    with captured() as logs:
        task = run(node)
        await asyncio.sleep(2.5 * RETRY_S)
        assert node.daemons == {"GPU-a"}
        assert len(logs.of("MPS daemons of an earlier mode stay for now")) == 1
        node.live = [claim("new", "GPU-a")]
        await task
        assert node.daemons == set()


@in_fake_time
async def test_a_daemon_with_clients_is_tried_again(run: Run) -> None:
    node = Node("GPU-a")
    node.busy = {"GPU-a"}
    task = run(node)
    await asyncio.sleep(RETRY_S / 2)
    node.busy = set()
    await task
    assert asyncio.get_running_loop().time() == RETRY_S


@in_fake_time
async def test_nothing_goes_while_it_is_not_known_who_holds_what(run: Run) -> None:
    node = Node("GPU-a", "GPU-b")
    node.live = None
    task = run(node)
    await asyncio.sleep(2.5 * RETRY_S)
    assert node.daemons == {"GPU-a", "GPU-b"}
    node.live = [claim("old", "GPU-a")]
    await asyncio.sleep(2 * RETRY_S)
    assert node.daemons == {"GPU-a"}
    node.live = []
    await task


@in_fake_time
async def test_a_folder_that_cannot_be_read_is_said_and_tried_again(run: Run) -> None:
    node = Node("GPU-a")
    node.fault = PermissionError(13, "Permission denied")
    with captured() as logs:
        task = run(node)
        await asyncio.sleep(RETRY_S / 2)
        assert "Permission denied" in str(logs.of("MPS daemons of an earlier mode stay for now")[0]["left"])
        node.fault = None
        await task
