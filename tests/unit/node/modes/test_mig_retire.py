"""MIG goes with the mode, but never from under a pod, a process, or somebody else's instance."""

from __future__ import annotations

from pathlib import Path

import pytest

from tessera.host.call_thread import CallThread, CallTimeout
from tessera.node.handover.assignments import Assignment
from tessera.node.modes.mig import mode_switch
from tessera.node.modes.mig.instances import holders_of
from tessera.node.modes.mig.records import boot_id
from tests.support.mig_cards import BOTH, HALF, ONE, A, B, Node, claim, ids


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path, boot=boot_id())


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
