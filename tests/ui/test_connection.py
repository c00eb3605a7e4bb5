"""A lost connection, a return, and readers whom the server does not know."""

from __future__ import annotations

import pytest

from tests.ui.browser import Viewer
from tests.ui.conftest import Readers
from tests.ui.scripted_page import ScriptedPage


def _allow_refusals(viewer: Viewer) -> None:
    viewer.allowed += ("Failed to load resource",)


async def try_now(viewer: Viewer) -> None:
    """Press the button, unless the page has returned by itself since."""
    await viewer.page.evaluate("document.querySelector('.banner.bad button')?.click()")


async def test_a_lost_connection_is_told_and_what_was_known_stays(readers: Readers, served: ScriptedPage) -> None:
    viewer = await readers.open(served)
    await served.stop()
    await viewer.until_text(".banner.bad", "Connection lost.")
    await viewer.until_text(".banner.bad", "You see the cluster as it was at")
    assert await viewer.text("#phase") == "Disconnected"
    assert "30 cards" in await viewer.text(".found")


def whole_states(served: ScriptedPage) -> int:
    """How often all of the state was asked for."""
    return sum(request.path == "/api/state" and "since" not in request.query for request in served.requests)


async def test_after_a_return_what_was_missed_follows(readers: Readers, served: ScriptedPage) -> None:
    viewer = await readers.open(served, "view=waiting")
    await served.stop()
    await viewer.until_text(".banner.bad", "Connection lost.")
    await served.send(served.cluster.wait("vision", "train-4", why="came in the meantime"))
    await served.start()
    await try_now(viewer)
    await viewer.until_text(".waiting-pod dd", "came in the meantime")
    await viewer.until("document.querySelectorAll('.banner').length === 0")
    assert await viewer.text("#phase") == "Live"
    assert whole_states(served) == 1, "what is newer was enough"


async def test_the_page_returns_by_itself_and_also_if_nothing_is_new(readers: Readers, served: ScriptedPage) -> None:
    viewer = await readers.open(served)
    await served.stop()
    await viewer.until_text("#phase", "Disconnected")
    await served.start()
    await viewer.until_text("#phase", "Live")
    await viewer.until("document.querySelectorAll('.banner').length === 0")


async def test_after_too_long_an_absence_the_state_is_fetched_again(readers: Readers, served: ScriptedPage) -> None:
    viewer = await readers.open(served, "view=waiting")
    await served.stop()
    await viewer.until_text(".banner.bad", "Connection lost.")
    await served.send(served.cluster.wait("vision", "train-4", why="came in the meantime"))
    served.forget()
    await served.start()
    await try_now(viewer)
    await viewer.until_text(".waiting-pod dd", "came in the meantime")
    assert await viewer.page.locator(".waiting-pod").count() == 3


async def test_the_alert_is_not_read_again_each_second(readers: Readers, served: ScriptedPage) -> None:
    viewer = await readers.open(served)
    await served.stop()
    await viewer.until_text(".banner.bad", "The server does not respond.")
    await viewer.page.evaluate("() => { document.querySelector('.banner.bad').isSame = true }")
    first = await viewer.text(".banner.bad .number")
    await viewer.until("(first) => document.querySelector('.banner.bad .number').textContent !== first", first)
    assert await viewer.page.evaluate("document.querySelector('.banner.bad').isSame"), "a new alert is read again"


async def test_a_server_that_never_answered_is_told(readers: Readers, served: ScriptedPage) -> None:
    viewer = await readers.open(served)
    _allow_refusals(viewer)
    served.refusal = (503, "the scheduler is not the leader")
    await viewer.page.reload()
    await viewer.until_text(".empty", "The server does not respond")
    await viewer.until_text(".empty", "the scheduler is not the leader")
    served.refusal = None
    await viewer.until_text(".found", "30 cards")


async def test_without_a_token_the_reader_is_asked_for_one(readers: Readers, served: ScriptedPage) -> None:
    served.token = "right"
    viewer = await readers.arrive(served.url)
    _allow_refusals(viewer)
    await viewer.open()
    await viewer.until_text(".empty", "Sign in")
    assert await viewer.text("#phase") == "No access"
    assert await viewer.page.locator("[role=alert]").count() == 0, "no token is no wrong token"
    await viewer.page.get_by_label("Bearer token").fill("right")
    await viewer.page.get_by_role("button", name="Continue").click()
    await viewer.until_text(".found", "30 cards")
    stored = await viewer.page.evaluate("JSON.stringify([localStorage, document.cookie])")
    assert "right" not in stored, "the token stays in the tab"


async def test_a_wrong_token_is_refused_and_can_be_corrected(readers: Readers, served: ScriptedPage) -> None:
    served.token = "right"
    viewer = await readers.arrive(served.url)
    _allow_refusals(viewer)
    await viewer.open("token=wrong&view=waiting")
    await viewer.until_text(".empty", "Sign in")
    await viewer.until_text(".refused [role=alert]", "This token does not let you in: a token is needed.")
    await viewer.page.get_by_label("Bearer token").fill("also wrong")
    await viewer.press("Enter")
    await viewer.until("document.querySelector('#token')?.value === ''")
    await viewer.until_text(".refused [role=alert]", "This token does not let you in")
    await viewer.page.get_by_label("Bearer token").fill("right")
    await viewer.press("Enter")
    await viewer.until_text("h2", "2 pods wait")


@pytest.mark.parametrize("was_open", [False, True])
async def test_the_address_may_be_pasted_into_the_same_tab(
    readers: Readers, served: ScriptedPage, was_open: bool
) -> None:
    served.token = "first" if was_open else "second"
    viewer = await readers.arrive(served.url)
    _allow_refusals(viewer)
    await viewer.open("token=first&view=waiting")
    if was_open:
        await viewer.until_text("h2", "2 pods wait")
        # Another run of the command has another token, at the same port.
        served.token = "second"
        await served.stop()
        await served.start()
    await viewer.until_text(".empty", "Sign in")
    await viewer.page.evaluate("location.href = location.href.split('#')[0] + '#token=second'")
    await viewer.until_text(".found", "30 cards")
    assert await viewer.fragment() == ""


async def test_a_reader_without_rights_is_told_what_to_do(readers: Readers, served: ScriptedPage) -> None:
    served.refusal = (403, 'user "eve" may not get nodes')
    viewer = await readers.arrive(served.url)
    _allow_refusals(viewer)
    await viewer.open()
    await viewer.until_text(".empty", 'user "eve" may not get nodes')
    await viewer.until_text(".empty", "An administrator can grant it.")


async def test_rights_that_end_while_the_page_is_open_end_it(readers: Readers, served: ScriptedPage) -> None:
    viewer = await readers.open(served, "node=h100-1")
    _allow_refusals(viewer)
    served.refusal = (401, "the token has expired")
    await served.stop()
    await served.start()
    await viewer.until_text(".empty", "Sign in")
    assert not await viewer.page.locator("#details").is_visible()
