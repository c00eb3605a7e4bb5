"""Light and dark, wide and narrow, and readable for everyone: axe finds nothing serious in any of it."""

from __future__ import annotations

from typing import Any

import pytest
from axe_playwright_python.base import AXE_SCRIPT

from tests.ui.browser import DESKTOP, PHONE, Viewer
from tests.ui.conftest import Readers
from tests.ui.described_cluster import DescribedCluster
from tests.ui.hostile_names import troubled_cluster
from tests.ui.scripted_page import ScriptedPage

PLACES = {
    "cards": "",
    "table": "table=1",
    "waiting": "view=waiting",
    "what-if": "view=what-if",
    "time": "view=time",
    "totals": "view=totals",
    "card": "node=h100-1&card=GPU-h100-1-5",
    "node": "node=h100-1",
    "pod": "pod=search/index-0",
}
READY = {
    "what-if": ".shapes-table",
    "time": ".record",
    "card": "#details .more-lines",
    "node": "#details .more-lines",
    "pod": "#details .history",
}


async def _go(viewer: Viewer, place: str) -> None:
    await viewer.go(PLACES[place])
    if place in READY:
        await viewer.page.wait_for_selector(READY[place])
    await viewer.painted()


async def _serious(viewer: Viewer) -> list[str]:
    """What axe calls serious or critical on the page as it is now."""
    if not await viewer.page.evaluate("'axe' in window"):
        await viewer.page.evaluate(AXE_SCRIPT)
    found = await viewer.page.evaluate("axe.run({ resultTypes: ['violations'] })")
    return [
        f"{one['id']}: {node['html'][:200]} {node['failureSummary']}"
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    ]


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_axe_finds_nothing_serious_in_any_view(readers: Readers, served: ScriptedPage, theme: str) -> None:
    viewer = await readers.open(served, color_scheme=theme, reduced_motion="reduce")
    found = {}
    for place in PLACES:
        await _go(viewer, place)
        found[place] = await _serious(viewer)
    await viewer.go("view=what-if")
    await viewer.page.get_by_role("button", name="Try it").click()
    await viewer.page.wait_for_selector(".verdict")
    found["verdict"] = await _serious(viewer)
    await viewer.press("Tab")
    await viewer.page.locator("#help").click()
    found["help"] = await _serious(viewer)
    assert {place: faults for place, faults in found.items() if faults} == {}


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_axe_finds_nothing_serious_where_there_are_problems(readers: Readers, theme: str) -> None:
    async with ScriptedPage(troubled_cluster()) as served:
        viewer = await readers.open(served, color_scheme=theme, reduced_motion="reduce", viewport=PHONE)
        viewer.allowed += ("Failed to load resource",)
        found = {}
        for place in ("cards", "waiting", "totals", "pod"):
            await viewer.go(PLACES[place])
            found[place] = await _serious(viewer)
        await served.stop()
        await viewer.page.wait_for_selector(".banner.bad")
        found["lost"] = await _serious(viewer)
        await served.start()
        served.token = "needed"
        await viewer.page.reload()
        await viewer.page.wait_for_selector(".token-form")
        found["refused"] = await _serious(viewer)
        assert {place: faults for place, faults in found.items() if faults} == {}


async def test_axe_finds_nothing_serious_where_there_is_nothing(readers: Readers) -> None:
    async with ScriptedPage(DescribedCluster()) as served:
        viewer = await readers.open(served, reduced_motion="reduce")
        for place in ("cards", "waiting", "time", "totals"):
            await viewer.go(PLACES[place])
            assert await _serious(viewer) == []


async def test_the_theme_follows_the_system(readers: Readers, served: ScriptedPage) -> None:
    viewer = await readers.open(served, color_scheme="dark")
    assert await _theme(viewer) == "dark"
    await viewer.page.emulate_media(color_scheme="light")
    await viewer.until("document.documentElement.dataset.theme === 'light'")
    assert (await viewer.legend())[0].colour in await viewer.colours()


async def test_a_chosen_theme_stays_whatever_the_system_says(readers: Readers, served: ScriptedPage) -> None:
    viewer = await readers.open(served, color_scheme="dark")
    before = (await viewer.legend())[0].colour
    await viewer.page.get_by_role("button", name="Switch to the light theme").click()
    assert await _theme(viewer) == "light"
    assert (await viewer.legend())[0].colour != before, "each theme has colours of its own"
    await viewer.page.emulate_media(color_scheme="light")
    await viewer.page.emulate_media(color_scheme="dark")
    await viewer.page.reload()
    await viewer.until_text(".found", "30 cards")
    assert await _theme(viewer) == "light"


@pytest.mark.parametrize("size", [PHONE, {"width": 320, "height": 640}, {"width": 768, "height": 1024}, DESKTOP])
async def test_nothing_is_wider_than_the_screen(readers: Readers, served: ScriptedPage, size: dict[str, int]) -> None:
    viewer = await readers.open(served, viewport=size)
    for place in PLACES:
        await _go(viewer, place)
        width = await viewer.page.evaluate("document.documentElement.scrollWidth")
        assert width <= size["width"], place
        assert await _cut_off(viewer, size["width"]) == [], place


async def test_a_phone_reaches_everything_by_touch(readers: Readers, served: ScriptedPage) -> None:
    viewer = await readers.open(served, viewport=PHONE, has_touch=True, is_mobile=True)
    await viewer.page.get_by_text("View", exact=True).tap()
    await viewer.page.get_by_role("radio", name="Model").check()
    await viewer.until("location.hash.includes('group=model')")
    box = await viewer.page.locator(".map").bounding_box()
    await viewer.page.touchscreen.tap(box["x"] + 40, box["y"] + 90)
    await viewer.page.wait_for_selector("#details-title")
    await viewer.page.get_by_role("button", name="Close the details").tap()
    await viewer.page.get_by_role("link", name="Totals").tap()
    await viewer.page.wait_for_selector(".figure")
    heights = await viewer.page.evaluate("[...document.querySelectorAll('#tabs a')].map((tab) => tab.offsetHeight)")
    assert min(heights) >= 44, "large enough for a thumb"


async def _theme(viewer: Viewer) -> Any:
    return await viewer.page.evaluate("document.documentElement.dataset.theme")


async def _cut_off(viewer: Viewer, width: int) -> Any:
    """Controls that stand outside the screen and cannot be scrolled to."""
    return await viewer.page.evaluate(
        """(width) => {
          const isScrolled = (element) => {
            for (let one = element; one; one = one.parentElement) {
              if (['auto', 'scroll'].includes(getComputedStyle(one).overflowX)) return true;
            }
            return false;
          };
          return [...document.querySelectorAll('button, a, input, select, textarea')]
            .filter((one) => one.checkVisibility() && one.getBoundingClientRect().right > width + 1 && !isScrolled(one))
            .map((one) => one.outerHTML.slice(0, 120));
        }""",
        width,
    )
