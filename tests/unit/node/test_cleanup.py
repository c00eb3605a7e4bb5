"""What an earlier sharing mode left goes as soon as nobody needs it, and not a moment before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tessera.host.simulated.hardware import no_cards
from tessera.node import reconciler
from tessera.node.fleet import CardState, Fleet
from tessera.node.handover.assignments import Assignment, ObjectKey
from tessera.node.handover.pod_cache import PodCache
from tessera.node.reconciler import RETRY_S, LiveAssignments, clean_up_mps
from tessera.node.settings import AgentSettings
from tessera.node.watched_value import WatchedValue
from tessera.wire.node_config import CardModes, NodeSettings
from tessera.wire.pod_devices import DeviceEntry
from tests.support.event_loops import in_fake_time
from tests.support.fake_mps import card
from tests.support.logs import captured
from tests.unit.node.handover.world import Api

SETTINGS = AgentSettings(node_name="n1")


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


def test_where_some_cards_are_in_mode_mps_only_the_others_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A card that is not listed may be one of those in mode mps."""
    mixed = replace(SETTINGS, node=NodeSettings(card_modes=(CardModes(mode="mps", index=(0,)),)))
    first, second = "GPU-a", "GPU-b"
    states = (CardState(card(first), mode="mps"), CardState(card(second, index=1), mode="hami-core"))

    @in_fake_time
    async def story() -> None:
        node = Node(first, second, "GPU-unlisted")
        monkeypatch.setattr(reconciler, "retire_mps", node.retire_all)
        fleet = WatchedValue(Fleet(problem="not read yet"))
        task = asyncio.create_task(clean_up_mps(mixed, no_cards(), LiveAssignments(node), fleet=fleet))
        await asyncio.sleep(0)
        assert second in node.daemons
        fleet.set(Fleet(states))
        await task
        assert node.daemons == {first, "GPU-unlisted"}

    story()


def test_daemons_that_nobody_uses_go_at_once_and_then_there_is_nothing_to_do(run: Run) -> None:
    @in_fake_time
    async def story() -> None:
        node = Node("GPU-a", "GPU-b")
        await run(node)
        assert (node.daemons, asyncio.get_running_loop().time()) == (set(), 0)

    story()


def test_the_cards_of_containers_that_were_there_before_wait_for_their_end(run: Run) -> None:
    @in_fake_time
    async def story() -> None:
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

    story()


def test_a_daemon_with_clients_is_tried_again(run: Run) -> None:
    @in_fake_time
    async def story() -> None:
        node = Node("GPU-a")
        node.busy = {"GPU-a"}
        task = run(node)
        await asyncio.sleep(RETRY_S / 2)
        node.busy = set()
        await task
        assert asyncio.get_running_loop().time() == RETRY_S

    story()


def test_nothing_goes_while_it_is_not_known_who_holds_what(run: Run) -> None:
    @in_fake_time
    async def story() -> None:
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

    story()


def test_a_folder_that_cannot_be_read_is_said_and_tried_again(run: Run) -> None:
    @in_fake_time
    async def story() -> None:
        node = Node("GPU-a")
        node.fault = PermissionError(13, "Permission denied")
        with captured() as logs:
            task = run(node)
            await asyncio.sleep(RETRY_S / 2)
            assert "Permission denied" in str(logs.of("MPS daemons of an earlier mode stay for now")[0]["left"])
            node.fault = None
            await task

    story()
