"""Every view shows what it is for, and the details of a card, a node and a pod say what is known about them."""

from __future__ import annotations

import pytest

from tests.ui.conftest import Readers
from tests.ui.described_cluster import DescribedCluster, copy, small_cluster
from tests.ui.scripted_page import ScriptedPage


async def test_the_cards_are_a_map_with_a_legend_of_namespaces(readers: Readers, served: ScriptedPage) -> None:
    viewer = await readers.open(served)
    await viewer.until_text(".found", "30 cards")
    names = await viewer.page.locator(".legend-name").all_inner_texts()
    assert names == ["vision", "search", "speech", "notebooks", "chat", "documents", "risk"], "largest first"
    shown = await viewer.colours()
    for entry in await viewer.legend():
        assert shown[entry.colour] > 0, f"{entry.name} is on the map in the colour of the legend"
    marks = await viewer.page.locator(".mark-entry").all_inner_texts()
    assert marks == ["Free", "Unhealthy", "Takes no pods", "MIG", "Used"]


async def test_the_table_says_the_same_as_the_map(readers: Readers, served: ScriptedPage) -> None:
    viewer = await readers.open(served, "table=1")
    rows = await viewer.page.locator(".cards-table tbody tr").all_inner_texts()
    assert len(rows) == 30
    assert rows[3].split("\t")[:5] == ["a100-1", "3", "NVIDIA A100-SXM4-40GB", "hami-core", "unhealthy"]
    await viewer.page.get_by_role("button", name="Granted").click()
    await viewer.until_text("[aria-sort=descending]", "Granted")
    assert "vision/train-1" in await viewer.text(".cards-table tbody tr")
    assert "sort=granted" in await viewer.fragment()


async def test_a_long_table_has_pages(readers: Readers) -> None:
    cluster = DescribedCluster()
    for number in range(15):
        cluster.add_node(f"node-{number}", "NVIDIA L4", 8)
    async with ScriptedPage(cluster) as served:
        viewer = await readers.open(served, "table=1")
        assert await viewer.page.locator(".cards-table tbody tr").count() == 100
        await viewer.page.get_by_role("button", name="Next").click()
        await viewer.until_text(".pages", "101 to 120 of 120 cards")
        assert await viewer.page.locator(".cards-table tbody tr").count() == 20


async def test_waiting_says_why_and_what_would_fit(readers: Readers, served: ScriptedPage) -> None:
    viewer = await readers.open(served, "view=waiting")
    first = viewer.page.locator(".waiting-pod").first
    assert (await first.locator("h3").inner_text()) == "vision/train-3", "the longest wait is first"
    assert (await first.locator("dt").all_inner_texts()) == ["Why", "Nearest", "Smallest change"]
    assert "2 instead of 4 cards would fit on h100-2" in await first.inner_text()
    assert (await first.locator(".age").inner_text()).startswith("21 min")
    assert (await viewer.text("#tabs .badge")).startswith("2")


async def test_waiting_is_ordered_and_filtered(readers: Readers, served: ScriptedPage) -> None:
    viewer = await readers.open(served, "view=waiting")
    await viewer.page.get_by_label("Order").select_option("newest")
    await viewer.until("document.querySelector('.waiting-pod h3').textContent === 'notebooks/alan-0'")
    await viewer.page.get_by_label("Filter waiting pods").fill("train")
    await viewer.until("document.querySelectorAll('.waiting-pod').length === 1")
    await viewer.page.get_by_label("Filter waiting pods").fill("nothing like this")
    await viewer.until_text(".empty", "No waiting pod matches")


async def test_what_if_says_where_a_manifest_would_go(readers: Readers, served: ScriptedPage) -> None:
    viewer = await readers.open(served, "view=what-if")
    await viewer.page.get_by_role("button", name="Try it").click()
    await viewer.until_text(".verdict.fits", "trial fits")
    assert "h100-2: card 6" in await viewer.text(".verdict")
    assert "11 such pods fit now" in await viewer.text(".result")
    await viewer.page.get_by_role("link", name="h100-2").click()
    await viewer.until_text("#details-title", "h100-2")


async def test_what_if_says_what_stops_a_manifest(readers: Readers, served: ScriptedPage) -> None:
    viewer = await readers.open(served, "view=what-if")
    await viewer.page.get_by_label("Manifest").fill("gpumem: 90000")
    await viewer.page.keyboard.press("Control+Enter")
    await viewer.until_text(".verdict.misfits", "81559 instead of 90000 MiB would fit on h100-2")


async def test_what_if_shows_an_error_of_the_server(readers: Readers, served: ScriptedPage) -> None:
    served.answers["api/whatif"] = {"status": 400, "error": "line 3: this is not YAML"}
    viewer = await readers.open(served, "view=what-if")
    viewer.allowed += ("Failed to load resource",)
    await viewer.page.get_by_role("button", name="Try it").click()
    await viewer.until_text(".result", "line 3: this is not YAML")


async def test_the_usual_shapes_say_how_many_more_fit(readers: Readers, served: ScriptedPage) -> None:
    viewer = await readers.open(served, "view=what-if")
    await viewer.until("document.querySelectorAll('.shapes-table tbody tr').length === 7")
    assert (await viewer.page.locator(".shapes-table tbody tr").first.inner_text()).split() == [
        "1/4",
        "H100",
        "80GB",
        "14",
    ]


async def test_time_goes_back_to_how_it_was(readers: Readers, served: ScriptedPage) -> None:
    served.past = lambda time: _without_training()
    viewer = await readers.open(served, "view=time")
    await viewer.until("document.querySelectorAll('.record').length === 26")
    await viewer.page.locator(".record").nth(5).locator("button").click()
    await viewer.until_text("#phase", "Earlier")
    await viewer.until("document.querySelectorAll('.record').length === 21")
    await viewer.page.get_by_role("link", name="Cards", exact=True).click()
    await viewer.until_text(".banner.past", "You see the cluster as it was at")
    assert "vision" not in await viewer.page.locator(".legend-name").all_inner_texts()
    await viewer.page.get_by_role("button", name="Back to now").click()
    await viewer.until_text(".legend", "vision")
    assert await viewer.text("#phase") == "Live"


async def test_time_steps_from_decision_to_decision(readers: Readers, served: ScriptedPage) -> None:
    served.past = lambda time: copy(served.cluster)
    viewer = await readers.open(served, "view=time")
    await viewer.until("document.querySelectorAll('.record').length === 26")
    for left in (26, 25, 24):
        await viewer.page.get_by_role("button", name="Previous").click()
        await viewer.until("(left) => document.querySelectorAll('.record').length === left", left)
    await viewer.page.get_by_role("button", name="Next").click()
    await viewer.until("document.querySelectorAll('.record').length === 25")


async def test_time_without_a_journal_says_what_keeps_one(readers: Readers, served: ScriptedPage) -> None:
    served.cluster.journal = None
    viewer = await readers.open(served, "view=time")
    await viewer.until_text(".empty", "No journal")


async def test_totals_are_of_the_cluster_of_namespaces_and_of_models(readers: Readers, served: ScriptedPage) -> None:
    viewer = await readers.open(served, "view=totals")
    titles = await viewer.page.locator(".figure h2").all_inner_texts()
    assert titles == ["Memory granted", "Cores granted", "Memory used", "Fragmented", "Idle grants", "Waiting"]
    assert "longest 21 min" in await viewer.text(".figure:last-child")
    tables = viewer.page.locator(".totals-table")
    assert await tables.nth(0).locator("tbody tr").count() == 7
    assert await tables.nth(1).locator("tbody tr").count() == 4
    await tables.nth(0).get_by_role("link", name="search").click()
    await viewer.until_text(".found", "3 of 30 cards")


async def test_totals_without_a_monitor_say_that_use_is_unknown(readers: Readers) -> None:
    cluster = DescribedCluster(is_measured=False)
    cluster.add_node("l4-1", "NVIDIA L4", 2)
    async with ScriptedPage(cluster) as served:
        viewer = await readers.open(served, "view=totals")
        await viewer.until_text(".figure", "Unknown: the monitor gives no figures here")


async def test_the_details_of_a_card_name_its_holders(readers: Readers, served: ScriptedPage) -> None:
    viewer = await readers.open(served, "node=h100-1&card=GPU-h100-1-5")
    assert await viewer.text("#details-title") == "Card 5"
    holders = await viewer.page.locator("#details .slices a").all_inner_texts()
    assert holders == ["notebooks/ada-0", "notebooks/grace-0", "notebooks/edsger-0"]
    assert "60\u202f000 MiB of 81\u202f559 MiB" in await viewer.text("#details .meters")
    await viewer.page.get_by_text("What top says").click()
    await viewer.until_text("#details .lines", "card GPU-h100-1-5 of h100-1: placed")
    await viewer.until_text("#details .properties", "575.57.08")


async def test_the_details_of_a_node_lead_to_its_cards(readers: Readers, served: ScriptedPage) -> None:
    viewer = await readers.open(served, "node=a100-1")
    await viewer.until_text("#details .lines", "node a100-1: placed")
    assert "unhealthy" in await viewer.text("#details .slices li:nth-child(4)")
    await viewer.page.locator("#details .slices a").nth(1).click()
    await viewer.until_text("#details-title", "Card 1")


async def test_the_details_of_a_pod_have_its_history(readers: Readers, served: ScriptedPage) -> None:
    viewer = await readers.open(served, "pod=search/index-0")
    assert "StatefulSet index" in await viewer.text("#details .properties")
    assert await viewer.page.locator("#details .slices li").count() == 2
    await viewer.until_text("#details .history", "on card 0, 1: 30000 MiB, 60 cores of each")
    await viewer.page.locator("#details .history a").first.click()
    assert "view=time" in await viewer.fragment()


async def test_the_details_of_a_waiting_pod_say_why(readers: Readers, served: ScriptedPage) -> None:
    viewer = await readers.open(served, "pod=vision/train-3")
    await viewer.until_text("#details", "needs 4 cards that fit on one node; the most are 2 on h100-2")


@pytest.mark.parametrize(
    ("fragment", "sentence"),
    [
        ("node=h100-1&card=GPU-gone", "This card is not in the cluster now."),
        ("node=gone", "This node is not in the cluster now."),
        ("pod=vision/gone", "This pod holds no card now."),
    ],
)
async def test_the_details_of_what_is_gone_say_so(
    readers: Readers, served: ScriptedPage, fragment: str, sentence: str
) -> None:
    viewer = await readers.open(served, fragment)
    await viewer.until_text("#details .note", sentence)


@pytest.mark.parametrize(
    ("view", "title"),
    [("cards", "No cards yet"), ("waiting", "Nothing waits"), ("time", "No journal"), ("totals", "No cards yet")],
)
async def test_an_empty_cluster_says_what_is_missing(readers: Readers, view: str, title: str) -> None:
    async with ScriptedPage(DescribedCluster()) as served:
        viewer = await readers.open(served, f"view={view}")
        await viewer.until_text("#main .empty h2", title)


async def test_a_snapshot_is_shown_as_what_does_not_change(readers: Readers, served: ScriptedPage) -> None:
    served.cluster.live, served.cluster.kind, served.cluster.name = False, "snapshot", "cluster.json"
    viewer = await readers.open(served)
    await viewer.until_text("#phase", "Does not change")
    assert await viewer.text("#source") == "cluster.json"
    await served.send(served.cluster.wait("vision", "train-3", why="was judged later"))
    await viewer.go("view=waiting")
    await viewer.until_text(".waiting-pod dd", "was judged later")
    assert await viewer.text("#phase") == "Does not change"


def _without_training() -> DescribedCluster:
    cluster = small_cluster()
    for name in ("train-1", "train-2"):
        cluster.remove("vision", name)
    return cluster
