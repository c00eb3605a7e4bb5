from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from tessera.host.cards import CardError, CardFacts, InventoryError, Links, TopologyLevel
from tessera.kube.access import Access
from tessera.kube.backoff import MAX_RETRY_AFTER_S
from tessera.kube.client import KubeClient
from tessera.kube.event_broadcaster import EventBroadcaster, ObjectRef
from tessera.kube.resources import NODES
from tessera.node.fleet import CardState, Fleet
from tessera.node.health.roster import NOT_READ
from tessera.node.registration.registrar import NodeRegistrar
from tessera.node.settings import AgentSettings, DeviceListStrategy
from tessera.node.watched_value import WatchedValue
from tessera.wire.node_config import NodeSettings
from tessera.wire.registration import decode_pair_scores
from tessera_lab.sandbox.api import kinds
from tessera_lab.sandbox.api.faults import Drop, Fail, Hold, LoseAnswer
from tessera_lab.sandbox.api.server import ApiServer
from tests.support.event_loops import in_fake_time
from tests.support.logs import Logs, captured

EPOCH = 1_793_880_000.0
"""2026-11-05T12:00:00Z"""
ZONE = timezone(timedelta(hours=2))
REGISTER = "hami.io/node-nvidia-register"
SCORES = "hami.io/node-nvidia-score"
HANDSHAKE = "hami.io/node-handshake"
AGENT = "tessera.io/agent"
PATH = NODES.path(name="n1")
OURS = "agent"
"""User-Agent of the one that is tested"""
OLD = '[{"id":"GPU-old","count":10,"devmem":1,"devcore":100,"type":"NVIDIA","mode":"hami-core","health":true}]'

A, B, C = (
    CardFacts(f"GPU-{name}", index, "NVIDIA H200", memory_bytes=143771 * 2**20) for index, name in enumerate("abc")
)


def fleet(*cards: CardFacts, ill: Sequence[CardFacts] = ()) -> Fleet:
    return Fleet(tuple(CardState(card, "XID 79" if card in ill else "") for card in cards))


def settings(**changes: Any) -> AgentSettings:
    return AgentSettings(node_name="n1", **changes)


class ScriptedLinks:
    """Who is linked how; counts how often it was asked."""

    def __init__(self) -> None:
        self.links: dict[tuple[str, str], Links] = {}
        self.errors: list[InventoryError] = []
        self.asked: list[tuple[str, ...]] = []

    async def __call__(self, uuids: Sequence[str]) -> Mapping[tuple[str, str], Links]:
        self.asked.append(tuple(uuids))
        if self.errors:
            raise self.errors.pop(0)
        plain = Links(TopologyLevel.NODE)
        return {(i, j): self.links.get((i, j), plain) for i in uuids for j in uuids if i != j}


class RecordedEvents(EventBroadcaster):
    def __init__(self) -> None:
        self.written: list[tuple[ObjectRef, str, str, str]] = []

    def record(self, ref: ObjectRef, type: str, reason: str, message: str, *, at: float | None = None) -> None:
        self.written.append((ref, type, reason, message))


class World:
    """A node on an API server, and the registrar of that node."""

    def __init__(self, server: ApiServer, client: KubeClient, fleet: WatchedValue[Fleet], logs: Logs) -> None:
        self.server, self.fleet, self.logs = server, fleet, logs
        self._client = client
        self.links, self.events = ScriptedLinks(), RecordedEvents()
        self.task: asyncio.Task[None] | None = None

    async def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()
            with suppress(asyncio.CancelledError):
                await self.task

    def node(self) -> dict[str, Any]:
        held = self.server.cluster.store.get(kinds.NODES, "", "n1")
        return dict(held.object["metadata"]) if held is not None else {}

    def annotations(self) -> dict[str, str]:
        return dict(self.node().get("annotations", {}))

    async def annotate(self, annotations: dict[str, str | None]) -> None:
        await self._client.patch(PATH, {"metadata": {"annotations": annotations}})

    async def delete_node(self) -> None:
        await self._client.delete(PATH)

    async def create_node(self) -> None:
        await self._client.create(NODES.path(), {"metadata": {"name": "n1"}})

    async def until(self, seen: Callable[[dict[str, str]], bool], *, within: float = 60.0) -> dict[str, str]:
        """The node's annotations when they are first seen so; looked at every second."""
        async with asyncio.timeout(within):
            while not seen(found := self.annotations()):
                await asyncio.sleep(1)
        return found

    def requests(self, method: str) -> int:
        return sum(1 for each in self.server.journal if each.method == method and each.agent == OURS)


@asynccontextmanager
async def world(
    start: Fleet = NOT_READ, *, before: dict[str, str] | None = None, **chosen: Any
) -> AsyncIterator[World]:
    """A registrar that has had the time for its first round."""
    clock = asyncio.get_running_loop().time
    with captured() as logs:
        async with (
            ApiServer() as server,
            KubeClient(Access(server.url), user_agent="test") as client,
            KubeClient(Access(server.url), user_agent=OURS) as own,
        ):
            await client.create(NODES.path(), {"metadata": {"name": "n1", "annotations": before or {}}})
            made = World(server, client, WatchedValue(start), logs)
            registrar = NodeRegistrar(
                own,
                made.fleet,
                settings(**chosen),
                links=made.links,
                events=made.events,
                now=lambda: datetime.fromtimestamp(EPOCH + clock(), ZONE),
            )
            made.task = asyncio.create_task(registrar.run())
            await made.until(lambda found: AGENT in found)
            try:
                yield made
            finally:
                await made.stop()


def ids(annotations: dict[str, str]) -> list[str]:
    return [device["id"] for device in json.loads(annotations.get(REGISTER, "[]"))]


def healthy(annotations: dict[str, str]) -> list[bool]:
    return [device.get("health", False) for device in json.loads(annotations.get(REGISTER, "[]"))]


@in_fake_time
async def test_cards_are_registered_with_one_patch_and_then_left_alone() -> None:
    async with world(fleet(A, B), before={"other": "kept"}) as node:
        await asyncio.sleep(300)
        found = node.annotations()
        assert ids(found) == ["GPU-a", "GPU-b"]
        assert found[AGENT] == "env,hami-core"
        assert found["other"] == "kept"
        assert SCORES not in found
        assert HANDSHAKE not in found
        assert node.requests("PATCH") == 1
        assert node.requests("GET") == 11


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ({}, "env,hami-core"),
        ({"pass_device_specs": True}, "answer,hami-core"),
        ({"strategies": frozenset({DeviceListStrategy.CDI_CRI})}, "answer,hami-core"),
        ({"node": NodeSettings(mode="mps")}, "answer,mps"),
        ({"node": NodeSettings(mode="none")}, "answer,none"),
    ],
)
@in_fake_time
async def test_the_node_says_how_slices_reach_containers(chosen: dict[str, Any], words: str) -> None:
    async with world(fleet(A), **chosen) as node:
        assert node.annotations()[AGENT] == words


@in_fake_time
async def test_a_change_of_the_fleet_is_registered_at_once() -> None:
    async with world(fleet(A, B)) as node:
        node.fleet.set(fleet(A, B, ill=[B]))
        await node.until(lambda found: healthy(found) == [True, False], within=5)
        node.fleet.set(fleet(A, B, C))
        await node.until(lambda found: healthy(found) == [True, True, True], within=5)


@in_fake_time
async def test_an_annotation_that_somebody_deletes_or_changes_comes_back() -> None:
    async with world(fleet(A)) as node:
        right = node.annotations()
        await node.annotate({REGISTER: None, AGENT: "nonsense"})
        await node.until(lambda found: found == right, within=35)


@in_fake_time
async def test_a_node_that_is_created_anew_is_registered_anew() -> None:
    async with world(fleet(A)) as node:
        await node.delete_node()
        await asyncio.sleep(60)
        await node.create_node()
        await node.until(lambda found: ids(found) == ["GPU-a"])
        assert [event["event"] for event in node.logs.events].count("registration failed, will try again") == 1


@pytest.mark.parametrize(
    "fault", [Fail(500), Fail(409), Fail(403), Fail(429, retry_after_s=2), Drop(), LoseAnswer()], ids=repr
)
@pytest.mark.parametrize("method", ["GET", "PATCH"])
@in_fake_time
async def test_a_request_that_fails_is_made_up_for_soon(fault: Fail | Drop | LoseAnswer, method: str) -> None:
    """Upstream takes a list whose patch failed for written and says nothing more while the list stays the same."""
    async with world(fleet(A)) as node:
        node.server.faults.next(fault, method=method, path="/nodes/n1", agent=OURS, times=3)
        node.fleet.set(fleet(A, B))
        await node.until(lambda found: ids(found) == ["GPU-a", "GPU-b"], within=25)
        await asyncio.sleep(60)
        assert len(node.logs.of("registration failed, will try again")) == 1
        assert len(node.logs.of("registration works again")) == 1


@pytest.mark.no_cover
@in_fake_time
async def test_an_apiserver_that_is_away_for_long_is_asked_at_a_bounded_pace() -> None:
    async with world(fleet(A)) as node:
        asked = node.requests("GET")
        node.server.faults.next(Fail(503), agent=OURS, times=10_000)
        node.fleet.set(fleet(A, B))
        await asyncio.sleep(3600)
        assert 200 <= node.requests("GET") - asked <= 1000
        node.server.faults.clear()
        await node.until(lambda found: ids(found) == ["GPU-a", "GPU-b"])


@in_fake_time
async def test_a_server_that_asks_for_patience_gets_it_within_reason() -> None:
    async with world(fleet(A)) as node:
        asked = node.requests("GET")
        node.server.faults.next(Fail(429, retry_after_s=3600), method="GET", agent=OURS)
        node.fleet.set(fleet(A, B))
        await asyncio.sleep(MAX_RETRY_AFTER_S - 1)
        assert node.requests("GET") - asked == 1
        await node.until(lambda found: ids(found) == ["GPU-a", "GPU-b"], within=5)


@pytest.mark.parametrize("unknown", [NOT_READ, Fleet(problem="driver not loaded")])
@in_fake_time
async def test_while_nothing_is_known_the_node_keeps_what_it_has(unknown: Fleet) -> None:
    scores = '[{"uuid":"GPU-old","score":{}}]'
    async with world(unknown, before={REGISTER: OLD, SCORES: scores}, topology_scores=True) as node:
        await asyncio.sleep(120)
        assert node.annotations() == {REGISTER: OLD, SCORES: scores, AGENT: "env,hami-core"}
        node.fleet.set(fleet(A))
        await node.until(lambda found: ids(found) == ["GPU-a"])


@in_fake_time
async def test_cards_that_are_known_but_cannot_be_read_now_stay_registered_as_unhealthy() -> None:
    async with world(fleet(A)) as node:
        node.fleet.set(Fleet((CardState(A, "driver not loaded"),), "driver not loaded"))
        found = await node.until(lambda found: healthy(found) == [False])
        assert ids(found) == ["GPU-a"]


@in_fake_time
async def test_a_node_that_lost_all_its_cards_for_good_loses_its_registration() -> None:
    async with world(fleet(A), before={REGISTER: OLD}, topology_scores=True) as node:
        assert SCORES in node.annotations()
        node.fleet.set(Fleet())
        await node.until(lambda found: found == {AGENT: "env,hami-core"})


@in_fake_time
async def test_a_node_that_never_had_cards_gets_no_registration() -> None:
    async with world(Fleet(), text_registration=True) as node:
        await asyncio.sleep(100)
        assert node.annotations() == {AGENT: "env,hami-core"}
        assert node.requests("PATCH") == 1


@in_fake_time
async def test_a_card_that_cannot_be_registered_is_named_once_and_the_others_are_there() -> None:
    mute = CardFacts("GPU-m", 1, "NVIDIA Thor")
    async with world(fleet(A, mute)) as node:
        await asyncio.sleep(300)
        assert ids(node.annotations()) == ["GPU-a"]
        (line,) = node.logs.of("card is not registered")
        assert line["card"] == "GPU-m"


@in_fake_time
async def test_older_schedulers_get_text_and_a_handshake_every_thirty_seconds() -> None:
    async with world(fleet(A), text_registration=True) as node:
        found = node.annotations()
        assert found[REGISTER] == "GPU-a,10,143771,100,NVIDIA-NVIDIA H200,0,true,0,hami-core:"
        assert found[HANDSHAKE].startswith("Reported 2026-11-05 14:00:0")
        await node.annotate({HANDSHAKE: "Requesting_2026-11-05 14:00:10"})
        await node.until(lambda found: found[HANDSHAKE].startswith("Reported 2026-11-05 14:00:3"))
        await asyncio.sleep(300)
        assert 11 <= node.requests("PATCH") <= 12


@in_fake_time
async def test_after_the_end_nothing_is_written_and_the_registration_stays() -> None:
    """Upstream's loop goes on after its plugin was stopped and writes what was true then."""
    async with world(fleet(A)) as node:
        release, reached = asyncio.Event(), asyncio.Event()
        node.server.faults.next(Hold(release, reached), method="GET", agent=OURS)
        node.fleet.set(fleet(A, B))
        await reached.wait()
        await node.stop()
        release.set()
        patched = node.requests("PATCH")
        node.fleet.set(fleet(A, B, C))
        await asyncio.sleep(300)
        assert node.requests("PATCH") == patched
        assert ids(node.annotations()) == ["GPU-a"]


# -- pair scores


@in_fake_time
async def test_scores_are_written_and_asked_for_only_when_the_cards_change() -> None:
    async with world(fleet(A, B), topology_scores=True) as node:
        await asyncio.sleep(100)
        assert decode_pair_scores(node.annotations()[SCORES]) == {
            "GPU-a": {"GPU-b": 20},
            "GPU-b": {"GPU-a": 20},
        }
        assert node.links.asked == [("GPU-a", "GPU-b")]
        node.fleet.set(fleet(A, B, C))
        await asyncio.sleep(100)
        assert len(decode_pair_scores(node.annotations()[SCORES])) == 3
        assert node.links.asked[1:] == [("GPU-a", "GPU-b", "GPU-c")]


@in_fake_time
async def test_cards_that_disagree_on_their_links_score_nothing_and_are_reported_once() -> None:
    async with world(NOT_READ, topology_scores=True) as node:
        node.links.links["GPU-a", "GPU-b"] = Links(TopologyLevel.NODE, direct=4)
        node.fleet.set(fleet(A, B, C))
        await asyncio.sleep(100)
        scores = decode_pair_scores(node.annotations()[SCORES])
        assert scores["GPU-a"] == {"GPU-b": 0, "GPU-c": 20}
        ((ref, type_, reason, message),) = node.events.written
        assert ref == ObjectRef("Node", "", "n1", node.node()["uid"])
        assert (type_, reason) == ("Warning", "AsymmetricGPUP2PLink")
        assert "GPU-a" in message
        assert "GPU-b" in message
        node.fleet.set(fleet(A, B, C, ill=[C]))
        await asyncio.sleep(100)
        assert len(node.events.written) == 1


@in_fake_time
async def test_a_card_that_does_not_answer_about_links_costs_the_others_nothing() -> None:
    async with world(NOT_READ, topology_scores=True) as node:
        node.links.errors = [CardError("GPU-b", "lost")]
        node.fleet.set(fleet(A, B, C))
        found = await node.until(lambda found: SCORES in found)
        assert ids(found) == ["GPU-a", "GPU-b", "GPU-c"]
        assert decode_pair_scores(found[SCORES])["GPU-a"] == {"GPU-b": 0, "GPU-c": 20}


@pytest.mark.parametrize("error", [InventoryError("driver not loaded"), CardError("GPU-of-nobody", "lost")])
@in_fake_time
async def test_links_that_cannot_be_asked_for_delay_no_registration(error: InventoryError) -> None:
    async with world(NOT_READ, topology_scores=True) as node:
        node.links.errors = [error]
        node.fleet.set(fleet(A, B))
        found = await node.until(lambda found: ids(found) == ["GPU-a", "GPU-b"])
        assert SCORES not in found
        await node.until(lambda found: SCORES in found)


@in_fake_time
async def test_cards_none_of_which_answers_about_links_score_nothing() -> None:
    async with world(NOT_READ, topology_scores=True) as node:
        node.links.errors = [CardError("GPU-b", "lost"), CardError("GPU-a", "lost")]
        node.fleet.set(fleet(A, B))
        scores = decode_pair_scores((await node.until(lambda found: SCORES in found))[SCORES])
        assert scores == {"GPU-a": {"GPU-b": 0}, "GPU-b": {"GPU-a": 0}}
