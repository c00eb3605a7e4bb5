"""The map: find, filter, group, colour, zoom, and everything of it with the keyboard alone."""

from __future__ import annotations

import pytest

from tests.ui.browser import Viewer
from tests.ui.conftest import Readers
from tests.ui.described_cluster import large_cluster
from tests.ui.scripted_page import ScriptedPage

FILTERS = {
    "train": 8,
    "node:h100-1": 8,
    "model:a100": 6,
    "mode:mig": 2,
    "ns:chat": 3,
    "ns:chat -node:l4": 1,
    "owner:embed": 1,
    "is:unhealthy": 1,
    "is:cordoned": 1,
    "is:idle": 2,
    "is:shared is:full": 2,
    'model:"NVIDIA L4"': 4,
    "is:nonsense": 0,
    "no such thing": 0,
}
"""and how many cards they find"""


async def test_the_filter_finds(readers: Readers, served: ScriptedPage) -> None:
    viewer = await readers.open(served)
    for text, cards in FILTERS.items():
        await viewer.page.get_by_label("Filter cards").fill(text)
        await viewer.until("(text) => new URLSearchParams(location.hash.slice(1)).get('filter') === text", text)
        await viewer.painted()
        assert await viewer.text(".found") == f"{cards} of 30 cards", text
    await viewer.page.get_by_role("button", name="Clear the filter").click()
    await viewer.until("document.querySelector('.found').textContent === '30 cards'")


async def test_others_are_dimmed_where_the_reader_wants_to_keep_them(readers: Readers, served: ScriptedPage) -> None:
    viewer = await readers.open(served, "filter=ns:chat")
    hidden = await viewer.colours()
    colours = {entry.name: entry.colour for entry in await viewer.legend()}
    assert hidden[colours["vision"]] == 0
    await viewer.page.get_by_role("radio", name="dimmed").check()
    await viewer.until("location.hash.includes('find=1')")
    dimmed = await viewer.colours()
    assert dimmed[colours["vision"]] == 0, "not in its full colour"
    assert dimmed[colours["chat"]] > 0
    await viewer.until_text(".found", "3 of 30 cards")


async def test_an_entry_of_the_legend_is_a_filter(readers: Readers, served: ScriptedPage) -> None:
    viewer = await readers.open(served)
    await viewer.page.get_by_role("button", name="search").click()
    await viewer.until_text(".found", "3 of 30 cards")
    assert await viewer.page.get_by_role("button", name="search", pressed=True).count() == 1
    await viewer.page.get_by_role("button", name="search").click()
    await viewer.until("!document.querySelector('.found').textContent.includes(' of ')")


@pytest.mark.parametrize(
    ("label", "first"), [("Node", "a100-1, card 0"), ("Model", "ascend-1, card 0"), ("NVLink", "h100-1, card 0")]
)
async def test_cards_are_grouped(readers: Readers, served: ScriptedPage, label: str, first: str) -> None:
    viewer = await readers.open(served)
    await viewer.page.get_by_role("radio", name=label).check()
    await _focus_map(viewer)
    await viewer.press("Home")
    await viewer.until_text("#live", first)


async def test_colours_follow_the_owner_or_the_use(readers: Readers, served: ScriptedPage) -> None:
    viewer = await readers.open(served)
    await viewer.page.get_by_role("radio", name="Owner").check()
    await viewer.until_text(".legend-name", "search/embed")
    shown = await viewer.colours()
    assert all(shown[entry.colour] for entry in (await viewer.legend())[:8])
    await viewer.page.get_by_role("radio", name="Use").check()
    await viewer.until_text(".legend", "Memory used of what is granted")


async def test_zoom_changes_the_size_of_the_cells_and_fit_shows_all(readers: Readers, served: ScriptedPage) -> None:
    viewer = await readers.open(served)
    fitting = await viewer.colours()
    await viewer.page.get_by_role("button", name="Zoom out").click()
    await viewer.until("location.hash.includes('zoom=')")
    smaller = await viewer.colours()
    vision = (await viewer.legend())[0].colour
    assert smaller[vision] < fitting[vision]
    await viewer.page.get_by_role("button", name="Fit").click()
    await viewer.until("!location.hash.includes('zoom=')")
    assert await viewer.colours() == fitting
    await viewer.page.mouse.move(400, 400)
    await viewer.page.keyboard.down("Control")
    await viewer.page.mouse.wheel(0, 100)
    await viewer.page.keyboard.up("Control")
    await viewer.until("location.hash.includes('zoom=')")


async def test_the_smallest_cells_have_the_colour_of_their_largest_holder(
    readers: Readers, served: ScriptedPage
) -> None:
    viewer = await readers.open(served, "zoom=0")
    shown = await viewer.colours()
    colours = {entry.name: entry.colour for entry in await viewer.legend()}
    whole_cards, pixels_of_a_cell = 8, 9
    assert shown[colours["vision"]] == whole_cards * pixels_of_a_cell
    assert shown[colours["search"]] > 0
    bad = await viewer.page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--bad')")
    assert shown[bad] == pixels_of_a_cell, "one card is unhealthy"
    await viewer.go("zoom=0&find=1&filter=ns:search")
    assert (await viewer.colours())[colours["search"]] == shown[colours["search"]]


async def test_the_pointer_names_a_card_and_opens_it(readers: Readers, served: ScriptedPage) -> None:
    viewer = await readers.open(served)
    box = await viewer.page.locator(".map").bounding_box()
    await viewer.page.mouse.move(box["x"] + 100, box["y"] + 90)
    await viewer.until_text(".tip", "a100-1 · card 0")
    await viewer.until_text(".tip", "search/index-0")
    await viewer.page.mouse.click(box["x"] + 100, box["y"] + 90)
    await viewer.until_text("#details-title", "Card 0")
    await viewer.press("Escape")
    await viewer.page.mouse.click(box["x"] + 40, box["y"] + 30)
    await viewer.until_text("#details-title", "a100-1")


async def test_arrows_move_over_the_cards_and_say_where_they_are(readers: Readers, served: ScriptedPage) -> None:
    viewer = await readers.open(served)
    await _focus_map(viewer)
    steps = [
        ("Home", "a100-1, card 0, NVIDIA A100-SXM4-40GB, healthy, 73 % of the memory granted, 1 slice: index-0"),
        ("ArrowRight", "a100-1, card 1"),
        ("ArrowDown", "h100-1, card 1"),
        ("ArrowDown", "h100-2, card 1"),
        ("ArrowUp", "h100-1, card 1"),
        ("ArrowLeft", "h100-1, card 0"),
        ("End", "mig-1, card 1"),
        ("PageUp", "ascend-1, card 1"),
    ]
    for key, text in steps:
        await viewer.press(key)
        await viewer.until_text("#live", text)


async def test_enter_opens_a_card_and_escape_gives_the_focus_back(readers: Readers, served: ScriptedPage) -> None:
    viewer = await readers.open(served)
    await _focus_map(viewer)
    await viewer.press("Home", "ArrowRight", "Enter")
    await viewer.until_text("#details-title", "Card 1")
    assert await viewer.page.evaluate("document.activeElement.id") == "details-title"
    await viewer.press("Escape")
    await viewer.until("document.querySelector('#details').hidden")
    assert await viewer.page.evaluate("document.activeElement.className") == "map"
    await viewer.press("Shift+Enter")
    await viewer.until_text("#details-title", "a100-1")


async def test_matches_are_reached_with_the_keyboard(readers: Readers, served: ScriptedPage) -> None:
    viewer = await readers.open(served, "find=1")
    await viewer.press("/")
    await viewer.page.keyboard.type("is:shared")
    await viewer.press("Enter")
    await viewer.until_text("#live", "a100-1, card 1")
    await viewer.press("n")
    await viewer.until_text("#live", "ascend-1, card 1")
    await viewer.press("N")
    await viewer.until_text("#live", "a100-1, card 1")


async def test_keys_change_the_view_the_zoom_and_the_time(readers: Readers, served: ScriptedPage) -> None:
    viewer = await readers.open(served)
    for key, view in (("2", "waiting"), ("3", "what-if"), ("4", "time"), ("5", "totals"), ("1", "cards")):
        await viewer.press(key)
        await viewer.until("(view) => document.querySelector('[aria-current]').dataset.view === view", view)
    await viewer.press("-")
    await viewer.until("location.hash.includes('zoom=')")
    await viewer.press("0")
    await viewer.until("!location.hash.includes('zoom=')")
    await viewer.press("4")
    await viewer.until("document.querySelectorAll('.record').length === 26")
    await viewer.press("[")
    await viewer.until("location.hash.includes('time=')")
    await viewer.press("?")
    await viewer.page.wait_for_selector("dialog.help[open]")
    await viewer.press("Escape")
    await viewer.page.wait_for_selector("dialog.help", state="detached")


async def test_keys_do_nothing_while_the_reader_types(readers: Readers, served: ScriptedPage) -> None:
    viewer = await readers.open(served, "view=what-if")
    await viewer.page.get_by_label("Manifest").fill("")
    await viewer.page.get_by_label("Manifest").focus()
    await viewer.page.keyboard.type("12[]/?+-0")
    assert await viewer.page.get_by_label("Manifest").input_value() == "12[]/?+-0"
    assert "view=what-if" in await viewer.fragment()


async def test_every_control_is_reached_with_the_tab_key(readers: Readers, served: ScriptedPage) -> None:
    viewer = await readers.open(served, "node=h100-1")
    seen = set()
    for _ in range(60):
        await viewer.press("Tab")
        seen.add(
            await viewer.page.evaluate(
                """() => {
                  const focused = document.activeElement;
                  return (focused.getAttribute('aria-label') ?? focused.textContent).trim().slice(0, 40);
                }"""
            )
        )
    wanted = {
        "Skip to the content",
        "Cards",
        "What if",
        "Filter cards",
        "Fit",
        "Zoom in",
        "Close the details",
        "Card 0",
    }
    assert wanted <= seen


async def test_a_link_to_a_card_scrolls_to_it(readers: Readers) -> None:
    async with ScriptedPage(large_cluster(400)) as served:
        viewer = await readers.open(served, "node=gpu-0399&card=GPU-gpu-0399-7&zoom=5")
        await viewer.until("document.querySelector('.map').scrollTop > 5000")
        await viewer.press("Escape")
        await viewer.until("document.querySelector('#details').hidden")
        await viewer.page.evaluate("document.querySelector('.map').scrollTop = 0")
        await served.send(served.cluster.place("a", "b", "gpu-0001", 1, memory=10, cores=1))
        await viewer.until_text("#live", "1 pod placed")
        assert await viewer.page.evaluate("document.querySelector('.map').scrollTop") == 0, (
            "the reader stays where they are"
        )


async def _focus_map(viewer: Viewer) -> None:
    await viewer.page.locator(".map").focus()
