"""Asks the scheduler to hold places, and gives them back (`wire.moves`). Knows nothing of plans.

The scheduler answers in the annotation in which it was asked. What is not given back ends by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import structs

from tessera.kube.client import KubeClient
from tessera.kube.errors import KubeError
from tessera.kube.resources import NODES
from tessera.wire import keys
from tessera.wire.errors import WireError
from tessera.wire.moves import HoldState, MoveHold, decode_move_hold, encode_move_hold
from tessera.wire.objects import Node

POLL_S = 1.0
ANSWER_S = 30.0
"""for the scheduler to answer that it holds a place"""


class Deviation(Exception):
    """The cluster is not as the plan has it, or does not become so in time."""


@dataclass(frozen=True, slots=True)
class AskedHold:
    """One place on a node."""

    uid: str
    """of the pod that moves, or that waits"""
    node: str
    hold: MoveHold


class NodeHolds:
    """Holds by annotations of nodes."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client

    async def ask(self, holds: Sequence[AskedHold]) -> None:
        """Have all of these held. Raises Deviation if one is refused, or not answered."""
        for each in holds:
            await self._annotate(each, encode_move_hold(each.hold))
        clock = asyncio.get_running_loop().time
        deadline = clock() + ANSWER_S
        left = list(holds)
        while left:
            left = [each for each in left if not await self._is_held(each)]
            if left and clock() >= deadline:
                names = ", ".join(sorted({each.node for each in left}))
                raise Deviation(f"the scheduler does not answer; is it running, and does it know node {names}?")
            if left:
                await asyncio.sleep(POLL_S)

    async def extend(self, holds: Sequence[AskedHold], *, until: float) -> None:
        """Have places that are held now held until then."""
        for each in holds:
            held = structs.replace(each.hold, until=until, state=HoldState.HELD)
            await self._annotate(each, encode_move_hold(held))

    async def release(self, holds: Sequence[AskedHold]) -> None:
        """As far as the apiserver allows it: what is left ends by itself."""
        for each in holds:
            with contextlib.suppress(KubeError):
                await self._annotate(each, None)

    async def is_any_held(self, now: float) -> bool:
        """Whether places are held for moves, or asked for, by whichever process. `now`: unix seconds."""
        nodes = (await self._client.list(NODES.path(), Node)).items
        texts = (text for node in nodes for key, text in node.annotations.items() if key.startswith(keys.MOVE_PREFIX))
        return any(_is_live(text, now) for text in texts)

    async def _is_held(self, asked: AskedHold) -> bool:
        try:
            node = await self._client.get(NODES.path(name=asked.node), Node)
        except KubeError as error:
            if not error.is_transient:
                raise
            return False
        text = node.annotations.get(keys.MOVE_PREFIX + asked.uid)
        try:
            answer = asked.hold if text is None else decode_move_hold(text)
        except WireError as error:
            raise Deviation(f"another program has changed what is asked of {asked.node}: {error}") from error
        if answer.state is HoldState.REFUSED:
            raise Deviation(f"the scheduler holds no place on {asked.node}: {answer.reason}")
        return answer.state is HoldState.HELD

    async def _annotate(self, asked: AskedHold, text: str | None) -> None:
        body = {"metadata": {"annotations": {keys.MOVE_PREFIX + asked.uid: text}}}
        await self._client.patch(NODES.path(name=asked.node), body)


def _is_live(text: str, now: float) -> bool:
    try:
        hold = decode_move_hold(text)
    except WireError:
        return False  # The scheduler holds nothing for it either.
    return hold.state is not HoldState.REFUSED and hold.until > now
