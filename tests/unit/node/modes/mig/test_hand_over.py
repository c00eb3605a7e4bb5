"""From a reservation to exactly that MIG instance, and nothing left where that fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest

from tessera.core.model.devices import MigPlacement, MigSlot
from tessera.host.call_thread import CallTimeout
from tessera.host.cards import CardError, CardFacts, GpuInstanceProfile, MigInstance
from tessera.node.fleet import Fleet
from tessera.node.handover.assignments import Assignment, ObjectKey
from tessera.node.modes.base import AllocationRefused, ContainerResponse
from tessera.node.modes.cdi import CdiFiles
from tessera.node.modes.mig.instances import profile_for
from tessera.node.modes.mig.mode import WRITE_S, NotWritten
from tessera.node.settings import DeviceListStrategy
from tessera.wire.pod_devices import DeviceEntry, MigAllocation
from tests.support.cards import BOTH, H200, HALF, ONE, A, B, Inline, Node, card, claim, ids, reserve, serial
from tests.support.event_loops import in_fake_time, in_real_time

T = TypeVar("T")

FACTS = CardFacts(uuid=A, index=0, name="NVIDIA H200", mig_profiles=H200)
WHOLE_A100 = replace(H200[-1], name="7g.80gb", memory_mib=81920)
TWINS = (replace(H200[0], name="1g.10gb", memory_mib=9728), replace(H200[0], name="1g.11gb", memory_mib=11264))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


async def refusal(node: Node, of: Assignment, *, given: Sequence[str] | None = None, fleet: Fleet = BOTH) -> str:
    mig = await node.started(fleet)
    with pytest.raises(AllocationRefused) as refused:
        await mig.hand_over(of, ids(of) if given is None else given)
    return str(refused.value)


async def test_an_instance_is_made_exactly_where_it_was_reserved(node: Node) -> None:
    mig = await node.started()
    answer = await mig.hand_over(claim(ONE), ids(claim(ONE)))
    (made,) = node.hardware.cards[A].instances
    assert (made.placement, made.profile_id) == (MigPlacement(6, 1), 19)
    assert answer == ContainerResponse(env={"NVIDIA_VISIBLE_DEVICES": "MIG-1"})
    assert node.written["uid-p", 0, 0] == replace(ONE, mig_uuid="MIG-1", gpu_instance=1, compute_instance=0)
    assert mig.current_instances() == (made,)


async def test_a_container_gets_several_instances_of_several_cards(node: Node) -> None:
    mig = await node.started()
    # The annotation's order is not that of devices.
    several = claim(HALF, replace(ONE, device=1), reserve("2g.35gb", 4, 2, uuid=B, device=2))
    several = replace(several, mig=tuple(reversed(several.mig)))
    answer = await mig.hand_over(several, ids(several))
    assert answer.env["NVIDIA_VISIBLE_DEVICES"] == "MIG-1,MIG-2,MIG-3"
    assert [each.placement for each in node.hardware.cards[B].instances] == [MigPlacement(4, 2)]


async def test_the_media_variant_of_a_profile_is_not_its_plain_sibling(node: Node) -> None:
    mig = await node.started()
    await mig.hand_over(claim(reserve("1g.18gb+me", 0, 1)), ["x"])
    assert [each.profile_id for each in node.hardware.cards[A].instances] == [20]


async def test_asked_again_the_same_instance_is_handed_over(node: Node) -> None:
    mig = await node.started()
    first = await mig.hand_over(claim(ONE), ["x"])
    assert await mig.hand_over(claim(ONE), ["x"]) == first
    assert node.hardware.made == 1


async def test_an_identity_that_the_pod_has_already_is_not_written_again(node: Node) -> None:
    mig = await node.started()
    await mig.hand_over(claim(ONE), ["x"])
    node.refusals.append(NotWritten("must not be called"))
    await mig.hand_over(node.completed(claim(ONE)), ["x"])
    assert node.refusals


async def test_an_instance_that_vanished_is_made_again_at_its_place(node: Node) -> None:
    mig = await node.started()
    await mig.hand_over(claim(ONE), ["x"])
    node.hardware.cards[A].instances.clear()
    assert (await mig.hand_over(claim(ONE), ["x"])).env == {"NVIDIA_VISIBLE_DEVICES": "MIG-2"}


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (replace(claim(ONE), mig=()), "pod team/p has 0 MIG reservations for 1 devices"),
        (replace(claim(ONE), mig=(replace(ONE, uuid=B),)), f'of card "{A}", its MIG reservation of card "{B}"'),
        (claim(reserve("1g.20gb", 0, 1)), 'offers no MIG profile "1g.20gb"; its profiles: 1g.18gb, 1g.18gb+me'),
        (claim(reserve("3g.71gb", 2, 4)), "has no place for MIG profile 3g.71gb at slice 2 over 4 slices"),
        (claim(reserve("3g.71gb", 2**31 - 1, 4)), "has no place"),
        (claim(reserve("ü" * 500, 0, 1)), "offers no MIG profile"),
        (claim(reserve("1g.18gb", 0, 1, uuid="GPU-?")), 'card "GPU-?" is not among this node\'s cards'),
        (claim(HALF, reserve("1g.18gb", 3, 1, device=1)), "two MIG reservations of one container overlap"),
        (replace(claim(ONE), uses_downward_api=True), "nvidia.com/vgpu-mode: mig"),
        (
            replace(claim(ONE), mig=(), slices=(DeviceEntry(f"{A}[2-0]", "NVIDIA", 1, 1),)),
            "drain the node",
        ),
    ],
    ids=["none", "other card", "unknown", "place", "far", "not ascii", "no card", "overlap", "carried", "legacy"],
)
async def test_a_claim_that_cannot_become_instances_is_refused(node: Node, wrong: Assignment, text: str) -> None:
    assert text in await refusal(node, wrong)
    assert node.hardware.made == 0


async def test_a_wrong_number_of_devices_is_refused(node: Node) -> None:
    assert "device number not matched" in await refusal(node, claim(ONE), given=["x", "y"])


@pytest.mark.parametrize(
    ("fleet", "text"),
    [
        (Fleet((card(problem="XID 79"),)), "takes no work: XID 79"),
        (replace(BOTH, problem="the driver is gone"), "takes no work: the driver is gone"),
        (Fleet((card(capable=False),)), "its profiles: none"),
    ],
)
async def test_a_card_that_is_not_well_is_refused_with_its_problem(node: Node, fleet: Fleet, text: str) -> None:
    assert text in await refusal(node, claim(ONE), fleet=fleet)


async def test_nobody_gets_an_instance_by_chance(node: Node) -> None:
    mig = await node.started()
    with pytest.raises(AllocationRefused, match="only if it is certain"):
        await mig.hand_over(claim(ONE), ["x"], certain=False)
    with pytest.raises(AllocationRefused, match="not by the downward API"):
        await mig.hand_over_downward_api(["x"])


async def test_a_container_that_carries_its_slice_is_served_by_cdi(node: Node) -> None:
    node.strategy = DeviceListStrategy.CDI_CRI
    mig = await node.started()
    answer = await mig.hand_over(replace(claim(ONE), uses_downward_api=True), ["x"])
    assert answer.cdi_devices == ("k8s.device-plugin.nvidia.com/gpu=MIG-1",)


async def test_a_place_that_a_foreign_instance_has_is_refused_and_the_instance_stays(node: Node) -> None:
    foreign = node.hardware.foreign(A, "1g.18gb", 3)
    text = await refusal(node, claim(HALF))
    assert "is taken by GPU instance 1, which this agent did not make" in text
    assert node.hardware.cards[A].instances == [foreign]


async def test_an_instance_beside_a_foreign_one_is_fine(node: Node) -> None:
    node.hardware.foreign(A, "3g.71gb", 0)
    mig = await node.started()
    await mig.hand_over(claim(ONE), ["x"])
    assert node.hardware.there() == {"MIG-1", "MIG-2"}


@pytest.mark.parametrize("fault", ["instances", "create", "mig_enabled"])
async def test_what_was_made_goes_when_a_later_one_fails_newest_first(node: Node, fault: str) -> None:
    mig = await node.started()
    three = claim(ONE, reserve("1g.18gb", 0, 1, device=1), replace(HALF, device=2, uuid=B))

    def break_the_third(_made: MigInstance) -> None:
        if node.hardware.made == 2:
            node.hardware.cards[B].enabled = False

    node.hardware.on_created = break_the_third
    with pytest.raises(AllocationRefused, match="no such place"):
        await mig.hand_over(three, ids(three))
    assert node.hardware.gone == [2, 1]
    assert mig.current_instances() == ()
    node.hardware.faults[fault] = 1
    with pytest.raises(AllocationRefused, match=f"{fault} is broken"):
        await mig.hand_over(three, ids(three))
    assert node.hardware.there() == set()


async def test_one_that_cannot_be_taken_back_stays_the_agents_until_its_pod_is_gone(node: Node) -> None:
    mig = await node.started()
    node.refusals.append(NotWritten("pod team/p is gone"))
    node.hardware.faults["destroy"] = 1
    with pytest.raises(AllocationRefused, match="was not handed over: pod team/p is gone"):
        await mig.hand_over(claim(ONE), ["x"])
    assert node.hardware.there() == {"MIG-1"}
    await mig.reconcile([], BOTH)
    assert node.hardware.there() == set()


@pytest.mark.parametrize("error", [NotWritten("no"), TimeoutError()])
async def test_an_identity_that_cannot_be_written_fails_the_handover_and_leaves_nothing(
    node: Node, error: Exception
) -> None:
    mig = await node.started()
    node.refusals.append(error)
    with pytest.raises(AllocationRefused, match="was not handed over: no"):
        await mig.hand_over(claim(ONE), ["x"])
    assert node.hardware.there() == set()


@in_fake_time
async def test_an_apiserver_that_does_not_answer_fails_the_handover_in_the_end(tmp_path: Path) -> None:
    async def never(pod: ObjectKey, allocations: Sequence[MigAllocation]) -> None:
        await asyncio.Event().wait()

    node = Node(tmp_path)
    mig = await node.started(write=never)
    with pytest.raises(AllocationRefused, match="no answer in time"):
        await mig.hand_over(claim(ONE), ["x"])
    assert asyncio.get_running_loop().time() == WRITE_S
    assert node.hardware.there() == set()


async def test_cdi_specs_list_the_instance_before_it_is_handed_over(node: Node) -> None:
    listed: list[object] = []

    class Specs(CdiFiles):
        def __init__(self) -> None: ...

        async def refresh(self, fleet: Fleet, instances: Sequence[MigInstance]) -> None:
            listed.append([each.mig_uuid for each in instances])
            assert not node.written

    mig = await node.started()
    mig.cdi = Specs()
    await mig.hand_over(claim(ONE), ["x"])
    assert listed == [["MIG-1"]]


async def test_an_answer_that_is_refused_leaves_nothing(node: Node) -> None:
    class NoLists:
        def response(
            self, ids: Sequence[str], fleet: Fleet, instances: Sequence[MigInstance] = ()
        ) -> ContainerResponse:
            raise AllocationRefused("MIG-1 is in no CDI spec")

    mig = await node.started(device_lists=NoLists())
    with pytest.raises(AllocationRefused, match="in no CDI spec"):
        await mig.hand_over(claim(ONE), ["x"])
    assert node.hardware.there() == set()


async def test_the_place_of_a_pod_that_is_gone_does_not_wait_for_its_next_try(node: Node) -> None:
    """The scheduler gives a place away as soon as its pod has ended."""
    mig = await node.started()
    await mig.hand_over(claim(ONE, pod="old"), ["x"])
    node.hardware.faults["destroy"] = 1
    await mig.reconcile([claim(ONE, pod="new")], BOTH)
    assert node.hardware.there() == {"MIG-1"}
    await mig.hand_over(claim(ONE, pod="new"), ["x"])
    assert (node.hardware.there(), node.hardware.gone) == ({"MIG-2"}, [1])


@in_fake_time
async def test_a_place_that_is_being_left_is_waited_for(tmp_path: Path) -> None:
    node = Node(tmp_path)
    mig = await node.started()
    await mig.hand_over(claim(ONE, pod="old"), ["x"])
    (old,) = node.hardware.cards[A].instances
    node.hardware.used.add(serial(old))
    await mig.reconcile([claim(ONE, pod="new")], BOTH)
    asyncio.get_running_loop().call_later(1.0, node.hardware.used.clear)
    await mig.hand_over(claim(ONE, pod="new"), ["x"])
    assert node.hardware.there() == {"MIG-2"}


@in_fake_time
async def test_a_handover_goes_on_as_soon_as_the_agent_hears_that_the_other_pod_is_gone(tmp_path: Path) -> None:
    node = Node(tmp_path)
    mig = await node.started()
    await mig.hand_over(claim(ONE, pod="old"), ["x"])
    waiting = asyncio.create_task(mig.hand_over(claim(ONE, pod="new"), ["x"]))
    await asyncio.sleep(0)
    await mig.reconcile([claim(ONE, pod="new")], BOTH)
    await waiting
    assert asyncio.get_running_loop().time() == 0
    assert node.hardware.there() == {"MIG-2"}


@pytest.mark.parametrize("settled", [True, False], ids=["live", "not known"])
@in_fake_time
async def test_a_place_that_a_live_pod_has_is_refused_in_the_end(tmp_path: Path, settled: bool) -> None:
    node = Node(tmp_path)
    mig = await node.started()
    if settled:
        await mig.reconcile([], BOTH)
    await mig.hand_over(claim(ONE, pod="old"), ["x"])
    with pytest.raises(AllocationRefused, match="is held by pod team/old"):
        await mig.hand_over(claim(reserve("7g.141gb", 0, 8), pod="new"), ["x"])
    assert node.hardware.there() == {"MIG-1"}


async def test_an_instance_that_is_not_the_reserved_one_is_not_handed_over(node: Node) -> None:
    mig = await node.started()
    real = node.hardware.create

    def elsewhere(uuid: str, offer: GpuInstanceProfile, placement: MigPlacement) -> MigInstance:
        return real(uuid, offer, MigPlacement(0, 1))

    node.hardware.create = elsewhere  # type: ignore[method-assign]
    with pytest.raises(AllocationRefused, match="not the one that was reserved"):
        await mig.hand_over(claim(ONE), ["x"])
    assert node.hardware.there() == set()


async def test_what_a_failed_making_leaves_behind_goes_with_its_pod(node: Node) -> None:
    mig = await node.started()

    def fail_after_making(made: MigInstance) -> None:
        node.hardware.faults["destroy"] = 1
        raise CardError(made.uuid, "the driver gave up")

    node.hardware.on_created = fail_after_making
    with pytest.raises(AllocationRefused, match="the driver gave up"):
        await mig.hand_over(claim(ONE), ["x"])
    assert node.hardware.there() == {"MIG-1"}
    await mig.reconcile([], BOTH)
    assert node.hardware.there() == set()


async def test_a_record_that_cannot_be_written_makes_no_instance(node: Node) -> None:
    mig = await node.started()
    node.state.joinpath("mig.draft").mkdir()
    with pytest.raises(AllocationRefused, match="cannot be created"):
        await mig.hand_over(claim(ONE), ["x"])
    assert node.hardware.there() == set()


async def test_an_instance_whose_record_cannot_be_completed_is_taken_back(node: Node) -> None:
    mig = await node.started()
    node.hardware.on_created = lambda _made: node.state.joinpath("mig.draft").mkdir()
    with pytest.raises(AllocationRefused, match="cannot be created"):
        await mig.hand_over(claim(ONE), ["x"])
    assert node.hardware.there() == set()


async def test_jobs_that_the_card_does_not_answer_are_refused(node: Node) -> None:
    class Hanging(Inline):
        async def call(self, work: Callable[[], T], *, deadline: float) -> T:
            raise CallTimeout("no answer within 60 s")

    mig = await node.started(calls=Hanging())
    with pytest.raises(AllocationRefused, match="no answer within 60 s"):
        await mig.hand_over(claim(ONE), ["x"])
    await mig.reconcile([], BOTH)


@in_real_time
async def test_it_works_in_a_thread_of_its_own(tmp_path: Path) -> None:
    node = Node(tmp_path)
    mig = await node.started(calls=None, boot=None)
    await asyncio.gather(
        mig.hand_over(claim(ONE), ["x"]),
        mig.reconcile([claim(ONE)], BOTH),
        mig.hand_over(claim(HALF, pod="q"), ["x"]),
    )
    await mig.reconcile([claim(ONE)], BOTH)
    await mig.stop()
    assert node.hardware.there() == {"MIG-1"}


@in_fake_time
async def test_two_containers_of_a_pod_at_once_keep_it_in_hand_until_both_have_theirs(tmp_path: Path) -> None:
    """Whatever anybody says about its pod meanwhile, an instance that is being handed over is not taken away."""
    written = asyncio.Event()

    async def slow(pod: ObjectKey, allocations: Sequence[MigAllocation]) -> None:
        if allocations[0].container == 0:
            await written.wait()

    node = Node(tmp_path)
    mig = await node.started(write=slow)
    first = asyncio.create_task(mig.hand_over(claim(ONE), ["x"]))
    await asyncio.sleep(0)
    await mig.hand_over(claim(replace(HALF, container=1)), ["x"])
    await mig.reconcile([], BOTH)
    assert node.hardware.there() == {"MIG-1", "MIG-2"}
    written.set()
    await first
    await mig.reconcile([], BOTH)
    assert node.hardware.there() == set()


async def test_a_reservation_that_names_somebody_elses_instance_is_refused(node: Node) -> None:
    foreign = node.hardware.foreign(A, "1g.18gb", 6)
    wrong = replace(ONE, mig_uuid="MIG-made-up", gpu_instance=1, compute_instance=0)
    assert "which this agent did not make" in await refusal(node, claim(wrong))
    assert node.hardware.cards[A].instances == [foreign]


async def test_a_machine_that_does_not_tell_its_start_is_served(
    node: Node, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tessera.node.modes.mig.records.BOOT_ID", tmp_path / "nowhere")
    mig = await node.started(boot=None)
    await mig.hand_over(claim(ONE), ["x"])
    again = await node.started(boot=None)
    await again.reconcile([], BOTH)
    assert node.hardware.there() == set()


# -- profiles by name, as drivers write them and as older allow lists did


@pytest.mark.parametrize(
    ("offers", "name", "size", "found"),
    [
        (H200, "1g.18gb", 1, "1g.18gb"),
        (H200, "1g.18gb+me", 1, "1g.18gb+me"),
        (H200, "1g.17gb+me", 1, "1g.18gb+me"),
        (H200, "1g.17gb", 1, "1g.18gb"),
        ((WHOLE_A100,), "7g.79gb", 8, "7g.80gb"),
        (H200, "1g.18gb+gfx", 1, None),
        (H200, "2g.18gb", 2, None),
        (H200, "4g.71gb+me", 4, None),
        (TWINS, "1g.10gb", 1, "1g.10gb"),
        (TWINS, "1g.12gb", 1, "1g.11gb"),
        ((TWINS[0], replace(TWINS[1], memory_mib=10752)), "1g.9gb+me", 1, None),
        ((TWINS[0], replace(TWINS[1], memory_mib=9729)), "1g.9gb", 1, None),
        (H200, "", 1, None),
        (H200, "１g.18gb", 1, None),
        (H200, "9" * 50 + "g.18gb", 1, None),
    ],
)
def test_a_profile_is_found_by_its_name_or_not_at_all(
    offers: tuple[object, ...], name: str, size: int, found: str | None
) -> None:
    facts = replace(FACTS, mig_profiles=offers)  # type: ignore[arg-type]
    slot = MigSlot(name, MigPlacement(0, size))
    if found is None:
        with pytest.raises(AllocationRefused, match="offers no MIG profile"):
            profile_for(facts, slot)
    else:
        assert profile_for(facts, slot).name == found
