"""A row of the page's list of waiting pods and gangs, now or in the past."""

from __future__ import annotations

import msgspec

from tessera.inspect.state import Json


class WaitingRow(msgspec.Struct, frozen=True, kw_only=True):
    """Who waits, for what and why. It goes to the page as it is."""

    uid: str
    namespace: str
    name: str
    owner: tuple[str, str] | None
    """kind and name of the workload"""
    since: float | None
    asks: str
    why: str
    nearest: str = ""
    change: str = ""
    attempts: int | None = None
    """how often it was refused, if that is known"""
    gang: Json | None = None
    """None for a pod"""
