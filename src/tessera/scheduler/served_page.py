"""A page that a package above this one serves on a listener of the scheduler.

The scheduler knows neither its routes nor what they show. It gives the page the running service, reports to it as to
every observer, and closes it before the listeners end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tessera.http11.router import Route
from tessera.scheduler.observer import SchedulerObserver

if TYPE_CHECKING:
    from tessera.scheduler.service import Service


class ServedPage(SchedulerObserver):
    """The interface."""

    headers = b""
    """lines of the head of every response"""

    def routes(self, service: Service) -> list[Route]:
        """Called once, before the listeners start."""
        raise NotImplementedError

    async def close(self) -> None:
        """End what would keep connections open."""
        raise NotImplementedError
