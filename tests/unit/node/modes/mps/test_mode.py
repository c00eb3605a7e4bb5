"""The sharing mode `mps` as Allocate meets it, with real processes behind it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from tessera.node.fleet import Fleet
from tessera.node.handover.assignments import Assignment
from tessera.node.modes.base import AllocationRefused, ContainerResponse, HostMount, SharingMode
from tessera.node.modes.mps.control import MpsProgram
from tessera.node.modes.mps.mode import Mps, retire_mps
from tests.support.event_loops import on_uvloop
from tests.support.fake_mps import A, B
from tests.support.mps_node import (
    BOTH,
    CARD_A,
    CARD_B,
    DEFAULT,
    EXCLUSIVE,
    ONLY_A,
    PROHIBITED,
    MpsNode,
    Visible,
    claim,
    given,
)
from tests.support.scheduler_process import until


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[MpsNode]:
    found = MpsNode(tmp_path)
    yield found
    await found.close()


async def refused(agent: SharingMode, wanted: Assignment) -> str:
    with pytest.raises(AllocationRefused) as caught:
        await given(agent, wanted)
    return str(caught.value)


async def test_a_container_gets_its_limits_the_pipes_and_nothing_of_the_other_modes(node: MpsNode) -> None:
    agent = node.agent()
    await agent.start(BOTH)
    assert await given(agent, claim((A, 3000, 30))) == ContainerResponse(
        env={
            "NVIDIA_VISIBLE_DEVICES": A,
            "CUDA_MPS_PIPE_DIRECTORY": "/tessera/mps/pipe",
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"{A}=3000M",
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30",
        },
        mounts=(
            HostMount("/tessera/mps/pipe", f"{node.fake.root}/{A}/pipe", read_only=True),
            HostMount("/dev/shm", "/dev/shm", read_only=False),
        ),
    )
    assert node.fake.default(A) == ("3000M", 30)
    assert node.fake.default(B) == (None, 100)


async def test_a_container_that_asked_for_no_enforcing_library_is_limited_all_the_same(node: MpsNode) -> None:
    agent = node.agent()
    await agent.start(ONLY_A)
    answer = await given(agent, claim((A, 3000, 30), uncontrolled=True))
    assert answer.env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == f"{A}=3000M"


async def test_cores_are_not_limited_where_the_node_limits_none(node: MpsNode) -> None:
    agent = node.agent(settings=replace(node.settings, disable_core_limit=True))
    await agent.start(ONLY_A)
    answer = await given(agent, claim((A, 3000, 30)))
    assert answer.env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "100"
    assert node.fake.default() == ("3000M", 100)


@pytest.mark.parametrize(
    ("slices", "reason"),
    [
        ([(A, 3000, 30), (B, 3000, 30)], "a container has 2 cards, and with MPS it can have one"),
        ([(A, 0, 30)], "no memory of card"),
        ([("GPU-nowhere", 3000, 30)], "is not among this node's cards"),
        ([("GPU-\n\u202e", 3000, 30)], "is not among this node's cards"),
    ],
)
async def test_what_mps_cannot_keep_is_refused_with_the_reason(
    node: MpsNode, slices: list[tuple[str, int, int]], reason: str
) -> None:
    agent = node.agent()
    await agent.start(BOTH)
    assert reason in await refused(agent, claim(*slices))


async def test_no_container_is_welcomed_without_a_claim(node: MpsNode) -> None:
    with pytest.raises(AllocationRefused, match="not by the downward API"):
        await node.agent().hand_over_downward_api([f"{A}-0"])


async def test_a_guess_is_refused(node: MpsNode) -> None:
    agent = node.agent()
    await agent.start(ONLY_A)
    with pytest.raises(AllocationRefused, match="not certain"):
        await agent.hand_over(claim((A, 3000, 30)), [f"{A}-0"], certain=False)


async def test_a_card_is_refused_before_the_agent_looks_after_it(node: MpsNode) -> None:
    agent = node.agent()
    agent._fleet = ONLY_A
    assert "not served yet" in await refused(agent, claim((A, 3000, 30)))


async def test_many_at_once_get_their_own_limits_and_one_ceiling(node: MpsNode) -> None:
    agent = node.agent()
    await agent.start(BOTH)
    claims = [claim(((A, B)[i % 2], 1000 + 100 * i, 10 + i), pod=f"pod-{i}") for i in range(20)]
    answers = await asyncio.gather(*(given(agent, each) for each in claims))
    for each, answer in zip(claims, answers, strict=True):
        uuid, _, memory, cores = each.slices[0]
        assert answer.env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == f"{uuid}={memory}M"
        assert answer.env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == f"{cores}"
    assert (node.fake.default(A), node.fake.default(B)) == (("2800M", 28), ("2900M", 29))


async def test_one_broken_card_does_not_take_the_others_away(node: MpsNode) -> None:
    node.hardware.broken.add(B)
    agent = node.agent()
    await agent.start(BOTH)
    await given(agent, claim((A, 3000, 30)))
    assert "is not ready for MPS" in await refused(agent, claim((B, 3000, 30)))
    assert list(agent.problems) == [B]
    assert "GPU is lost" in agent.problems[B]


async def test_cards_that_are_left_out_are_never_touched(node: MpsNode) -> None:
    agent = node.agent()
    await agent.start(ONLY_A)
    await agent.reconcile([], ONLY_A)
    assert node.hardware.modes == {A: EXCLUSIVE, B: DEFAULT}
    assert not (node.fake.root / B).exists()


async def test_running_containers_do_not_notice_a_restart_of_the_agent(node: MpsNode) -> None:
    first = node.agent()
    await first.start(ONLY_A)
    held = claim((A, 8000, 80), pod="held")
    await given(first, held)
    node.fake.serve(7)
    await first.stop()
    assert len(node.fake.running()) == 1
    second = node.agent()
    await second.start(ONLY_A)
    await given(second, claim((A, 1000, 10), pod="new"))
    await second.reconcile([held, claim((A, 1000, 10), pod="new")], ONLY_A)
    assert (node.fake.server_limits(), len(node.fake.started())) == (("8000M", 80), 1)
    assert second.started == {A: 0}
    assert node.hardware.changes == [(A, PROHIBITED), (A, EXCLUSIVE)]


async def test_a_program_that_is_not_installed_refuses_and_shuts_the_card(node: MpsNode) -> None:
    agent = node.agent(program=MpsProgram(("/nowhere/mps",)))
    await agent.start(ONLY_A)
    assert "/nowhere/mps" in await refused(agent, claim((A, 3000, 30)))
    assert node.hardware.modes[A] is PROHIBITED


async def test_a_card_that_leaves_the_configuration_is_given_back_when_nobody_needs_it(node: MpsNode) -> None:
    agent = node.agent()
    await agent.start(BOTH)
    held = claim((B, 3000, 30), pod="held")
    await given(agent, held)
    await agent.reconcile([held], ONLY_A)
    assert len(agent.started) == 2
    await agent.reconcile([], ONLY_A)
    await until(lambda: agent.problems == {B: "it is no longer a card of this node"})
    await agent.reconcile([], ONLY_A)
    assert (list(agent.started), node.hardware.modes) == ([A], {A: EXCLUSIVE, B: DEFAULT})
    assert len(node.fake.running()) == 1
    await agent.reconcile([], BOTH)
    await given(agent, held)


async def test_cards_that_cannot_be_asked_are_kept(node: MpsNode) -> None:
    agent = node.agent()
    await agent.start(BOTH)
    await agent.reconcile([], Fleet(problem="the driver is gone"))
    assert len(agent.started) == 2


async def test_a_claim_that_mps_would_refuse_does_not_disturb_the_others(node: MpsNode) -> None:
    agent = node.agent()
    await agent.start(ONLY_A)
    await agent.reconcile([claim((A, 0, 0), pod="none"), claim((B, 9, 9), pod="elsewhere")], ONLY_A)
    await given(agent, claim((A, 3000, 30)))
    assert node.fake.default() == ("3000M", 30)


async def test_an_allocate_that_is_given_up_leaves_nothing_half_done(node: MpsNode) -> None:
    agent = node.agent()
    await agent.start(ONLY_A)
    asking = asyncio.create_task(given(agent, claim((A, 3000, 30))))
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.wait([asking])
    await given(agent, claim((A, 2000, 20), pod="next"))
    assert node.fake.default() == ("3000M", 30)


async def test_a_node_in_another_mode_gets_its_cards_back(node: MpsNode) -> None:
    agent = node.agent()
    await agent.start(BOTH)
    await agent.stop()
    left = await retire_mps(node.fake.root, node.hardware, program=node.fake.program, keep={B})
    assert left == {B: "a container may still use the card"}
    assert (node.hardware.modes, len(node.fake.running())) == ({A: DEFAULT, B: EXCLUSIVE}, 1)
    node.fake.serve(7, uuid=B)
    left = await retire_mps(node.fake.root, node.hardware, program=node.fake.program)
    assert left == {B: "1 processes still use it through MPS"}
    assert await retire_mps(node.fake.root / "nowhere", node.hardware, program=node.fake.program) == {}


@on_uvloop
async def test_daemons_are_begun_heard_and_left_running_on_the_services_own_loop(tmp_path: Path) -> None:
    node = MpsNode(tmp_path)
    agent = node.agent()
    await agent.start(ONLY_A)
    await given(agent, claim((A, 3000, 30)))
    node.fake.kill()
    await until(lambda: agent.started == {A: 2} and not agent.problems)
    assert await given(agent, claim((A, 3000, 30)))
    assert (node.fake.default(), len(node.fake.running())) == (("3000M", 30), 1)
    await agent.stop()
    assert len(node.fake.running()) == 1
    node.fake.close()


def test_the_program_is_nvidias_where_none_is_named(node: MpsNode) -> None:
    made = Mps(node.settings, device_lists=Visible(), modes=node.hardware)
    assert made._program == MpsProgram(("nvidia-cuda-mps-control",), {"PATH": "/bin"})


async def test_of_a_node_with_several_modes_only_the_cards_in_this_one_are_touched(node: MpsNode) -> None:
    mixed = Fleet((replace(CARD_A, mode="mps"), replace(CARD_B, mode="hami-core")))
    agent = node.agent()
    await agent.start(mixed)
    await agent.reconcile([], mixed)
    assert (agent.started, node.hardware.modes) == ({A: 1}, {A: EXCLUSIVE, B: DEFAULT})


async def test_only_the_named_cards_are_given_back(node: MpsNode) -> None:
    agent = node.agent()
    await agent.start(BOTH)
    await agent.stop()
    assert await retire_mps(node.fake.root, node.hardware, program=node.fake.program, cards={B}) == {}
    assert node.hardware.modes == {A: EXCLUSIVE, B: DEFAULT}
