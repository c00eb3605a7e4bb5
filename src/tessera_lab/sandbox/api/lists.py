"""Lists, whole or in pages. All pages of a list show the same moment, or the client must start again (410).

A page token is opaque to clients: it holds the version of the list and the position in it.
"""

from __future__ import annotations

import base64
import binascii
from collections import OrderedDict
from dataclasses import dataclass

import msgspec

from tessera_lab.sandbox.api.errors import bad_request, expired_page, too_large_version
from tessera_lab.sandbox.api.kinds import ResourceKind
from tessera_lab.sandbox.api.selectors import EVERYTHING, ObjectSelector
from tessera_lab.sandbox.api.store import Store, Stored

MAX_SNAPSHOTS = 32
"""how many unfinished paged lists are kept; the oldest is dropped first"""


@dataclass(frozen=True, slots=True)
class StoredPage:
    """Part of a list, or all of it."""

    items: list[Stored]
    version: int
    token: str = ""
    remaining: int | None = None
    """items on later pages; None with a selector, as in kube-apiserver"""


@dataclass(frozen=True, slots=True)
class ListQuery:
    """What a client wants to list."""

    kind: ResourceKind
    namespace: str = ""
    selector: ObjectSelector = EVERYTHING
    limit: int = 0
    token: str = ""
    version: int | None = None
    exact: bool = False


class _Token(msgspec.Struct, frozen=True):
    version: int
    shown: int
    number: int


class Lister:
    """Lists objects of the store, and keeps lists that clients are still paging through."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._snapshots: OrderedDict[int, tuple[ListQuery, list[Stored]]] = OrderedDict()
        self._number = 0

    def page(self, query: ListQuery) -> StoredPage:
        if query.token:
            return self._continue(query)
        current = self._store.version
        if query.version is not None and query.version > current:
            raise too_large_version(query.version, current)
        if query.exact and query.version != current:
            raise expired_page()
        items = [each for each in self._store.list(query.kind, query.namespace) if query.selector.matches(each.object)]
        if not query.limit or len(items) <= query.limit:
            return StoredPage(items, current)
        self._number += 1
        self._snapshots[self._number] = (query, items)
        while len(self._snapshots) > MAX_SNAPSHOTS:
            self._snapshots.popitem(last=False)
        return self._cut(_Token(current, 0, self._number), items, query)

    def _continue(self, query: ListQuery) -> StoredPage:
        token = _read_token(query.token)
        first, items = self._snapshots.get(token.number, (None, []))
        if first is None or token.version < self._store.oldest(query.kind):
            raise expired_page()
        if (first.kind, first.namespace, first.selector) != (query.kind, query.namespace, query.selector):
            raise bad_request("the continue token belongs to another list")
        return self._cut(token, items, query)

    def _cut(self, token: _Token, items: list[Stored], query: ListQuery) -> StoredPage:
        end = token.shown + query.limit if query.limit else len(items)
        shown = items[token.shown : end]
        if end >= len(items):
            # Kept until it is pushed out: a client that lost this response may ask for the page again.
            return StoredPage(shown, token.version)
        remaining = None if query.selector else len(items) - end
        following = _Token(token.version, end, token.number)
        return StoredPage(shown, token.version, _encode_token(following), remaining)


def _encode_token(token: _Token) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(token)).decode().rstrip("=")


def _read_token(text: str) -> _Token:
    try:
        found = msgspec.json.decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)), type=_Token)
    except (binascii.Error, ValueError) as error:
        raise bad_request("continue key is not valid") from error
    if found.shown < 0:
        raise bad_request("continue key is not valid")
    return found
