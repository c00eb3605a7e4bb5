"""A gang that waits is one row, and what is held or claimed is told apart from what pods have."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.ui.conftest import Readers
from tests.ui.described_cluster import cluster_with_gangs
from tests.ui.scripted_page import ScriptedPage


@pytest_asyncio.fixture(loop_scope="session")
async def gangs() -> AsyncIterator[ScriptedPage]:
    async with ScriptedPage(cluster_with_gangs()) as page:
        yield page


async def test_a_gang_waits_in_one_row_with_its_members_on_demand(readers: Readers, gangs: ScriptedPage) -> None:
    viewer = await readers.open(gangs, "view=waiting&filter=pretrain")
    await viewer.until("document.querySelectorAll('.waiting-pod').length === 1")
    row = viewer.page.locator(".waiting-gang")
    assert await row.locator(".gang-figures li").all_inner_texts() == ["8 required", "7 exist", "5 fit", "1 gated"]
    assert "5 of 8 members fit; short of 12 cards" in await row.inner_text()
    member = row.get_by_role("link", name="pretrain-3")
    assert not await member.is_visible()
    await row.get_by_text("8 members", exact=True).click()
    await member.click()
    await viewer.until_text("#details .note", "Its gang waits since")
    assert "short of 12 cards" in await viewer.text("#details")


async def test_members_stay_unfolded_when_the_gang_changes(readers: Readers, gangs: ScriptedPage) -> None:
    viewer = await readers.open(gangs, "view=waiting&filter=gang:pretrain")
    await viewer.page.get_by_text("8 members", exact=True).click()
    event = gangs.cluster.wait_as_gang("vision", "pretrain", [[f"pretrain-{i}", "waits", ""] for i in range(8)], fit=6)
    await gangs.send(event)
    await viewer.until_text(".gang-figures", "6 fit")
    assert await viewer.page.get_by_role("link", name="pretrain-7").is_visible()


async def test_members_of_gangs_count_as_pods_that_wait(readers: Readers, gangs: ScriptedPage) -> None:
    viewer = await readers.open(gangs, "view=waiting")
    await viewer.until_text(".waiting-view h2", "12 pods wait · 2 gangs")
    assert (await viewer.text("#tabs .badge")).startswith("12")


async def test_a_place_held_for_a_gang_is_no_pod_and_says_for_how_long(readers: Readers, gangs: ScriptedPage) -> None:
    viewer = await readers.open(gangs, "node=h100-2&card=GPU-h100-2-7")
    await viewer.until_text("#details .slices", "held for gang align until")
    await viewer.until_text(".marks", "Held for a gang")
    await viewer.page.locator("#details .slices").get_by_role("link", name="align").click()
    await viewer.until("document.querySelectorAll('.waiting-gang').length === 1")
    assert "Held until" in await viewer.text(".waiting-gang")


async def test_a_nomination_names_who_claims_what_until_when_and_who_leaves(
    readers: Readers, gangs: ScriptedPage
) -> None:
    viewer = await readers.open(gangs, "node=h100-1&card=GPU-h100-1-5")
    await viewer.until_text("#details .claims", "nominated until")
    claims = await viewer.text("#details .claims")
    assert "search/urgent-0" in claims
    assert "for it leave: notebooks/ada-0, notebooks/edsger-0" in claims
    holders = await viewer.page.locator("#details .slices").first.locator("li").all_inner_texts()
    assert ["leaves for" in text for text in holders] == [True, False, True], "grace-0 stays"
    await viewer.until_text(".marks", "Nominated")
    await viewer.go("pod=search/urgent-0")
    await viewer.until_text("#details .claims", "h100-1 · card 5")
    await viewer.go("pod=notebooks/ada-0")
    await viewer.until_text("#details .summary", "Leaves for")


async def test_a_claim_for_a_gang_leads_to_the_gang(readers: Readers, gangs: ScriptedPage) -> None:
    leaving = ["uid-vision-train-1"]
    gangs.cluster.nominate(
        *("vision", "pretrain", "h100-1", 0), memory=81559, leaving=leaving, until=gangs.cluster.time, is_gang=True
    )
    viewer = await readers.open(gangs, "pod=vision/train-1")
    await viewer.until_text("#details .summary", "gang vision/pretrain")
    await viewer.page.locator("#details .summary").get_by_role("link", name="gang vision/pretrain").click()
    await viewer.until_text(".waiting-gang", "5 of 8 members fit")


async def test_the_filter_finds_gangs_and_nominations(readers: Readers, gangs: ScriptedPage) -> None:
    viewer = await readers.open(gangs, "filter=gang:align")
    await viewer.until_text(".found", "2 of 30 cards")
    await viewer.go("filter=is:nominated")
    await viewer.until_text(".found", "1 of 30 cards")


async def test_time_tells_of_gangs_and_of_preemption(readers: Readers, gangs: ScriptedPage) -> None:
    viewer = await readers.open(gangs, "view=time")
    await viewer.until_text(".records", "vision/pretrain is waiting: 8 x 4 NVIDIA: 5 of 8 members fit")
    kinds = await viewer.page.locator(".record-kind").all_inner_texts()
    assert kinds[:2] == ["evicted", "nominated"]


async def test_what_if_says_whether_a_gang_fits_as_a_whole(readers: Readers, gangs: ScriptedPage) -> None:
    viewer = await readers.open(gangs, "view=what-if")
    await viewer.page.locator("#manifest").fill("tessera.io/gang: train")
    await viewer.page.get_by_role("button", name="Try it").click()
    await viewer.until_text(".verdict.fits h3", "Gang train of 8 fits as a whole")
    await viewer.page.locator("#manifest").fill("tessera.io/gang: train x 9")
    await viewer.page.get_by_role("button", name="Try it").click()
    await viewer.until_text(".verdict.misfits", "0 of 8 members fit")
    assert "such pods fit" not in await viewer.text(".result")
