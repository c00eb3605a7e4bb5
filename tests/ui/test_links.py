"""An address shows a colleague what the sender sees."""

from __future__ import annotations

import pytest

from tests.ui.browser import Viewer
from tests.ui.conftest import Readers
from tests.ui.described_cluster import copy
from tests.ui.scripted_page import ScriptedPage


async def _seen(viewer: Viewer) -> list[str]:
    """The text of the page, without what moves."""
    await viewer.painted()
    return [
        await viewer.text(selector) for selector in ("#tabs", "#main") if await viewer.page.locator(selector).count()
    ] + ([await viewer.text("#details")] if await viewer.page.locator("#details").is_visible() else [])


async def test_a_copied_address_shows_the_same(readers: Readers, served: ScriptedPage) -> None:
    sender = await readers.open(served)
    await sender.page.get_by_role("radio", name="Model").check()
    await sender.page.get_by_role("radio", name="Owner").check()
    await sender.page.get_by_label("Filter cards").fill("ns:notebooks")
    await sender.until_text(".found", "1 of 30 cards")
    await sender.page.locator(".map").focus()
    await sender.press("Home", "Enter")
    await sender.until_text("#details .lines", "placed")
    await sender.press("+")
    colleague = await readers.open(served, await sender.fragment())
    await colleague.until_text("#details .lines", "placed")
    assert await _seen(colleague) == await _seen(sender)
    assert await colleague.page.get_by_label("Filter cards").input_value() == "ns:notebooks"
    assert await colleague.colours() == await sender.colours()


@pytest.mark.parametrize(
    "fragment",
    [
        "view=waiting&filter=train&sort=newest",
        "view=totals",
        "table=1&sort=granted&filter=is%3Ashared",
        "pod=search%2Findex-0",
        "node=h100-1&group=nvlink&colour=use",
    ],
)
async def test_an_address_survives_being_opened(readers: Readers, served: ScriptedPage, fragment: str) -> None:
    viewer = await readers.open(served, fragment)
    await viewer.painted()
    assert sorted((await viewer.fragment()).split("&")) == sorted(fragment.split("&"))


async def test_an_address_of_an_earlier_time_shows_that_time(readers: Readers, served: ScriptedPage) -> None:
    served.past = lambda time: copy(served.cluster)
    viewer = await readers.open(served, f"view=time&time={served.cluster.time - 1800.0}")
    await viewer.until_text("#phase", "Earlier")
    assert await viewer.text(".when") == "2025-11-16 19:43:20"


async def test_back_and_forward_go_through_what_was_seen(readers: Readers, served: ScriptedPage) -> None:
    viewer = await readers.open(served)
    await viewer.press("2", "5")
    await viewer.page.go_back()
    await viewer.until("document.querySelector('[aria-current]').dataset.view === 'waiting'")
    await viewer.page.go_back()
    await viewer.until("document.querySelector('[aria-current]').dataset.view === 'cards'")
    await viewer.page.go_forward()
    await viewer.until("document.querySelector('[aria-current]').dataset.view === 'waiting'")


@pytest.mark.parametrize(
    "fragment", ["view=nothing&group=x&colour=&zoom=99&time=abc", "%%%", "&&==&", "view=cards&" * 500]
)
async def test_a_broken_address_shows_the_cards(readers: Readers, served: ScriptedPage, fragment: str) -> None:
    viewer = await readers.open(served, fragment)
    await viewer.until_text(".found", "30 cards")


async def test_the_token_leaves_the_address_and_is_not_in_a_copied_one(readers: Readers, served: ScriptedPage) -> None:
    served.token = "s3cret"
    viewer = await readers.open(served, "view=waiting&token=s3cret")
    await viewer.page.wait_for_selector(".waiting-pod")
    assert await viewer.fragment() == "view=waiting"
    assert "s3cret" not in await viewer.page.content()
    assert all("s3cret" not in request.target for request in served.requests)
