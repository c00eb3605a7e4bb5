"""What the agent shows of itself, and that a taken address costs no more than that."""

from __future__ import annotations

import asyncio
import socket

from tessera.host.cards import CardFacts
from tessera.node.fleet import CardState, Fleet
from tessera.node.metrics import LISTEN_AGAIN_S, AgentMetrics, AgentStatus, serve
from tessera.services.common_settings import ListenerLimits
from tessera.services.value_types import Address
from tests.support.event_loops import in_fake_time, in_real_time
from tests.support.logs import captured
from tests.support.scheduler_process import calling

FLEET = Fleet(
    (CardState(CardFacts("GPU-a", 0, "NVIDIA H200")), CardState(CardFacts("GPU-b", 1, "NVIDIA H200"), "XID 79")),
)
SEEN = AgentStatus(fleet=FLEET, faults={"GPU-b": 2}, missing="no pods yet", registered=True, registration_failures=3)


def test_every_card_and_every_part_has_its_figures() -> None:
    text = AgentMetrics(lambda: SEEN).render().decode()
    for line in (
        'tessera_agent_card_healthy{index="0",model="NVIDIA H200",uuid="GPU-a"} 1.0',
        'tessera_agent_card_healthy{index="1",model="NVIDIA H200",uuid="GPU-b"} 0.0',
        'tessera_agent_card_faults_total{uuid="GPU-b"} 2.0',
        "tessera_agent_ready 0.0",
        "tessera_agent_hardware_readable 1.0",
        "tessera_agent_kubelet_registered 1.0",
        "tessera_agent_registration_failures 3.0",
        "tessera_agent_events_dropped_total 0.0",
        'tessera_agent_reloads_total{result="refused"} 0.0',
        "tessera_agent_faults_total 0.0",
    ):
        assert line in text.splitlines()
    assert "_created" not in text


async def end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@in_real_time
async def test_health_readiness_and_metrics_are_on_one_address() -> None:
    missing = ["the agent is starting"]
    at: asyncio.Future[Address] = asyncio.get_running_loop().create_future()
    with captured():
        task = asyncio.create_task(
            serve(
                Address("127.0.0.1", 0),
                AgentMetrics(lambda: AgentStatus(fleet=FLEET)),
                limits=ListenerLimits(),
                missing=lambda: missing[0],
                on_listening=at.set_result,
            )
        )
        async with calling(await at) as caller:
            assert await caller.get("/healthz") == (200, "")
            assert await caller.get("/readyz") == (503, "the agent is starting\n")
            missing[0] = ""
            assert await caller.get("/readyz") == (200, "")
            status, text = await caller.get("/metrics")
            assert (status, "tessera_build_info" in text) == (200, True)
        await end(task)


@in_fake_time
async def test_an_address_that_is_taken_is_tried_again() -> None:
    at: asyncio.Future[Address] = asyncio.get_running_loop().create_future()
    with socket.socket() as taken, captured() as logs:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = Address("127.0.0.1", taken.getsockname()[1])
        task = asyncio.create_task(
            serve(
                address,
                AgentMetrics(lambda: AgentStatus(fleet=FLEET)),
                limits=ListenerLimits(),
                missing=lambda: "",
                on_listening=at.set_result,
            )
        )
        await logs.until("no metrics: cannot listen")
        taken.close()
        await asyncio.sleep(LISTEN_AGAIN_S)
        assert await at == address
        await end(task)
