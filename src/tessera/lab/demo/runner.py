"""One run of the demo: start the cluster, tell the story, go on until stopped, and leave nothing behind.

    start --> story, step by step --> (--once: the end) --> live view until SIGINT or SIGTERM --> the end

Ends the same way from everywhere: the folder with the kubeconfig goes, and every task with it.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tessera.kube.errors import KubeError
from tessera.lab.demo.cluster import DemoCluster, DemoError, demo_cluster
from tessera.lab.demo.screens import Screen, Started
from tessera.lab.demo.story import STORY
from tessera.lab.demo.view import View, look

STOPS = (signal.SIGINT, signal.SIGTERM)
LOOK_S = 0.2
"""between two looks at the cluster for the live view"""

Draw = Callable[[list[tuple[str, list[str]]], View], None]
"""takes the steps that were told so far and the cluster after them"""


@dataclass(frozen=True, slots=True)
class Plan:
    """What one run is to do."""

    port: int = 0
    story: bool = True
    once: bool = False
    pause_s: float = 0.0
    """after each step, for people who read"""
    draw: Draw | None = None


async def run(plan: Plan, screen: Screen) -> None:
    """Until the story is over, or stopped. Raises DemoError."""
    stopping = asyncio.Event()

    def listen() -> None:
        loop = asyncio.get_running_loop()
        for number in STOPS:
            loop.add_signal_handler(number, stopping.set)

    listen()
    try:
        await _until_stopped(stopping, lambda: _play(plan, screen, listen))
    finally:
        for number in STOPS:
            asyncio.get_running_loop().remove_signal_handler(number)
    screen.end("Stopped, and nothing is left behind." if stopping.is_set() else "The story is over.")


async def _play(plan: Plan, screen: Screen, listen: Callable[[], None]) -> None:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tessera-demo-") as name:
        folder = Path(name)
        async with demo_cluster(folder, port=plan.port, listen=listen) as cluster:
            seconds = time.monotonic() - began
            screen.begin(_started(cluster, folder, seconds, story=plan.story), look(cluster))
            await _live(cluster, screen, plan)


async def _live(cluster: DemoCluster, screen: Screen, plan: Plan) -> None:
    watching = asyncio.create_task(_watch(cluster, screen))
    try:
        if plan.story:
            await _tell(cluster, screen, plan)
        if not plan.once:
            if plan.story:
                screen.end("The story is over; the cluster goes on. Ctrl-C stops everything.")
            await watching
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching


async def _tell(cluster: DemoCluster, screen: Screen, plan: Plan) -> None:
    told: list[tuple[str, list[str]]] = []
    for number, step in enumerate(STORY, 1):
        screen.step(number, step.title)
        try:
            lines = await step.act(cluster)
        except KubeError as error:
            raise DemoError(f"step {number} did not happen: {error}") from error
        view = look(cluster)
        screen.told(lines, view)
        told.append((step.title, lines))
        if step.picture and plan.draw is not None:
            plan.draw(told, view)
        await asyncio.sleep(plan.pause_s)


async def _watch(cluster: DemoCluster, screen: Screen) -> None:
    while True:
        screen.seen(look(cluster))
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


def _started(cluster: DemoCluster, folder: Path, seconds: float, *, story: bool) -> Started:
    kubeconfig, own = str(cluster.plane.kubeconfig), _own_command()
    about = ("kubectl describe pod train-2", f"{own} explain train-2") if story else ("kubectl get nodes",)
    commands = (f"export KUBECONFIG={kubeconfig}", "kubectl get pods -A -o wide", f"{own} top", *about)
    return Started(cluster.plane.server.url, kubeconfig, str(folder), seconds, commands)


def _own_command() -> str:
    """How to call this command again from the same folder."""
    if shutil.which("tessera"):
        return "tessera"
    return sys.argv[0] if Path(sys.argv[0]).name == "tessera" else f"{sys.executable} -m tessera"
