"""Tells kubelet that the plugin is there. One attempt; when to try again is the caller's affair."""

from __future__ import annotations

from pathlib import Path

from tessera.node.kubelet import channels
from tessera.wire.kubelet import device_plugin_pb2 as messages
from tessera.wire.kubelet.methods import REGISTER

REGISTER_S = 5.0
"""for kubelet to connect back, ask for the options and answer"""


class RegisteringError(Exception):
    """kubelet did not take the registration; the text says why."""


async def register(kubelet: Path, request: messages.RegisterRequest, *, deadline: float = REGISTER_S) -> None:
    """Raises RegisteringError."""
    async with channels.open_channel(kubelet) as channel:
        try:
            await channels.unary(channel, REGISTER)(request, timeout=deadline)
        except channels.FAULTS as error:
            raise RegisteringError(f"kubelet at {kubelet}: {channels.described(error)}") from error
