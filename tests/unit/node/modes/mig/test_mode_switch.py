"""MIG mode is turned on where nobody is disturbed, and turned off only where the agent turned it on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tessera.host.call_thread import CallThread, CallTimeout
from tessera.node.fleet import Fleet
from tessera.node.handover.assignments import Assignment
from tessera.node.modes.base import AllocationRefused
from tessera.node.modes.mig import mode_switch
from tessera.node.modes.mig.instances import holders_of
from tessera.node.modes.mig.mode_switch import retire_mig
from tessera.node.modes.mig.records import boot_id
from tests.support.cards import BOTH, HALF, ONE, A, B, ModelCard, Node, card, claim, ids
from tests.support.logs import captured

NOT_USABLE = "a card cannot be used for MIG"
PLAIN = replace(claim(ONE, pod="plain"), mig=())
"""of a pod that shares its card by other means"""


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path, boot=boot_id())


async def retire(node: Node, *live: Assignment) -> None:
    """The node has another sharing mode now."""
    await retire_mig(node.state, node.hardware, holders_of(live))


def modes(node: Node) -> tuple[bool, bool]:
    return node.hardware.cards[A].enabled, node.hardware.cards[B].enabled


async def test_idle_cards_are_switched_at_start(node: Node) -> None:
    await node.started()
    assert modes(node) == (True, True)


async def test_cards_that_are_filtered_out_are_left_alone(node: Node) -> None:
    await node.started(Fleet((card(B, index=1),)))
    assert modes(node) == (False, True)


def make_busy(of: ModelCard) -> None:
    of.busy = True


def need_reset(of: ModelCard) -> None:
    of.needs_reset = True


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (make_busy, "MIG is off, and a process uses the card"),
        (need_reset, "mig mode enable is pending; GPU reset required"),
    ],
)
async def test_a_card_that_cannot_be_switched_is_refused_with_the_reason(
    node: Node, spoil: Callable[[ModelCard], None], problem: str
) -> None:
    spoil(node.hardware.cards[A])
    with captured() as logs:
        mig = await node.started()
        with pytest.raises(AllocationRefused) as refused:
            await mig.hand_over(claim(ONE), ["x"])
    assert str(refused.value) == f"card {A} cannot be used for MIG: {problem}"
    assert [each["problem"] for each in logs.of(NOT_USABLE)] == [problem]
    assert modes(node) == (False, True)


async def test_a_busy_card_is_switched_when_it_is_idle_but_not_asked_all_the_time(node: Node) -> None:
    node.hardware.cards[A].busy = True
    mig = await node.started()
    node.hardware.cards[A].busy = False
    node.now = 29.0
    await mig.reconcile([], BOTH)
    assert modes(node) == (False, True)
    node.now = 30.0
    await mig.reconcile([], BOTH)
    assert modes(node) == (True, True)


async def test_a_handover_switches_a_card_that_became_idle(node: Node) -> None:
    node.hardware.cards[A].busy = True
    mig = await node.started()
    node.hardware.cards[A].busy = False
    await mig.hand_over(claim(ONE), ["x"])
    assert node.hardware.there() == {"MIG-1"}


async def test_a_card_that_cannot_do_mig_is_reported(node: Node) -> None:
    with captured() as logs:
        await node.started(Fleet((card(capable=False),)))
    assert [each["problem"] for each in logs.of(NOT_USABLE)] == ["the card cannot do MIG"]


async def test_a_card_that_is_in_mig_mode_is_not_asked(node: Node) -> None:
    node.hardware.faults["mig_enabled"] = 1
    await node.started(Fleet((card(enabled=True),)))
    assert node.hardware.faults["mig_enabled"] == 1


@pytest.mark.parametrize(
    "live", [PLAIN, replace(PLAIN, slices=(PLAIN.slices[0]._replace(uuid=f"{A}[0-1]"),))], ids=["plain", "legacy"]
)
async def test_idle_pods_that_share_a_card_without_mig_keep_it(node: Node, live: Assignment) -> None:
    mig = await node.started(known=lambda: [live])
    assert modes(node) == (False, True)
    await mig.reconcile([live], BOTH)
    with pytest.raises(AllocationRefused, match="drain the node"):
        await mig.hand_over(claim(ONE), ["x"])
    assert modes(node) == (False, True)


async def test_cards_wait_until_the_pods_are_known(node: Node) -> None:
    mig = await node.started(known=lambda: None)
    assert modes(node) == (False, False)
    await mig.reconcile([PLAIN], BOTH)
    assert modes(node) == (False, True)


async def test_mig_mode_is_restored_where_the_agent_turned_it_on(node: Node) -> None:
    node.hardware.cards[B].enabled = True
    await node.started()
    await retire(node)
    assert modes(node) == (False, True)


async def test_a_card_in_use_keeps_mig_mode_and_is_restored_later_even_by_another_process(node: Node) -> None:
    mig = await node.started()
    await mig.hand_over(claim(ONE), ["x"])
    node.hardware.cards[B].busy = True
    await retire(node, claim(ONE))
    assert modes(node) == (True, True)
    again = await node.started(Fleet((card(enabled=True), card(B, index=1, enabled=True))))
    await again.reconcile([], BOTH)
    node.hardware.cards[B].busy = False
    await retire(node)
    assert modes(node) == (False, False)


async def test_a_card_that_somebody_turned_off_is_forgotten(node: Node) -> None:
    await node.started()
    node.hardware.cards[A].enabled = False
    await retire(node)
    node.hardware.cards[A].enabled = True
    await retire(node)
    assert modes(node) == (True, False)


async def test_stopping_restores_nothing_because_pods_run_on(node: Node) -> None:
    mig = await node.started()
    await mig.stop()
    assert modes(node) == (True, True)


@pytest.mark.parametrize("fault", ["mig_enabled", "instances", "is_busy", "disable_mig"])
async def test_a_card_that_cannot_be_restored_keeps_no_other_from_it(node: Node, fault: str) -> None:
    await node.started()
    node.hardware.faults[fault] = 1
    await retire(node)
    assert modes(node) == (True, False)


async def test_a_card_is_not_switched_when_that_cannot_be_written_down(node: Node) -> None:
    node.state.joinpath("mig.draft").mkdir()
    with captured() as logs:
        await node.started()
    assert modes(node) == (False, False)
    assert len(logs.of(NOT_USABLE)) == 2


async def test_a_switch_that_failed_is_not_the_agents(node: Node) -> None:
    node.hardware.faults["enable_mig"] = 1
    await node.started()
    node.hardware.cards[A].enabled = True
    await retire(node)
    assert modes(node) == (True, False)


# -- MIG goes with the mode, but never from under a pod, a process, or an instance that the agent did not make


async def made(node: Node, *claims: Assignment) -> None:
    """An agent in mode mig handed these over, and ended."""
    mig = await node.started(BOTH)
    for each in claims:
        await mig.hand_over(each, ids(each))
    await mig.stop()


async def retired(node: Node, *live: Assignment) -> dict[str, str]:
    return await mode_switch.retire_mig(node.state, node.hardware, holders_of(live))


async def test_a_node_that_never_had_mig_has_nothing_to_retire(node: Node) -> None:
    assert await retired(node) == {}
    assert [card.enabled for card in node.hardware.cards.values()] == [False, False]


async def test_instances_of_pods_that_are_gone_go_and_mig_mode_is_turned_off(node: Node) -> None:
    await made(node, claim(ONE), claim(HALF, pod="q"))
    assert node.hardware.cards[A].enabled
    assert await retired(node) == {}
    assert (node.hardware.there(A), node.hardware.cards[A].enabled, node.hardware.cards[B].enabled) == (
        set(),
        False,
        False,
    )


async def test_a_card_waits_for_the_pod_that_holds_an_instance_of_it(node: Node) -> None:
    gone, lives = claim(ONE), claim(HALF, pod="q")
    await made(node, gone, lives)
    assert await retired(node, lives) == {A: mode_switch.HELD}
    assert len(node.hardware.there(A)) == 1
    assert (node.hardware.cards[A].enabled, node.hardware.cards[B].enabled) == (True, False)
    assert await retired(node) == {}
    assert not node.hardware.cards[A].enabled


async def test_an_instance_that_a_process_still_uses_stays_and_is_tried_again(node: Node) -> None:
    await made(node, claim(ONE))
    node.hardware.used.add(1)
    left = await retired(node)
    assert "in use by another client" in left[A]
    assert node.hardware.cards[A].enabled
    node.hardware.used.clear()
    assert await retired(node) == {}


async def test_somebody_elses_instance_stays_and_keeps_the_card_in_mig_mode(node: Node) -> None:
    await made(node, claim(ONE))
    foreign = node.hardware.foreign(A, "3g.71gb", 0)
    assert await retired(node) == {A: mode_switch.IN_USE}
    assert node.hardware.there(A) == {foreign.mig_uuid}


async def test_a_card_that_somebody_else_turned_on_stays_as_it_is(node: Node) -> None:
    node.hardware.cards[A].enabled = True
    await made(node, claim(ONE))
    assert await retired(node) == {}
    assert (node.hardware.cards[A].enabled, node.hardware.there(A)) == (True, set())


async def test_a_driver_that_hangs_is_said_and_tried_again(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    async def call(self: CallThread, work: object, *, deadline: float) -> None:
        raise CallTimeout("no answer within 60 s")

    monkeypatch.setattr(CallThread, "call", call)
    (problem,) = (await retired(node)).values()
    assert "no answer within 60 s" in problem


async def test_records_that_cannot_be_read_are_a_fault_and_nothing_is_touched(node: Node) -> None:
    await made(node, claim(ONE))
    (node.state / "mig.json").unlink()
    (node.state / "mig.json").mkdir()
    with pytest.raises(OSError, match="directory"):
        await retired(node)
    assert len(node.hardware.there(A)) == 1
