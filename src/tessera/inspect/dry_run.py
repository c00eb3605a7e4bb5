"""One request that is never kept: an object sent with `dryRun`, which the apiserver admits, answers and forgets.

Apart from the client, because a lost `dryRun` would create the object: here no other request can be made.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

import msgspec

from tessera.inspect.state import Json
from tessera.kube.access import Access
from tessera.kube.errors import BadResponse
from tessera.kube.transport import Transport


class Trial:
    """Use as `async with`."""

    def __init__(self, access: Access, *, timeout: float, user_agent: str) -> None:
        self._transport = Transport(access, timeout=timeout, limiter=None, user_agent=user_agent)

    async def __aenter__(self) -> Self:
        self._transport.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._transport.close()

    async def create(self, path: str, body: Json) -> Json:
        """The object as it would be stored."""
        data = await self._transport.request("POST", path, msgspec.json.encode(body), query={"dryRun": "All"})
        try:
            found: Any = msgspec.json.decode(data)
        except msgspec.MsgspecError as error:
            raise BadResponse(f"POST {path}: {error}") from error
        if not isinstance(found, dict):
            raise BadResponse(f"POST {path}: not an object")
        return found
