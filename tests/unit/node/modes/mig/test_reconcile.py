"""Instances go with their pods, and only the agent's own; restarts and lost records take nothing from anybody."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tessera.core.model.devices import MigPlacement
from tessera.node.fleet import Fleet
from tessera.node.handover.assignments import Assignment
from tessera.node.modes.base import AllocationRefused
from tessera.node.modes.mig.mode import Mig
from tessera.wire.pod_devices import DeviceEntry
from tests.support.cards import BOTH, HALF, ONE, A, B, Crash, Node, card, claim, reserve, serial
from tests.support.logs import captured

TAKEN_OVER = "a MIG instance was adopted"
NOT_TAKEN_OVER = "a MIG reservation names an instance that cannot be adopted"


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


async def handed(node: Node, *claims: Assignment) -> Mig:
    mig = await node.started()
    for each in claims:
        await mig.hand_over(each, ["x"] * len(each.slices))
    return mig


async def test_an_instance_goes_when_its_pod_has_ended_and_the_others_stay(node: Node) -> None:
    mig = await handed(node, claim(ONE), claim(HALF, pod="q"))
    await mig.reconcile([claim(HALF, pod="q")], BOTH)
    assert node.hardware.there() == {"MIG-2"}
    assert [each.mig_uuid for each in mig.current_instances()] == ["MIG-2"]


async def test_a_pod_that_terminates_keeps_its_instance(node: Node) -> None:
    """A pod with a deletion timestamp is live until it is terminal or gone, so it is among the live claims."""
    mig = await handed(node, claim(ONE))
    await mig.reconcile([node.completed(claim(ONE))], BOTH)
    assert node.hardware.there() == {"MIG-1"}


async def test_a_live_pod_keeps_its_instance_whatever_became_of_its_reservation(node: Node) -> None:
    mig = await handed(node, claim(ONE))
    await mig.reconcile([replace(claim(ONE), mig=())], BOTH)
    await mig.reconcile([claim(reserve("1g.18gb", 0, 1))], BOTH)
    assert node.hardware.there() == {"MIG-1"}


async def test_an_instance_that_a_process_uses_stays_until_the_process_is_gone(node: Node) -> None:
    mig = await handed(node, claim(ONE), claim(HALF, pod="q"))
    node.hardware.used.add(1)
    await mig.reconcile([], BOTH)
    assert node.hardware.there() == {"MIG-1"}
    node.hardware.used.clear()
    node.now = 0.9
    await mig.reconcile([], BOTH)
    assert node.hardware.there() == {"MIG-1"}, "not tried again before its time"
    node.now = 1.0
    await mig.reconcile([], BOTH)
    assert node.hardware.there() == set()


@pytest.mark.parametrize("fault", ["instances", "destroy", "half"])
async def test_one_that_cannot_go_keeps_nothing_else_from_going(node: Node, fault: str) -> None:
    mig = await handed(node, claim(ONE), claim(HALF, pod="q"), claim(replace(ONE, uuid=B), pod="r"))
    node.hardware.faults[fault] = 1
    await mig.reconcile([], BOTH)
    assert len(node.hardware.cards[A].instances) == 1
    assert node.hardware.there(B) == set()
    node.now = 1.0
    await mig.reconcile([], BOTH)
    assert node.hardware.there(A) == set()


async def test_what_was_half_destroyed_is_made_anew_for_the_same_claim(node: Node) -> None:
    mig = await handed(node, claim(ONE))
    node.hardware.faults["half"] = 1
    await mig.reconcile([], BOTH)
    await mig.hand_over(claim(ONE), ["x"])
    assert node.hardware.there() == {"MIG-2"}


async def test_an_id_that_was_given_to_somebody_else_is_not_destroyed(node: Node) -> None:
    mig = await handed(node, claim(ONE))
    node.hardware.cards[A].instances.clear()
    foreign = node.hardware.foreign(A, "1g.18gb", 6)
    assert foreign.gpu_instance == 1
    await mig.reconcile([], BOTH)
    assert node.hardware.cards[A].instances == [foreign]


async def test_nothing_is_touched_while_the_hardware_cannot_be_asked_or_the_card_is_not_ours(node: Node) -> None:
    mig = await handed(node, claim(ONE))
    await mig.reconcile([], replace(BOTH, problem="no driver"))
    await mig.reconcile([], Fleet((card(B, index=1),)))
    assert node.hardware.there() == {"MIG-1"}
    await mig.reconcile([], BOTH)
    assert node.hardware.there() == set()


async def test_nothing_goes_on_a_card_with_pods_of_the_older_notation(node: Node) -> None:
    mig = await handed(node, claim(ONE), claim(replace(ONE, uuid=B), pod="q"))
    old = replace(claim(HALF, pod="old"), mig=(), slices=(DeviceEntry(f"{A}[1-0]", "NVIDIA", 1, 1),))
    await mig.reconcile([old], BOTH)
    assert (node.hardware.there(A), node.hardware.there(B)) == ({"MIG-1"}, set())
    await mig.reconcile([], BOTH)
    assert node.hardware.there(A) == set()


async def test_a_restart_keeps_the_instances_of_live_pods_and_drops_the_others(node: Node) -> None:
    foreign = node.hardware.foreign(B, "3g.71gb", 0)
    await handed(node, claim(ONE), claim(HALF, pod="q"))
    again = await node.started()
    assert {each.mig_uuid for each in again.current_instances()} == {"MIG-2", "MIG-3"}
    await again.reconcile([claim(ONE)], BOTH)
    assert node.hardware.there(A) == {"MIG-2"}
    assert node.hardware.cards[B].instances == [foreign]
    assert (await again.hand_over(claim(ONE), ["x"])).env == {"NVIDIA_VISIBLE_DEVICES": "MIG-2"}


async def test_a_crash_while_an_instance_is_made_leaks_nothing(node: Node) -> None:
    mig = await node.started()
    node.hardware.crash = "create"
    with pytest.raises(Crash):
        await mig.hand_over(claim(ONE), ["x"])
    assert node.hardware.there() == {"MIG-1"}
    again = await node.started()
    await again.reconcile([claim(ONE)], BOTH)
    assert node.hardware.there() == {"MIG-1"}
    await again.hand_over(claim(ONE), ["x"])
    assert (node.hardware.there(), node.written["uid-p", 0, 0].mig_uuid) == ({"MIG-1"}, "MIG-1")
    await again.reconcile([], BOTH)
    assert node.hardware.there() == set()


async def test_live_pods_keep_their_instances_when_the_record_is_lost(node: Node) -> None:
    await handed(node, claim(ONE), claim(HALF, pod="q"))
    node.state.joinpath("mig.json").unlink()
    again = await node.started()
    with captured() as logs:
        await again.reconcile([node.completed(claim(ONE)), node.completed(claim(HALF, pod="q"))], BOTH)
        await again.reconcile([node.completed(claim(ONE))], BOTH)
    assert len(logs.of(TAKEN_OVER)) == 2
    assert node.hardware.there() == {"MIG-1"}


async def test_a_handover_takes_over_what_the_pod_has_already(node: Node) -> None:
    await handed(node, claim(ONE))
    node.state.joinpath("mig.json").unlink()
    again = await node.started()
    answer = await again.hand_over(node.completed(claim(ONE)), ["x"])
    assert (answer.env, node.hardware.made) == ({"NVIDIA_VISIBLE_DEVICES": "MIG-1"}, 1)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"gpu_instance": 7}, "GPU instance 7 does not exist"),
        ({"compute_instance": 3}, "GPU instance 1 has another compute instance"),
        ({"mig_uuid": "MIG-ü"}, "GPU instance 1 has another compute instance"),
        ({"slot": replace(ONE.slot, placement=MigPlacement(5, 1))}, "GPU instance 1 has another placement"),
    ],
)
async def test_a_bad_reservation_is_reported_once_and_the_others_are_taken_over(
    node: Node, change: dict[str, object], problem: str
) -> None:
    await handed(node, claim(ONE), claim(HALF, pod="q"))
    node.state.joinpath("mig.json").unlink()
    good = node.completed(claim(HALF, pod="q"))
    bad = claim(replace(node.completed(claim(ONE)).mig[0], **change))  # type: ignore[arg-type]
    again = await node.started()
    with captured() as logs:
        for _ in range(2):
            await again.reconcile([bad, good], BOTH)
    assert [each["problem"] for each in logs.of(NOT_TAKEN_OVER)] == [problem]
    assert [each.mig_uuid for each in again.current_instances()] == ["MIG-2"]
    await again.reconcile([], BOTH)
    assert node.hardware.there() == {"MIG-1"}, "what was not taken over is foreign"


async def test_an_instance_belongs_to_one_pod_only(node: Node) -> None:
    mig = await handed(node, claim(ONE))
    thief = replace(node.completed(claim(ONE)), pod=claim(ONE, pod="thief").pod)
    with captured() as logs:
        await mig.reconcile([claim(ONE), thief], BOTH)
    assert [each["problem"] for each in logs.of(NOT_TAKEN_OVER)] == ["GPU instance 1 belongs to pod team/p"]
    await mig.reconcile([claim(ONE)], BOTH)
    assert node.hardware.there() == {"MIG-1"}


async def test_cards_that_cannot_be_read_or_are_not_ours_give_nothing_to_take_over(node: Node) -> None:
    await handed(node, claim(ONE))
    node.state.joinpath("mig.json").unlink()
    again = await node.started()
    mine = node.completed(claim(ONE))
    await again.reconcile([mine], Fleet((card(B, index=1),)))
    node.hardware.faults["instances"] = 1
    with captured() as logs:
        await again.reconcile([mine], BOTH)
    assert [each["problem"] for each in logs.of(NOT_TAKEN_OVER)] == [f"{A}: instances is broken"]
    await again.reconcile([mine], BOTH)
    assert [each.mig_uuid for each in again.current_instances()] == ["MIG-1"]


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"boot": 3}', "[" * 5000, "\udcff"], ids=range(6))
async def test_an_unreadable_record_is_put_aside_and_nothing_is_destroyed(node: Node, text: str) -> None:
    await handed(node, claim(ONE))
    node.state.joinpath("mig.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    again = await node.started()
    await again.reconcile([], BOTH)
    assert node.hardware.there() == {"MIG-1"}
    assert node.state.joinpath("mig.json.unreadable").exists()


@pytest.mark.parametrize(
    "broken",
    [3, {}, {"mig_uuid": ""}, {"mig_uuid": None}, {"gpu_instance": "1"}, {"slot": None}],
    ids=str,
)
async def test_a_broken_entry_of_the_record_is_left_out_and_the_others_count(node: Node, broken: object) -> None:
    await handed(node, claim(ONE), claim(HALF, pod="q"))
    file = node.state / "mig.json"
    content = json.loads(file.read_text())
    first = content["instances"][0]
    changed = {**first, "allocation": {**first["allocation"], **broken}} if isinstance(broken, dict) else broken
    content["instances"][0] = changed if broken else broken
    file.write_text(json.dumps(content))
    again = await node.started()
    await again.reconcile([], BOTH)
    assert node.hardware.there() == {"MIG-1"}


async def test_a_record_that_cannot_be_read_at_all_stops_every_change(node: Node) -> None:
    await handed(node, claim(ONE))
    file = node.state / "mig.json"
    file.rename(node.state / "kept")
    file.mkdir()
    again = await node.started()
    await again.reconcile([], BOTH)
    with pytest.raises(AllocationRefused, match="cannot be created"):
        await again.hand_over(claim(HALF, pod="q"), ["x"])
    file.rmdir()
    node.state.joinpath("kept").rename(file)
    await again.reconcile([], BOTH)
    assert node.hardware.there() == set()


async def test_no_instance_of_an_earlier_start_of_the_machine_is_the_agents(node: Node) -> None:
    """Instances end with the machine: what has the same ids afterwards was made by somebody else."""
    await handed(node, claim(ONE))
    node.boot = "boot-2"
    again = await node.started()
    await again.reconcile([], BOTH)
    assert node.hardware.there() == {"MIG-1"}


async def test_a_release_that_cannot_be_written_down_is_written_later(node: Node) -> None:
    mig = await handed(node, claim(ONE))
    draft = node.state / "mig.draft"
    draft.mkdir()
    await mig.reconcile([], BOTH)
    assert node.hardware.there() == set()
    assert json.loads((node.state / "mig.json").read_text())["instances"]
    draft.rmdir()
    await mig.reconcile([], BOTH)
    assert not json.loads((node.state / "mig.json").read_text())["instances"]


async def test_an_intended_instance_of_a_gone_pod_does_not_take_its_successors(node: Node) -> None:
    mig = await node.started()
    node.hardware.crash = "create"
    with pytest.raises(Crash):
        await mig.hand_over(claim(ONE, pod="old"), ["x"])
    node.hardware.cards[A].instances.clear()
    again = await node.started()
    await again.reconcile([claim(ONE, pod="new")], BOTH)
    await again.hand_over(claim(ONE, pod="new"), ["x"])
    await again.reconcile([claim(ONE, pod="new")], BOTH)
    assert {serial(each) for each in node.hardware.cards[A].instances} == {2}


async def test_a_crash_after_an_instance_is_destroyed_leaves_a_record_that_touches_nobody(node: Node) -> None:
    mig = await handed(node, claim(ONE))
    node.hardware.crash = "destroy"
    with pytest.raises(Crash):
        await mig.reconcile([], BOTH)
    again = await node.started()
    foreign = node.hardware.foreign(A, "1g.18gb", 6)
    await again.reconcile([], BOTH)
    assert node.hardware.cards[A].instances == [foreign]
    assert again.current_instances() == ()
