"""The browser that all tests of the page share, and readers who come and go.

A test fails if a page that it opened did something that no page may do (`tests/ui/browser.py`). Without a browser the
tests are skipped, and say so.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

pytest.importorskip("playwright", reason="Playwright is not installed; `make ui` does that", exc_type=ImportError)

from tests.ui.browser import Viewer, find_browser, launch, open_viewer, open_window
from tests.ui.described_cluster import small_cluster
from tests.ui.scripted_page import ScriptedPage

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One event loop for all of them: the browser lives in it."""
    for item in items:
        if item.path.is_relative_to(HERE) and inspect.iscoroutinefunction(getattr(item, "function", None)):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Any]:
    if find_browser() is None:
        pytest.skip("there is no Chromium here; `make packages` installs it (root and apt), CHROMIUM=/path names one")
    async with launch() as browser:
        yield browser


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def window(browser: Any) -> AsyncIterator[Any]:
    """Shared by the tests, because opening a new one takes longer than most of them. Nothing is left in it: each
    server has a port, and so an origin with storage, of its own."""
    async with open_window(browser) as page:
        yield page


class Readers:
    """Opens pages for readers. The first one of a test uses the shared window, if it needs no special one."""

    def __init__(self, browser: Any, window: Any, stack: AsyncExitStack) -> None:
        self._browser = browser
        self._window = window
        self._stack = stack
        self.viewers: list[Viewer] = []

    async def arrive(self, url: str, **settings: Any) -> Viewer:
        """A reader who has not opened the page yet."""
        if settings or self.viewers:
            viewer = await self._stack.enter_async_context(open_viewer(self._browser, url, **settings))
        else:
            await self._window.emulate_media(color_scheme="light")
            viewer = Viewer(self._window, url)
            self._stack.push_async_callback(viewer.leave)
        self.viewers.append(viewer)
        return viewer

    async def open(self, served: ScriptedPage, fragment: str = "", **settings: Any) -> Viewer:
        """A reader who sees a place of the page."""
        viewer = await self.arrive(served.url, **settings)
        await viewer.open(fragment)
        return viewer


@pytest_asyncio.fixture(loop_scope="session")
async def readers(browser: Any, window: Any) -> AsyncIterator[Readers]:
    async with AsyncExitStack() as stack:
        readers = Readers(browser, window, stack)
        yield readers
        faults = [fault for viewer in readers.viewers for fault in viewer.faults]
    assert faults == []


@pytest_asyncio.fixture(loop_scope="session")
async def served() -> AsyncIterator[ScriptedPage]:
    """The small cluster, served."""
    async with ScriptedPage(small_cluster()) as page:
        yield page
