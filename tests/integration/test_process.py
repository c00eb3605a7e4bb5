"""The lifecycle of the process: not ready before the first sync, and a clean end after any signal."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator

import pytest

from tessera_lab.sandbox.api.faults import Hold
from tessera_lab.sandbox.api.kinds import PODS
from tessera_lab.sandbox.api.server import ServerOptions
from tessera_lab.sandbox.control_plane import ControlPlane
from tessera_lab.sandbox.nodes.node import SimulatedNode, gpu_cards
from tests.support.commands import OWN_PORTS, Command, scheduler
from tests.support.network import free_ports
from tests.support.product import gpu_pod
from tests.support.scheduler_process import Caller, calling, until

ATTEMPTS = 1000
"""connections tried until a port that is being closed is closed"""


@pytest.fixture
async def plane() -> AsyncIterator[ControlPlane]:
    nodes = [SimulatedNode("n1", gpu_cards("n1", 1))]
    async with ControlPlane(nodes=nodes, server=ServerOptions(port=free_ports(1)[0])) as plane:
        # The simulated nodes list pods as well; from now on only a scheduler does.
        await until(lambda: plane.server.cluster.hub.all(PODS))
        yield plane


def held() -> Hold:
    return Hold(release=asyncio.Event(), reached=asyncio.Event())


async def listening(command: Command, what: str) -> str:
    """The address of a listener of a process that may not be ready yet."""
    await command.said("listening")
    found = [event["address"] for event in command.events if event.get("what") == what]
    return str(found[0])


async def is_closed(address: str) -> bool:
    host, _, port = address.rpartition(":")
    for _ in range(ATTEMPTS):
        try:
            _, writer = await asyncio.open_connection(host, int(port))
        except ConnectionRefusedError:
            return True
        except ConnectionResetError:
            continue
        writer.close()
    return False


async def test_it_is_not_ready_before_everything_was_listed_and_says_what_is_missing(plane: ControlPlane) -> None:
    slow = {"pods": held(), "nodes": held(), "resourcequotas": held()}
    for what, hold in slow.items():
        # Pods are listed by the informer, and by the take-over.
        plane.server.faults.next(hold, method="GET", path=f"/api/v1/{what}$", times=1 + (what == "pods"))
    async with scheduler(f"--kubeconfig={plane.kubeconfig}", *OWN_PORTS) as command:
        for hold in slow.values():
            await command.until(hold.reached.wait())
        async with calling(await listening(command, "extender")) as caller:
            assert await caller.get("/healthz") == (200, "")
            pod = await plane.create_pod(gpu_pod("p", gpu=1))
            for left in ("pods, nodes, quotas", "nodes, quotas", "quotas"):
                missing = f"the first list of {left} is not complete"
                assert await readiness(caller, missing) == 503
                assert (await caller.filter(pod, ["n1"]))["Error"] == missing
                assert (await caller.bind(pod, "n1")) == {"Error": missing}
                next(hold for hold in slow.values() if not hold.release.is_set()).release.set()
                await command.said("leading")  # From now on the pods are read again.
            await command.said("ready")
            assert await caller.get("/readyz") == (200, "")
            assert (await caller.filter(pod, ["n1"]))["NodeNames"] == ["n1"]


async def readiness(caller: Caller, text: str) -> int:
    """The status with which it says this, within some attempts."""
    for _ in range(ATTEMPTS):
        status, said = await caller.get("/readyz")
        if said == f"{text}\n":
            return status
    raise AssertionError(f"it says {said!r}, not {text!r}")


async def test_a_running_bind_and_its_event_are_finished_after_sigterm(plane: ControlPlane) -> None:
    async with scheduler(f"--kubeconfig={plane.kubeconfig}", *OWN_PORTS) as command:
        address = await command.address("extender")
        async with calling(address) as caller:
            pod = await plane.create_pod(gpu_pod("p", gpu=1, mem=1000))
            assert (await caller.filter(pod, ["n1"]))["NodeNames"] == ["n1"]
            slow = held()
            plane.server.faults.next(slow, method="POST", path="/binding$")
            binding = asyncio.create_task(caller.bind(pod, "n1"))
            await slow.reached.wait()
            command.send(signal.SIGTERM)
            assert (await command.said("stopping"))["binds"] == 1
            assert await is_closed(address)
            assert not binding.done()
            slow.release.set()
            assert await binding == {"Error": ""}
        assert await command.end() == 0
    assert (await command.said("stopped"))["events_lost"] == 0
    bound = plane.pod("default", "p")
    assert bound is not None
    assert bound["spec"]["nodeName"] == "n1"
    told = {event["reason"] for event in plane.events("default", "p")}
    assert told >= {"FilteringSucceed", "BindingSucceed"}


async def test_a_process_that_never_reached_the_apiserver_ends_well_too(plane: ControlPlane) -> None:
    await plane.server.stop()
    try:
        async with scheduler(f"--kubeconfig={plane.kubeconfig}", *OWN_PORTS) as command:
            async with calling(await listening(command, "extender")) as caller:
                status, text = await caller.get("/readyz")
            assert (status, text) == (503, "the first list of pods, nodes, quotas is not complete\n")
            command.send(signal.SIGTERM)
            assert await command.end() == 0
    finally:
        await plane.server.start()
