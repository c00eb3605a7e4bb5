"""The state of the page follows the ledger, and viewers of any speed get what is newer than what they know."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tessera.inspect.dashboard import documents, state
from tessera.inspect.dashboard.documents import NODES, Parts, compress, state_pieces
from tessera.inspect.dashboard.source import FixedSource
from tessera.inspect.offline_cluster import OfflineCluster
from tessera.inspect.utilization import MeasuredUse, Utilization
from tessera.kube.resources import NODES as API_NODES
from tests.support.builders import cluster, gpu_pod, node
from tests.support.cluster_states import state_of
from tests.support.event_loops import in_fake_time
from tests.support.page import Page, decoded, merged, pods_of


@pytest.fixture
async def page(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Page]:
    # Looks for changes follow each other at once.
    monkeypatch.setattr(state, "PERIOD_S", 0.0)
    here = cluster(node("n1").gpus(2, memory=24_000), node("n2").gpus(1, memory=24_000))
    held = here.start(gpu_pod("held", mem=4_000, cores=30), ["n1"])
    waits = gpu_pod("waits", mem=30_000)
    nodes = [node("n1").gpus(2, memory=24_000), node("n2").gpus(1, memory=24_000)]
    page = Page(FixedSource(OfflineCluster(state_of(nodes, [held, waits]))))
    yield page
    await page.server.close()


def _cluster(page: Page) -> OfflineCluster:
    assert isinstance(page.state.source, FixedSource)
    return page.state.source.cluster


def _why(state: Any) -> str:
    (row,) = state["waiting"].values()
    return str(row["why"])


def _is_judged(state: Any) -> bool:
    return _why(state) != "not judged yet"


async def test_the_state_shows_every_card_with_its_slices_and_the_pods_that_hold_them(page: Page) -> None:
    state = await page.get("/api/state")
    assert (state["source"]["kind"], state["since"]) == ("snapshot", None)
    cards = state["nodes"]["n1"]["cards"]
    slices = [one for card in cards for one in card[10]]
    assert [card[0] for card in cards] == [0, 1]
    assert [(one[1], one[2], one[3]) for one in slices] == [(4_000, 30, 1)]
    assert pods_of(state)[slices[0][0]][:2] == ["default", "held"]
    assert state["totals"]["cards"] == 3
    assert state["totals"]["granted"]["memory"] == 4_000


async def test_slices_of_a_card_are_in_one_order_however_its_pods_came() -> None:
    pods = [gpu_pod(name, mem=mem) for name, mem in (("small", 1_000), ("b", 2_000), ("a", 2_000))]
    orders = set()
    for mixed in (pods, pods[::-1]):
        here = cluster(node("n1").gpus(1, memory=24_000))
        page = Page(FixedSource(OfflineCluster(state_of([node("n1").gpus(1)], [here.start(pod) for pod in mixed]))))
        shown = await page.get("/api/state")
        orders.add(tuple(one[0] for one in shown["nodes"]["n1"]["cards"][0][10]))
        await page.server.close()
    assert orders == {("uid-a", "uid-b", "uid-small")}


async def test_a_waiting_pod_is_shown_with_why_and_with_the_smallest_change(page: Page) -> None:
    viewer = await page.follow()
    (waits,) = viewer.state["waiting"].values()
    assert (waits["name"], waits["asks"]) == ("waits", "1 x 30000 MiB")
    await viewer.until(_is_judged)
    (waits,) = viewer.state["waiting"].values()
    assert waits["why"] == "2 of 2 nodes: not enough free memory on the card"
    assert "24000 instead of 30000" in waits["change"]


async def test_a_viewer_sees_what_monitors_measured_last(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    source = page.state.source
    viewer = await page.follow()
    assert viewer.state["nodes"]["n2"]["cards"][0][11:13] == [None, None]
    source.measurements = MeasuredUse(cards={("n2", "n2-0"): Utilization(700, 30)})
    monkeypatch.setattr(source, "measured_anew", lambda: ["n2"])
    await viewer.until(lambda state: state["nodes"]["n2"]["cards"][0][11:13] == [700, 30])


async def test_a_viewer_hears_of_the_node_that_changed_and_of_no_other(page: Page) -> None:
    viewer = await page.follow()
    await viewer.until(_is_judged)
    _cluster(page).release(next(iter(pods_of(viewer.state))))
    news = await viewer.look()
    assert list(news["nodes"]) == ["n1"]
    assert pods_of(viewer.state) == {}
    _cluster(page).drop(API_NODES, "n2")
    await viewer.until(lambda state: "n2" not in state["nodes"])


@in_fake_time
async def test_who_has_everything_waits_for_something_new_or_for_some_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    page = Page(FixedSource(OfflineCluster(state_of([node("n1").gpus(1), node("n2").gpus(1)]))))
    viewer, clock = await page.follow(), asyncio.get_running_loop().time
    began = clock()
    assert (await viewer.look())["nodes"] == {}
    assert clock() - began == pytest.approx(15.0)
    asked = asyncio.create_task(viewer.look())
    await asyncio.sleep(1.0)
    _cluster(page).drop(API_NODES, "n2")
    assert (await asked)["nodes"] == {"n2": None}
    assert clock() - began < 15.0 + 1.0 + 2 * state.PERIOD_S
    began = clock()
    await page.get(f"/api/state?since={viewer.state['version']}&wait=0")
    assert clock() == began
    await page.server.close()


async def test_all_viewers_who_know_the_same_get_the_same_bytes(page: Page) -> None:
    viewer = await page.follow()
    await viewer.until(_is_judged)
    target = f"/api/state?since={viewer.state['version']}"
    asked = [asyncio.create_task(page.ask(target)) for _ in range(3)]
    await asyncio.sleep(0)
    _cluster(page).drop(API_NODES, "n2")
    bodies = [(await one).body for one in asked]
    assert all(one is bodies[0] for one in bodies), "it is made once"


async def test_a_state_that_was_kept_is_continued_by_what_changed_since(page: Page) -> None:
    viewer = await page.follow()
    await viewer.until(_is_judged)
    first = await page.get("/api/state")
    _cluster(page).drop(API_NODES, "n2")
    await viewer.until(lambda state: "n2" not in state["nodes"])
    second = await page.follow()
    assert second.state == first
    assert "n2" not in merged(second.state, await second.look())["nodes"]


@pytest.mark.parametrize("since", ["0", "1", "99999999999999999", "-1", "x", "\u0665", "9" * 30])
async def test_a_version_that_is_not_known_gets_the_whole_state(page: Page, since: str) -> None:
    whole = await page.get("/api/state")
    assert (await page.get(f"/api/state?since={since}"))["nodes"] == whole["nodes"]


async def test_without_viewers_nothing_is_followed_and_the_memory_is_given_back(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "LINGER_S", 0.0)
    viewer = await page.follow()
    task = page.state._task
    assert task is not None
    await task
    assert not list(page.state.parts.all())
    assert (await viewer.look())["since"] is None


async def test_who_waits_when_the_server_ends_is_told_so_and_gets_no_empty_state(page: Page) -> None:
    viewer = await page.follow()
    await viewer.until(_is_judged)
    asked = asyncio.create_task(page.ask(f"/api/state?since={viewer.state['version']}"))
    await asyncio.sleep(0)
    await page.server.close()
    for response in (await asked, await page.ask("/api/state")):
        assert (response.status, decoded(response)["error"]) == (503, "the server is ending")


def _document(parts: Parts, since: int | None) -> Any:
    pieces = state_pieces(
        {"version": parts.version, "since": since}, parts.all() if since is None else parts.after(since)
    )
    return json.loads(gzip.decompress(compress(pieces)))


def test_a_viewer_who_was_away_gets_what_changed_once_as_it_is_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "MAX_GONE", 2)
    parts, seen = Parts(7), {}
    for number in range(40):
        if number:
            parts.put((NODES, f"n{number % 5}"), b"%d" % number if number % 7 else None)
        parts.put((NODES, "same"), b"0")
        parts.publish()
        seen[parts.version] = _document(parts, None)
    now = _document(parts, None)
    reached = [version for version in seen if parts.reaches(version)]
    assert 7 < min(reached) < parts.version, "of too many that are gone, the oldest are forgotten"
    for version in reached:
        news = {**_document(parts, version), "since": version}
        assert merged(seen[version], news)["nodes"] == now["nodes"]
        assert "same" not in news["nodes"]


def test_nothing_new_is_no_version() -> None:
    parts = Parts(7)
    parts.put((NODES, "a"), None)
    assert not parts.publish()
    parts.put((NODES, "a"), b"1")
    assert parts.publish()
    parts.put((NODES, "a"), b"1")
    assert (parts.publish(), parts.version) == (False, 8)
