"""Runs a process with a client of the apiserver, for as long as it takes."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable

import structlog

from tessera.kube.access import load_access
from tessera.kube.client import KubeClient
from tessera.kube.errors import AccessError

log = structlog.get_logger(__name__)

NOT_STARTED = 2
"""exit code"""


async def run_with_client(
    run: Callable[[KubeClient], Awaitable[int]], *, kubeconfig: str | None, context: str | None, user_agent: str
) -> int:
    """What `run` returns; 2 if there is no access to an apiserver."""
    try:
        access = load_access(kubeconfig=kubeconfig, context=context, environ=os.environ)
    except AccessError as error:
        log.error("cannot start", error=str(error))
        return NOT_STARTED
    async with KubeClient(access, user_agent=user_agent) as client:
        return await run(client)
