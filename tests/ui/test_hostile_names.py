"""Whatever a tenant, a node or a vendor is called: nothing runs, nothing is fetched, and the text is what was written.

`tests/ui/conftest.py` fails each of these tests on a dialog, an error, a violation of the policy, or a request to
another host.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from urllib.parse import urlencode

import pytest_asyncio

from tests.ui.browser import PHONE, Viewer
from tests.ui.conftest import Readers
from tests.ui.described_cluster import copy
from tests.ui.hostile_names import HOSTILE_NAMES, hostile_cluster
from tests.ui.scripted_page import ScriptedPage

VIEWS = (
    "",
    "view=waiting",
    "view=what-if",
    "view=time",
    "view=totals",
    "table=1",
    "colour=owner",
    "group=model",
    "group=nvlink",
)
EXPECTED_ELEMENTS = {"img": 1, "script": 2, "iframe": 0, "object": 0, "embed": 0, "base": 0}
"""those of index.html"""


@pytest_asyncio.fixture(loop_scope="session")
async def hostile() -> AsyncIterator[ScriptedPage]:
    async with ScriptedPage(hostile_cluster()) as served:
        served.past = lambda time: copy(served.cluster)
        lines = [{"text": name, "style": name} for name in HOSTILE_NAMES]
        facts = {name: name for name in HOSTILE_NAMES}
        history = [{"time": served.cluster.time, "kind": name, "text": name} for name in HOSTILE_NAMES]
        for path in ("card", "node", "pod"):
            served.answers[f"api/{path}"] = {"title": "x", "lines": lines, "facts": facts, "history": history}
        yield served


async def _assert_nothing_was_made(viewer: Viewer) -> None:
    await viewer.painted()
    found = await viewer.page.evaluate(
        "(names) => Object.fromEntries(names.map((name) => [name, document.getElementsByTagName(name).length]))",
        list(EXPECTED_ELEMENTS),
    )
    assert found == EXPECTED_ELEMENTS
    handlers = await viewer.page.evaluate(
        """[...document.querySelectorAll('*')].flatMap((one) => [...one.attributes])
          .filter((one) => one.name.startsWith('on')).length"""
    )
    assert handlers == 0
    links = await viewer.page.evaluate("[...document.links].map((link) => link.getAttribute('href'))")
    assert all(link.startswith("#") for link in links), "every link stays on the page"
    assert await viewer.page.title() != "owned"


async def test_every_view_shows_hostile_names_as_text(readers: Readers, hostile: ScriptedPage) -> None:
    viewer = await readers.open(hostile)
    for fragment in VIEWS:
        await viewer.go(fragment)
        if fragment == "view=time":
            await viewer.page.wait_for_selector(".record")
        await _assert_nothing_was_made(viewer)


async def test_details_show_hostile_names_as_text(readers: Readers, hostile: ScriptedPage) -> None:
    viewer = await readers.open(hostile)
    for number, name in enumerate(HOSTILE_NAMES):
        node = f"{name}-{number}"
        places = ({"node": node, "card": f"GPU-0-{name}"}, {"pod": f"{name}-ns/{name}-pod"}, {"node": node})
        for place in places if number < 3 else places[:2]:
            await viewer.go(urlencode(place))
            await viewer.page.wait_for_selector("#details .lines", state="attached")
            await _assert_nothing_was_made(viewer)


async def test_markup_is_read_as_it_was_written(readers: Readers, hostile: ScriptedPage) -> None:
    viewer = await readers.open(hostile, "table=1")
    names = await viewer.page.locator(".cards-table tbody th").all_text_contents()
    for number, name in enumerate(HOSTILE_NAMES):
        if name.isprintable():
            assert f"{name}-{number}" in names


async def test_characters_that_hide_or_reverse_text_are_made_visible(readers: Readers, hostile: ScriptedPage) -> None:
    viewer = await readers.open(hostile, "view=waiting")
    text = await viewer.page.evaluate("document.body.textContent")
    assert not set(text) & set("\u202e\u2066\u2069\u200b\ufeff\u0007\u001b\u007f\u2028")
    assert "\ufffdgpj.exe\ufffd" in text


async def test_hostile_names_arrive_with_events_too(readers: Readers, hostile: ScriptedPage) -> None:
    viewer = await readers.open(hostile, "view=waiting")
    cluster = hostile.cluster
    for name in HOSTILE_NAMES:
        await hostile.send(cluster.wait(f"late {name}", name, why=name))
        node = next(iter(cluster.nodes))
        await hostile.send(cluster.place(f"late {name}", name, node, 1, memory=10, cores=1))
    await hostile.send({"totals": cluster.totals()})
    await viewer.until("(count) => document.querySelectorAll('.waiting-pod').length === count", 3 * len(HOSTILE_NAMES))
    await viewer.press("5")
    await _assert_nothing_was_made(viewer)
    await viewer.press("1")
    await _assert_nothing_was_made(viewer)


async def test_a_hostile_answer_and_a_hostile_error_are_text(readers: Readers, hostile: ScriptedPage) -> None:
    viewer = await readers.open(hostile, "view=what-if")
    viewer.allowed += ("Failed to load resource",)
    name = HOSTILE_NAMES[1]
    pod = {"name": name, "fits": True, "node": name, "cards": [name], "why": name, "nearest": name, "change": name}
    gang = {"namespace": name, "name": name, "size": 2, "fits": False, "why": name}
    hostile.answers["api/whatif"] = {"gangs": [gang], "pods": [pod], "more": 1, "stops": name}
    await viewer.page.get_by_role("button", name="Try it").click()
    await viewer.until_text(".verdict", name)
    await _assert_nothing_was_made(viewer)
    hostile.answers["api/whatif"] = {"status": 400, "error": name}
    await viewer.page.get_by_role("button", name="Try it").click()
    await viewer.until_text(".note.bad", name)
    await _assert_nothing_was_made(viewer)


async def test_a_hostile_address_is_text(readers: Readers, hostile: ScriptedPage) -> None:
    viewer = await readers.open(hostile)
    for name in HOSTILE_NAMES:
        await viewer.go(urlencode(dict.fromkeys(("filter", "node", "card", "pod", "sort", "zoom", "view"), name)))
        await _assert_nothing_was_made(viewer)


async def test_long_names_do_not_widen_the_page(readers: Readers, hostile: ScriptedPage) -> None:
    viewer = await readers.open(hostile, viewport=PHONE)
    for fragment in (*VIEWS, "node=xyz", urlencode({"pod": f"{'x' * 2000}-ns/{'x' * 2000}-pod"})):
        await viewer.go(fragment)
        assert await viewer.page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], fragment
