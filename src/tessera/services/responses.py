"""What a request is answered with, whichever server sends it, and the two answers that every service has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

TEXT = "text/plain; charset=utf-8"


class Answer(NamedTuple):
    """A whole answer; a named tuple because one is made for every request."""

    status: int
    body: bytes = b""
    content_type: str = TEXT
    allow: str = ""
    """the methods that a refused one could have been; only of status 405"""


WELL = Answer(200)


def health(missing: Callable[[], str]) -> Mapping[str, Callable[[], Answer]]:
    """By path: does it live, and is it ready. `missing` says why callers should not be sent here; empty = they may."""

    def ready() -> Answer:
        text = missing()
        return Answer(503, f"{text}\n".encode()) if text else WELL

    return {"/healthz": lambda: WELL, "/readyz": ready}
