"""One run of the demo: start the cluster, tell the story, keep running until stopped, and clean up.

    start --> story, step by step --> (--once: end) --> live view until SIGINT or SIGTERM --> end

However it ends, the folder with the kubeconfig is removed and every task is stopped.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from tessera.inspect.dashboard.server import serve_page
from tessera.kube.errors import KubeError
from tessera_lab.demo.cluster import DemoCluster, DemoError, demo_cluster
from tessera_lab.demo.screens import ClusterView, DemoStarted, Screen, take_view
from tessera_lab.demo.story import STORY

STOPS = (signal.SIGINT, signal.SIGTERM)
LOOK_S = 0.2
"""seconds between two updates of the live view"""

ENDED = "The story is over. Without --once the cluster keeps running, and you can use it with kubectl."

DrawPicture = Callable[[list[tuple[str, list[str]]], ClusterView], None]
"""gets the steps told so far and the cluster after them"""


@dataclass(frozen=True, slots=True)
class DemoPlan:
    """What one run does."""

    port: int = 0
    story: bool = True
    once: bool = False
    pause_s: float = 0.0
    """after each step, for people to read"""
    draw: DrawPicture | None = None


async def run_demo(plan: DemoPlan, screen: Screen) -> None:
    """Runs until the story ends or a signal arrives. Raises DemoError."""
    stopping = asyncio.Event()

    def install_handlers() -> None:
        loop = asyncio.get_running_loop()
        for number in STOPS:
            loop.add_signal_handler(number, stopping.set)

    install_handlers()
    try:
        await _until_stopped(stopping, lambda: _play(plan, screen, install_handlers))
    finally:
        for number in STOPS:
            asyncio.get_running_loop().remove_signal_handler(number)
    screen.on_end("Stopped. Nothing is left behind." if stopping.is_set() else ENDED)


async def _play(plan: DemoPlan, screen: Screen, on_signals_taken: Callable[[], None]) -> None:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tessera-demo-") as name:
        folder = Path(name)
        async with AsyncExitStack() as stack:
            starting = demo_cluster(folder, port=plan.port, on_signals_taken=on_signals_taken)
            cluster = await stack.enter_async_context(starting)
            # With --once the cluster is gone before anyone could look at it.
            page = "" if plan.once else await stack.enter_async_context(serve_page(cluster.page_source()))
            seconds = time.monotonic() - began
            screen.on_started(_started(cluster, folder, seconds, plan, page), take_view(cluster))
            await _live(cluster, screen, plan)


async def _live(cluster: DemoCluster, screen: Screen, plan: DemoPlan) -> None:
    watching = asyncio.create_task(_watch(cluster, screen))
    try:
        if plan.story:
            await _tell(cluster, screen, plan)
        if not plan.once:
            if plan.story:
                screen.on_end("The story is over, and the cluster keeps running. Press Ctrl-C to stop it.")
            await watching
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching


async def _tell(cluster: DemoCluster, screen: Screen, plan: DemoPlan) -> None:
    told: list[tuple[str, list[str]]] = []
    for number, step in enumerate(STORY, 1):
        screen.on_step(number, step.title)
        try:
            lines = await step.act(cluster)
        except KubeError as error:
            raise DemoError(f"step {number} failed: {error}") from error
        view = take_view(cluster)
        screen.on_result(lines, view)
        told.append((step.title, lines))
        if step.picture and plan.draw is not None:
            plan.draw(told, view)
        await asyncio.sleep(plan.pause_s)


async def _watch(cluster: DemoCluster, screen: Screen) -> None:
    while True:
        cluster.check()
        screen.on_change(take_view(cluster))
        await asyncio.sleep(LOOK_S)


async def _until_stopped(stopping: asyncio.Event, work: Callable[[], Awaitable[None]]) -> None:
    working = asyncio.ensure_future(work())
    stop = asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait([working, stop], return_when=asyncio.FIRST_COMPLETED)
    finally:
        working.cancel()
        stop.cancel()
        (fault, _) = await asyncio.gather(working, stop, return_exceptions=True)
    if isinstance(fault, Exception):
        raise fault


def _started(cluster: DemoCluster, folder: Path, seconds: float, plan: DemoPlan, page: str) -> DemoStarted:
    kubeconfig, own = str(cluster.plane.kubeconfig), _own_command()
    about = ("kubectl describe pod train-2", f"{own} explain train-2") if plan.story else ("kubectl get nodes",)
    commands = (f"export KUBECONFIG={kubeconfig}", "kubectl get pods -A -o wide", f"{own} top", *about)
    # With --once the cluster is gone before anyone could use it.
    return DemoStarted(cluster.plane.server.url, kubeconfig, str(folder), seconds, () if plan.once else commands, page)


def _own_command() -> str:
    """How to call `tessera` from the same folder."""
    if shutil.which("tessera"):
        return "tessera"
    return sys.argv[0] if Path(sys.argv[0]).name == "tessera" else f"{sys.executable} -m tessera"
