"""How deep the call stack of a bind is where its binding is written to the apiserver's socket.

Every frame between the HTTP handler and the socket costs on each resumption of the coroutine, for every pod.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio import selector_events
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tessera.scheduler import http_api
from tessera_lab.sandbox.nodes.node import SimulatedNode, gpu_cards
from tests.support.event_loops import in_real_time
from tests.support.product import gpu_pod, product

MAX_FRAMES = 8


def frames_up_to(frame: FrameType | None, handler: str) -> list[str]:
    """Names of the functions from the handler to this frame."""
    names: list[str] = []
    while frame is not None:
        names.append(frame.f_code.co_qualname)
        if frame.f_code.co_filename == handler:
            return names[::-1]
        frame = frame.f_back
    return []


@pytest.mark.parametrize("agent", ["env", "answer"])
def test_a_bind_is_at_most_eight_frames_deep_where_its_binding_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, agent: str
) -> None:
    depths: list[list[str]] = []
    transport: Any = selector_events._SelectorSocketTransport  # type: ignore[attr-defined]
    write = transport.write

    def observed(self: asyncio.Transport, data: bytes) -> None:
        if data.startswith(b"POST ") and b"/binding HTTP/1.1" in data[:500]:
            depths.append(frames_up_to(sys._getframe(1), http_api.__file__))
        write(self, data)

    monkeypatch.setattr(transport, "write", observed)

    @in_real_time
    async def check() -> None:
        node = SimulatedNode("n1", gpu_cards("n1", 2), agent=agent)
        async with product([node], tmp_path) as cluster:
            for number in range(3):
                await cluster.plane.create_pod(gpu_pod(f"p{number}", gpu=1, mem=100))
            await cluster.running_pods("p0", "p1", "p2")

    check()
    assert len(depths) == 3
    for names in depths:
        assert 0 < len(names) <= MAX_FRAMES, names
