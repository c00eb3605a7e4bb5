"""Creates objects with `dryRun`: the apiserver admits and returns them, but stores nothing.

Separate from `KubeClient`, so that no call can forget `dryRun` and create the object: this client can do nothing else.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

import msgspec

from tessera.inspect.state import Json
from tessera.kube.access import Access
from tessera.kube.errors import BadResponse
from tessera.kube.transport import Transport


class DryRunClient:
    """Use it as `async with`."""

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
        """The object as the apiserver would store it."""
        data = await self._transport.request("POST", path, msgspec.json.encode(body), query={"dryRun": "All"})
        try:
            found: Any = msgspec.json.decode(data)
        except msgspec.MsgspecError as error:
            raise BadResponse(f"POST {path}: {error}") from error
        if not isinstance(found, dict):
            raise BadResponse(f"POST {path}: not an object")
        return found
