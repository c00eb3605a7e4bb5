"""Captures what services log in a test, and waits for events."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import structlog

WAIT_S = 60.0
"""before an event that never comes fails the test"""


class Logs:
    """Events in their order; each is a mapping with its text under `event`."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self._news = asyncio.Event()

    def of(self, text: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] == text]

    async def until(self, text: str, *, times: int = 1) -> dict[str, Any]:
        """Waits for the event with this text, for the `times`-th time."""
        async with asyncio.timeout(WAIT_S):
            while len(self.of(text)) < times:
                self._news.clear()
                await self._news.wait()
        return self.of(text)[times - 1]

    def take(self, _logger: Any, level: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        self.events.append({**event, "level": level})
        self._news.set()
        raise structlog.DropEvent


@contextmanager
def captured() -> Iterator[Logs]:
    """Captures everything that structlog logs."""
    logs, before = Logs(), structlog.get_config()["processors"]
    structlog.configure(processors=[logs.take])
    try:
        yield logs
    finally:
        structlog.configure(processors=before)
