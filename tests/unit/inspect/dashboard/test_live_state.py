"""The documents of the page follow the ledger, and viewers of any speed hear of what changed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

from tessera.inspect.dashboard import live_state
from tessera.inspect.dashboard.live_state import HEARTBEAT, PIECE_BYTES, EventLog, encode_event
from tessera.inspect.dashboard.source import FixedSource
from tessera.inspect.offline_cluster import OfflineCluster
from tessera.inspect.utilization import MeasuredUse, Utilization
from tessera.kube.resources import NODES
from tests.support.builders import cluster, gpu_pod, node
from tests.support.cluster_states import state_of
from tests.support.page import Page


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks for changes follow each other at once, and every state is a new one."""
    monkeypatch.setattr(live_state, "PERIOD_S", 0.0)
    monkeypatch.setattr(live_state, "KEPT_S", 0.0)


@pytest.fixture
async def page() -> AsyncIterator[Page]:
    here = cluster(node("n1").gpus(2, memory=24_000), node("n2").gpus(1, memory=24_000))
    held = here.start(gpu_pod("held", mem=4_000, cores=30), ["n1"])
    waits = gpu_pod("waits", mem=30_000)
    state = state_of([node("n1").gpus(2, memory=24_000), node("n2").gpus(1, memory=24_000)], [held, waits])
    page = Page(FixedSource(OfflineCluster(state)))
    yield page
    await page.server.close()


def _cluster(page: Page) -> OfflineCluster:
    assert isinstance(page.state.source, FixedSource)
    return page.state.source.cluster


def _cards(document: Any, name: str) -> Any:
    return next(one["cards"] for one in document["nodes"] if one["name"] == name)


async def test_the_state_shows_every_card_with_its_slices_and_the_pods_that_hold_them(page: Page) -> None:
    state = await page.get("/api/state")
    assert state["source"]["kind"] == "snapshot"
    cards = _cards(state, "n1")
    slices = [one for card in cards for one in card[10]]
    assert [card[0] for card in cards] == [0, 1]
    assert [(one[1], one[2], one[3]) for one in slices] == [(4_000, 30, 1)]
    assert state["pods"][slices[0][0]][:2] == ["default", "held"]
    assert state["totals"]["cards"] == 3
    assert state["totals"]["granted"]["memory"] == 4_000


async def test_a_waiting_pod_is_shown_with_why_and_with_the_smallest_change(page: Page) -> None:
    state = await page.get("/api/state")
    (waits,) = state["waiting"]
    assert (waits["name"], waits["asks"]) == ("waits", "1 x 30000 MiB")
    viewer = await page.events(state["version"])
    event = await viewer.next("waiting")
    while event.data["set"][0]["why"] == "not judged yet":
        event = await viewer.next("waiting")
    (waits,) = event.data["set"]
    assert "not enough free memory" in waits["why"]
    assert "24000 instead of 30000" in waits["change"]
    await viewer.close()


async def test_a_viewer_sees_what_monitors_measured_last(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    source = page.state.source
    assert isinstance(source, FixedSource)
    before = await page.get("/api/state")
    assert _cards(before, "n2")[0][11:13] == [None, None]
    source.measurements = MeasuredUse(cards={("n2", "n2-0"): Utilization(700, 30)})
    monkeypatch.setattr(source, "measured_anew", lambda: ["n2"])
    viewer = await page.events(before["version"])
    event = await viewer.next("nodes")
    assert _cards(event.data, "n2")[0][11:13] == [700, 30]
    await viewer.close()


async def test_a_viewer_hears_of_the_node_that_changed_and_of_no_other(page: Page) -> None:
    state = await page.get("/api/state")
    viewer = await page.events(state["version"])
    uid = next(iter(state["pods"]))
    _cluster(page).release(uid)
    event = await viewer.next("nodes")
    assert event.data["pods"] == {uid: None}
    assert [one["name"] for one in event.data["nodes"]] == ["n1"]
    assert event.data["gone"] == []
    assert event.version == event.data["version"]
    _cluster(page).drop(NODES, "n2")
    event = await viewer.next("nodes")
    assert event.data["gone"] == ["n2"]
    await viewer.close()
    after = await page.get("/api/state")
    assert [one["name"] for one in after["nodes"]] == ["n1"]
    assert after["pods"] == {}


async def test_a_viewer_that_comes_back_too_late_is_told_to_start_again(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_state, "MAX_EVENTS", 2)
    state = await page.get("/api/state")
    for number in range(3):
        page.state.log.append("totals", b"%d" % number)
    viewer = await page.events(state["version"])
    await viewer.next("resync")


async def test_a_version_of_another_process_is_told_to_start_again(page: Page) -> None:
    state = await page.get("/api/state")
    for version in (0, 1, state["version"] + 1_000_000):
        await (await page.events(version)).next("resync")


async def test_without_viewers_nothing_is_followed_and_the_memory_is_given_back(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_state, "LINGER_S", 0.0)
    state = await page.get("/api/state")
    task = page.state._task
    assert task is not None
    await task
    assert not page.state._documents
    await (await page.events(state["version"])).next("resync")


async def test_all_viewers_get_the_same_bytes(page: Page) -> None:
    state = await page.get("/api/state")
    streams = [page.state.events(state["version"]) for _ in range(3)]
    _cluster(page).drop(NODES, "n2")
    received = []
    for stream in streams:
        data = b""
        while b'"n2"' not in data:
            data += await anext(stream)
        received.append(data[: data.index(b'"n2"')])
        await stream.aclose()
    assert len(set(received)) == 1


async def test_a_state_that_was_kept_is_continued_by_the_events_since(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_state, "KEPT_S", 60.0)
    first = await page.get("/api/state")
    viewer = await page.events(first["version"])
    _cluster(page).drop(NODES, "n2")
    await viewer.next("nodes")
    await viewer.close()
    second = await page.get("/api/state")
    assert second == first
    event = await (await page.events(second["version"])).next("nodes")
    assert event.data["gone"] == ["n2"]


async def test_a_viewer_that_was_away_gets_what_it_missed_in_small_pieces() -> None:
    log, data = EventLog(7), b"x" * (PIECE_BYTES // 4)
    for _ in range(20):
        log.append("nodes", data)
    pieces: list[bytes] = []
    async with aclosing(log.stream(8)) as stream:
        assert await anext(stream) == HEARTBEAT
        while sum(map(len, pieces)) < 19 * len(data):
            pieces.append(await anext(stream))
    assert b"".join(pieces) == b"".join(encode_event("nodes", data, version) for version in range(9, 28))
    assert max(map(len, pieces)) < 2 * PIECE_BYTES
