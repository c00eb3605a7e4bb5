"""Chromium, and a page in it that notices what must never happen.

A `Viewer` is one reader with storage of their own. It collects everything that a page must not do, whatever it is
shown: errors, violations of the Content-Security-Policy, dialogs, and requests to another host.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from playwright.async_api import Browser, Page, async_playwright

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
# No sandbox: the tests run as root in a container, and the page is ours. No traffic of the browser's own.
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
WAIT_S = 60.0
"""for a condition; a page on a loaded machine takes its time"""
DESKTOP = {"width": 1440, "height": 900}
PHONE = {"width": 390, "height": 844}
EXPECTED: tuple[str, ...] = (
    # `Viewer.colours` reads the canvas.
    "Canvas2D: Multiple readback operations",
    # Servers end before their readers do. Responses with an error are not among these.
    "Failed to load resource: net::ERR_CONNECTION_",
    "Failed to load resource: net::ERR_INCOMPLETE_CHUNKED_ENCODING",
    "Failed to load resource: net::ERR_EMPTY_RESPONSE",
)
REPORT_VIOLATIONS = """
addEventListener('securitypolicyviolation', (event) => {
  console.error(`policy violated: ${event.violatedDirective} ${event.blockedURI} ${event.sample}`);
}, true);
"""


def find_browser() -> str | None:
    """CHROMIUM, or the first that is installed."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, PROGRAMS)), None)


@asynccontextmanager
async def launch(*flags: str) -> AsyncIterator[Browser]:
    """Each time with a profile of its own, which is removed afterwards."""
    async with async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=find_browser(), args=[*FLAGS, *flags])
        try:
            yield browser
        finally:
            await browser.close()


class LegendEntry(NamedTuple):
    name: str
    colour: str
    """#rrggbb"""


class Viewer:
    """One reader of the page. Make one with `open_viewer`."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.faults: list[str] = []
        self.allowed = EXPECTED
        """beginnings of console messages that are no fault of the page"""
        page.set_default_timeout(WAIT_S * 1000.0)
        self._listeners = {
            "pageerror": lambda error: self.faults.append(f"exception: {error}"),
            "console": self._on_console,
            "request": self._on_request,
            "dialog": self._on_dialog,
        }
        for event, listener in self._listeners.items():
            page.on(event, listener)

    async def leave(self) -> None:
        """Ends the page's work; the window may serve another reader."""
        await self.page.goto("about:blank")
        for event, listener in self._listeners.items():
            self.page.remove_listener(event, listener)

    def _on_console(self, message: Any) -> None:
        if message.type in ("error", "warning") and not message.text.startswith(self.allowed):
            self.faults.append(f"console: {message.text}")

    def _on_request(self, request: Any) -> None:
        if not request.url.startswith("data:") and urlsplit(request.url).netloc != urlsplit(self.url).netloc:
            self.faults.append(f"request to another host: {request.url}")

    async def _on_dialog(self, dialog: Any) -> None:
        self.faults.append(f"dialog: {dialog.message}")
        await dialog.dismiss()

    async def open(self, fragment: str = "") -> None:
        """Goes to a place of the page, and waits until it is shown."""
        if self.page.url != "about:blank":
            # Another fragment alone would not load the page again.
            await self.page.goto("about:blank")
        await self.page.goto(f"{self.url}#{fragment}")
        await self.page.wait_for_selector("#main > .view, #main > .empty")

    async def go(self, fragment: str) -> None:
        """Follows a link on the page, without loading it again."""
        await self.page.evaluate("(fragment) => { location.hash = fragment }", fragment)
        await self.painted()

    async def until(self, expression: str, argument: Any = None) -> Any:
        """Waits until the JavaScript expression (or function) is true; returns its value.

        Looks every 20 ms. Playwright's own waiting evaluates text in the page, which the page's policy forbids.
        """
        end = monotonic() + WAIT_S
        while not (value := await self.page.evaluate(expression, argument)):
            if monotonic() > end:
                shown = await self.page.locator("body").inner_text()
                raise AssertionError(f"after {WAIT_S:.0f} s not yet: {expression} {argument or ''}\n{shown[:2000]}")
            await self.page.evaluate("() => new Promise((done) => setTimeout(done, 20))")
        return value

    async def until_text(self, selector: str, text: str) -> None:
        await self.until(
            "([where, text]) => [...document.querySelectorAll(where)].some((one) => one.textContent.includes(text))",
            [selector, text],
        )

    async def text(self, selector: str) -> str:
        return str(await self.page.locator(selector).first.inner_text())

    async def fragment(self) -> str:
        return str(await self.page.evaluate("location.hash.slice(1)"))

    async def press(self, *keys: str) -> None:
        for key in keys:
            await self.page.keyboard.press(key)

    async def legend(self) -> list[LegendEntry]:
        found = await self.page.evaluate(
            """() => [...document.querySelectorAll('.legend-entry:has(.legend-name)')].map((entry) => [
              entry.querySelector('.legend-name').textContent,
              entry.querySelector('.swatch').style.getPropertyValue('--colour'),
            ])"""
        )
        return [LegendEntry(name, colour) for name, colour in found]

    async def colours(self) -> Counter[str]:
        """How many pixels of the map have each colour."""
        await self.painted()
        found = await self.page.evaluate(
            """() => {
              const canvas = document.querySelector('#main .map-canvas');
              const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
              const pixels = new Uint32Array(data.buffer);
              const counts = new Map();
              for (const pixel of pixels) counts.set(pixel, (counts.get(pixel) ?? 0) + 1);
              const part = (pixel, shift) => ((pixel >> shift) & 255).toString(16).padStart(2, '0');
              const name = (pixel) => `#${part(pixel, 0)}${part(pixel, 8)}${part(pixel, 16)}`;
              return Object.fromEntries([...counts].map(([pixel, count]) => [name(pixel), count]));
            }"""
        )
        return Counter(found)

    async def painted(self) -> None:
        """Waits until the map has drawn what the page knows."""
        await self.page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


@asynccontextmanager
async def open_window(browser: Browser, **settings: Any) -> AsyncIterator[Page]:
    """`settings` are those of Playwright's `new_context`."""
    settings = {"viewport": DESKTOP, "timezone_id": "UTC", "locale": "en-GB", "service_workers": "block", **settings}
    context = await browser.new_context(**settings)
    try:
        await context.add_init_script(REPORT_VIOLATIONS)
        yield await context.new_page()
    finally:
        await context.close()


@asynccontextmanager
async def open_viewer(browser: Browser, url: str, **settings: Any) -> AsyncIterator[Viewer]:
    async with open_window(browser, **settings) as page:
        yield Viewer(page, url)
