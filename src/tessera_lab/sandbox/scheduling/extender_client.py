"""Calls a scheduler extender as kube-scheduler does: node names only, one POST per call, no retries.

Every failure is an `ExtenderError` with the text of the pod's event.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

import aiohttp
import msgspec

from tessera.wire.golang import fold
from tessera_lab.sandbox.api.kinds import Json
from tessera_lab.sandbox.objects import name_of, namespace_of, uid_of

HTTP_TIMEOUT_S = 30.0
"""what HAMi's chart configures; kube-scheduler's own default is 5 s"""


class ExtenderError(Exception):
    """There is no usable response, or the response is an error."""


@dataclass(frozen=True, slots=True)
class Filtered:
    """The response to a filter call."""

    nodes: tuple[str, ...]
    misfits: Mapping[str, str]
    """by node"""


class Extender(Protocol):
    """What the scheduling loop needs of an extender; tests may pass one without HTTP."""

    async def filter(self, pod: Json, nodes: Sequence[str]) -> Filtered: ...

    async def bind(self, pod: Json, node: str) -> None: ...


class _FilterResult(msgspec.Struct, frozen=True):
    node_names: list[str] | None = msgspec.field(name="NodeNames", default=None)
    failed: dict[str, str] | None = msgspec.field(name="FailedNodes", default=None)
    unresolvable: dict[str, str] | None = msgspec.field(name="FailedAndUnresolvableNodes", default=None)
    error: str = msgspec.field(name="Error", default="")


class _BindResult(msgspec.Struct, frozen=True):
    error: str = msgspec.field(name="Error", default="")


class ExtenderClient:
    """Use it as `async with ExtenderClient(url) as extender`."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=HTTP_TIMEOUT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": "Go-http-client/1.1", "Content-Type": "application/json"},
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def filter(self, pod: Json, nodes: Sequence[str]) -> Filtered:
        """Which of `nodes` the pod may use."""
        answer = await self._post("filter", {"Pod": _bare(pod), "Nodes": None, "NodeNames": nodes})
        result = _read(answer, _FilterResult)
        if result.error:
            raise ExtenderError(result.error)
        asked = frozenset(nodes)
        for name in result.node_names or ():
            if name not in asked:
                raise ExtenderError(
                    f'extender "{self._url}" claims a filtered node "{name}" which is not found in the input node list'
                )
        return Filtered(tuple(result.node_names or ()), (result.failed or {}) | (result.unresolvable or {}))

    async def bind(self, pod: Json, node: str) -> None:
        """Lets the extender bind the pod."""
        answer = await self._post(
            "bind", {"PodName": name_of(pod), "PodNamespace": namespace_of(pod), "PodUID": uid_of(pod), "Node": node}
        )
        result = _read(answer, _BindResult)
        if result.error:
            raise ExtenderError(result.error)

    async def _post(self, verb: str, body: Json) -> bytes:
        if self._session is None:
            raise RuntimeError("the extender client is not open: use it in `async with`")
        url = f"{self._url}/{verb}"
        try:
            async with self._session.post(url, data=msgspec.json.encode(body)) as response:
                if response.status != 200:
                    raise ExtenderError(f"failed {verb} with extender at URL {url}, code {response.status}")
                return await response.read()
        except TimeoutError as error:
            raise ExtenderError(f'Post "{url}": context deadline exceeded') from error
        except (aiohttp.ClientError, OSError) as error:
            raise ExtenderError(f'Post "{url}": {str(error) or type(error).__name__}') from error


def _bare(pod: Json) -> Json:
    """Without kind and apiVersion, which Go leaves out of objects from a watch."""
    return {key: value for key, value in pod.items() if key not in ("kind", "apiVersion")}


def _read(answer: bytes, kind: type[Any]) -> Any:
    try:
        return msgspec.convert(fold(msgspec.json.decode(answer), kind), kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ExtenderError(f"the response cannot be read: {error}") from error
