from __future__ import annotations

import pynvml  # type: ignore[import-untyped]
import pytest

from tessera.core.model.devices import MigPlacement
from tessera.host.cards import CardError, CardFacts, GpuInstanceProfile, MigInstance
from tessera.host.nvml.hardware import NvmlHardware
from tests.support.fake_cards import (
    IN_USE,
    LOST,
    UNKNOWN,
    UNSUPPORTED,
    ComputeInstance,
    FakeCard,
    Profile,
    h200_profiles,
)
from tests.support.fake_nvml import FakeNvml
from tests.unit.host.conftest import Attach

UUID = FakeCard().called
H200_NAMES = ["1g.18gb", "1g.18gb+me", "1g.35gb", "2g.35gb", "3g.71gb", "4g.71gb", "7g.141gb"]


def on() -> FakeCard:
    return FakeCard(mig=[1, 1])


def offers(hardware: NvmlHardware) -> dict[str, GpuInstanceProfile]:
    (card,) = hardware.scan()
    assert isinstance(card, CardFacts)
    return {offer.name: offer for offer in card.mig_profiles}


def test_an_offer_has_everything_that_nvml_says_of_a_profile(attach: Attach) -> None:
    assert offers(attach(FakeNvml(on())))["1g.35gb"] == GpuInstanceProfile(
        name="1g.35gb",
        profile_id=15,
        slices=1,
        memory_mib=33280,
        multiprocessors=26,
        instances=4,
        placements=tuple(MigPlacement(start, 2) for start in (0, 2, 4, 6)),
    )


@pytest.mark.parametrize("refusal", [None, UNSUPPORTED, pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH])
def test_profiles_have_the_names_of_nvidia_smi_whatever_the_driver_says(attach: Attach, refusal: int | None) -> None:
    """8.1 #14: upstream takes 1g.18gb+me and 1g.35gb for 1g.18gb."""
    card = on()
    library = FakeNvml(card)
    if refusal is None:
        card.profiles = h200_profiles(named=False)
    elif refusal == UNSUPPORTED:
        library.missing.add("nvmlDeviceGetGpuInstanceProfileInfoV")
    else:
        library.errors["nvmlDeviceGetGpuInstanceProfileInfoV"] = refusal
    found = offers(attach(library))
    assert list(found) == H200_NAMES
    assert [name for name, offer in found.items() if offer.media_extensions] == ["1g.18gb+me"]


def test_profiles_of_a_card_that_hides_its_memory_are_named_by_the_largest(attach: Attach) -> None:
    card = FakeCard(mig=[1, 1], profiles=h200_profiles(named=False), errors={"nvmlDeviceGetMemoryInfo": UNSUPPORTED})
    assert list(offers(attach(FakeNvml(card))))[::6] == ["1g.18gb", "7g.140gb"]


def test_a_card_that_does_not_tell_its_profiles_while_mig_is_off_offers_none(attach: Attach) -> None:
    card = FakeCard(mig=[0, 0], errors={"nvmlDeviceGetGpuInstanceProfileInfoV": UNSUPPORTED})
    (found,) = attach(FakeNvml(card)).scan()
    assert isinstance(found, CardFacts)
    assert (found.mig_capable, found.mig_enabled, found.mig_profiles) == (True, False, ())


def test_a_library_without_profiles_offers_none(attach: Attach) -> None:
    library = FakeNvml(on())
    library.missing |= {"nvmlDeviceGetGpuInstanceProfileInfoV", "nvmlDeviceGetGpuInstanceProfileInfo"}
    assert offers(attach(library)) == {}


def test_a_profile_without_a_place_is_not_offered(attach: Attach) -> None:
    card = on()
    card.profiles = [Profile(0, 19, 1, 7, 16, 16384, [])]
    assert offers(attach(FakeNvml(card))) == {}


def test_a_name_is_offered_once(attach: Attach) -> None:
    card = on()
    card.profiles = [Profile(number, 19 + number, 1, 7, 16, 16384, [(0, 1)]) for number in (0, 9)]
    assert [offer.profile_id for offer in offers(attach(FakeNvml(card))).values()] == [19]


def test_a_card_that_is_lost_while_its_profiles_are_read_is_unreadable(attach: Attach) -> None:
    card = on()
    card.errors["nvmlDeviceGetGpuInstanceProfileInfoV"] = LOST
    (found,) = attach(FakeNvml(card)).scan()
    assert not isinstance(found, CardFacts)


@pytest.mark.parametrize(("mig", "enabled"), [([0, 0], False), ([1, 1], True), ([1, 0], True), ([0, 1], False)])
def test_the_mode_is_the_one_that_holds_now(attach: Attach, mig: list[int], enabled: bool) -> None:
    assert attach(FakeNvml(FakeCard(mig=mig))).mig_enabled(UUID) is enabled


def test_mig_mode_goes_on_and_off(attach: Attach) -> None:
    card = FakeCard(mig=[0, 0])
    hardware = attach(FakeNvml(card))
    hardware.enable_mig(UUID)
    hardware.enable_mig(UUID)
    assert card.mig == [1, 1]
    hardware.disable_mig(UUID)
    assert card.mig == [0, 0]


def test_a_switch_that_would_need_a_reset_is_refused_and_taken_back(attach: Attach) -> None:
    card = FakeCard(mig=[0, 0], activation=IN_USE)
    with pytest.raises(CardError, match=r"mig mode enable would need a GPU reset \(text of the driver\)"):
        attach(FakeNvml(card)).enable_mig(UUID)
    assert card.mig == [0, 0]


@pytest.mark.parametrize(("mig", "wish"), [([0, 1], "enable"), ([1, 0], "disable")])
def test_a_switch_that_somebody_left_pending_is_not_touched(attach: Attach, mig: list[int], wish: str) -> None:
    card = FakeCard(mig=list(mig))
    for switch in (attach(FakeNvml(card)).enable_mig, attach(FakeNvml(card)).disable_mig):
        with pytest.raises(CardError, match=f"mig mode {wish} is pending; GPU reset required"):
            switch(UUID)
    assert card.mig == mig


@pytest.mark.parametrize("function", ["nvmlDeviceSetMigMode", "nvmlDeviceGetMigMode"])
def test_a_card_that_refuses_the_switch_says_why(attach: Attach, function: str) -> None:
    card = FakeCard(mig=[0, 0], errors={function: pynvml.NVML_ERROR_NO_PERMISSION})
    with pytest.raises(CardError, match="Insufficient Permissions"):
        attach(FakeNvml(card)).enable_mig(UUID)


def test_a_card_that_cannot_do_mig_says_so(attach: Attach) -> None:
    with pytest.raises(CardError, match="Not Supported"):
        attach(FakeNvml(FakeCard())).enable_mig(UUID)


def test_mig_mode_stays_on_while_there_are_instances(attach: Attach) -> None:
    card = on()
    card.hold(1, 19, 0)
    with pytest.raises(CardError, match="while GPU instances exist"):
        attach(FakeNvml(card)).disable_mig(UUID)
    assert card.mig == [1, 1]


def test_instances_are_listed_with_their_mig_uuids(attach: Attach) -> None:
    card = on()
    card.hold(9, 9, 4)
    card.hold(2, 19, 1, compute=False)
    card.hold(3, 20, 0)
    card.hold(4, 19, 2)
    prefix = f"MIG-{UUID[4:]}"
    assert attach(FakeNvml(card)).instances(UUID) == [
        MigInstance(UUID, 3, 20, MigPlacement(0, 1), 0, f"{prefix}-3-0"),
        MigInstance(UUID, 2, 19, MigPlacement(1, 1)),
        MigInstance(UUID, 4, 19, MigPlacement(2, 1), 0, f"{prefix}-4-0"),
        MigInstance(UUID, 9, 9, MigPlacement(4, 4), 0, f"{prefix}-9-0"),
    ]


def test_of_several_compute_instances_the_first_counts(attach: Attach) -> None:
    card = on()
    made = card.hold(1, 9, 0, compute=False)
    made.computes += [ComputeInstance(made, 2, 1), ComputeInstance(made, 1, 2)]
    (found,) = attach(FakeNvml(card)).instances(UUID)
    assert (found.compute_instance, found.mig_uuid) == (1, f"MIG-{UUID[4:]}-1-1")


@pytest.mark.parametrize(("computes", "divided"), [((3,), False), ((1,), True), ((2, 1), True), ((), False)])
def test_an_instance_is_divided_where_no_compute_instance_has_all_of_it(
    attach: Attach, computes: tuple[int, ...], divided: bool
) -> None:
    card = on()
    made = card.hold(1, 9, 0, compute=False)
    made.computes += [ComputeInstance(made, number, slices) for number, slices in enumerate(computes)]
    (found,) = attach(FakeNvml(card)).instances(UUID)
    assert found.divided is divided


def test_a_card_that_is_not_in_mig_mode_has_no_instances(attach: Attach) -> None:
    assert attach(FakeNvml(FakeCard(mig=[0, 0]))).instances(UUID) == []
    assert attach(FakeNvml(FakeCard())).instances(UUID) == []


@pytest.mark.parametrize(
    "function",
    [
        "nvmlDeviceGetGpuInstances",
        "nvmlGpuInstanceGetInfo",
        "nvmlGpuInstanceGetComputeInstances",
        "nvmlGpuInstanceGetComputeInstanceProfileInfo",
        "nvmlDeviceGetMigDeviceHandleByIndex",
        "nvmlDeviceGetMaxMigDeviceCount",
    ],
)
def test_instances_that_cannot_be_listed_are_an_error_never_an_empty_list(attach: Attach, function: str) -> None:
    card = on()
    card.hold(1, 19, 0)
    card.errors[function] = UNKNOWN
    with pytest.raises(CardError, match="listing its GPU instances: Unknown Error"):
        attach(FakeNvml(card)).instances(UUID)


@pytest.mark.parametrize(
    ("profile", "start", "size"),
    [("1g.18gb", 6, 1), ("1g.18gb+me", 2, 1), ("1g.35gb", 4, 2), ("3g.71gb", 4, 4), ("7g.141gb", 0, 8)],
)
def test_an_instance_is_made_exactly_there_with_one_compute_instance_over_all_of_it(
    attach: Attach, profile: str, start: int, size: int
) -> None:
    card = on()
    hardware = attach(FakeNvml(card))
    offer = offers(hardware)[profile]
    made = hardware.create(UUID, offer, MigPlacement(start, size))
    assert made == MigInstance(UUID, 1, offer.profile_id, MigPlacement(start, size), 0, f"MIG-{UUID[4:]}-1-0")
    assert hardware.instances(UUID) == [made]
    (held,) = card.instances
    assert [compute.slices for compute in held.computes] == [offer.slices]


def test_an_illegal_placement_is_refused_before_anything_is_made(attach: Attach) -> None:
    hardware = attach(FakeNvml(on()))
    with pytest.raises(CardError, match=r"3g\.71gb cannot be put at 2, 4 slices wide"):
        hardware.create(UUID, offers(hardware)["3g.71gb"], MigPlacement(2, 4))


def test_a_placement_that_is_taken_is_refused_by_the_card(attach: Attach) -> None:
    card = on()
    card.hold(1, 14, 0)
    hardware = attach(FakeNvml(card))
    with pytest.raises(CardError, match=r"creating 1g\.18gb at slice 1"):
        hardware.create(UUID, offers(hardware)["1g.18gb"], MigPlacement(1, 1))
    assert len(card.instances) == 1


@pytest.mark.parametrize(
    "function",
    [
        "nvmlGpuInstanceCreateComputeInstance",
        "nvmlDeviceGetMaxMigDeviceCount",
        "nvmlDeviceGetMigDeviceHandleByIndex",
        "nvmlDeviceGetUUID",
    ],
)
def test_what_cannot_be_finished_leaves_nothing_behind(attach: Attach, function: str) -> None:
    card = on()
    hardware = attach(FakeNvml(card))
    offer = offers(hardware)["2g.35gb"]
    card.errors[function] = UNKNOWN
    with pytest.raises(CardError, match=r"finishing 2g\.35gb at slice 4: Unknown Error"):
        hardware.create(UUID, offer, MigPlacement(4, 2))
    assert card.instances == []


def test_an_instance_that_does_not_come_up_as_a_device_is_taken_back(attach: Attach) -> None:
    card = on()
    hardware = attach(FakeNvml(card))
    offer = offers(hardware)["2g.35gb"]
    card.errors["nvmlDeviceGetMigDeviceHandleByIndex"] = pynvml.NVML_ERROR_NOT_FOUND
    with pytest.raises(CardError, match="did not come up as a MIG device"):
        hardware.create(UUID, offer, MigPlacement(4, 2))
    assert card.instances == []


def test_a_gpu_instance_without_compute_profiles_is_taken_back(attach: Attach) -> None:
    card = on()
    hardware = attach(FakeNvml(card))
    offer = offers(hardware)["2g.35gb"]
    card.errors["nvmlGpuInstanceGetComputeInstanceProfileInfo"] = UNSUPPORTED
    with pytest.raises(CardError, match="knows no compute instances"):
        hardware.create(UUID, offer, MigPlacement(4, 2))
    assert card.instances == []


def test_what_cannot_even_be_taken_back_is_said_to_be_there(attach: Attach) -> None:
    card = on()
    hardware = attach(FakeNvml(card))
    offer = offers(hardware)["2g.35gb"]
    card.errors |= {"nvmlGpuInstanceCreateComputeInstance": UNKNOWN, "nvmlGpuInstanceDestroy": LOST}
    with pytest.raises(CardError, match="Unknown Error; destroying it again: GPU is lost, so it is still there"):
        hardware.create(UUID, offer, MigPlacement(4, 2))


def test_an_instance_is_destroyed_with_all_that_is_in_it(attach: Attach) -> None:
    card = on()
    made = card.hold(1, 9, 0, compute=False)
    made.computes += [ComputeInstance(made, 0, 1), ComputeInstance(made, 1, 2)]
    other = card.hold(2, 19, 5)
    hardware = attach(FakeNvml(card))
    hardware.destroy(hardware.instances(UUID)[0])
    assert card.instances == [other]


def test_an_instance_that_is_gone_already_is_no_error(attach: Attach) -> None:
    attach(FakeNvml(on())).destroy(MigInstance(UUID, 7, 19, MigPlacement(0, 1)))
    off = FakeCard(mig=[0, 0], errors={"nvmlDeviceGetGpuInstanceById": UNSUPPORTED})
    attach(FakeNvml(off)).destroy(MigInstance(UUID, 7, 19, MigPlacement(0, 1)))


@pytest.mark.parametrize(("profile_id", "place"), [(19, MigPlacement(1, 1)), (20, MigPlacement(0, 1))])
def test_another_instance_with_the_same_number_is_left_alone(
    attach: Attach, profile_id: int, place: MigPlacement
) -> None:
    """8.1 #5: upstream destroys by a stale number."""
    card = on()
    card.hold(1, 19, 0)
    with pytest.raises(CardError, match="GPU instance 1 is now a different one"):
        attach(FakeNvml(card)).destroy(MigInstance(UUID, 1, profile_id, place))
    assert len(card.instances) == 1


def test_an_instance_in_use_is_not_destroyed(attach: Attach) -> None:
    card = on()
    card.hold(1, 19, 0).computes[0].processes = 1
    hardware = attach(FakeNvml(card))
    with pytest.raises(CardError, match="destroying GPU instance 1: text of the driver"):
        hardware.destroy(hardware.instances(UUID)[0])
    assert len(card.instances) == 1


def test_an_instance_that_cannot_be_found_out_about_is_an_error(attach: Attach) -> None:
    card = on()
    card.errors["nvmlDeviceGetGpuInstanceById"] = LOST
    with pytest.raises(CardError, match="GPU is lost"):
        attach(FakeNvml(card)).destroy(MigInstance(UUID, 1, 19, MigPlacement(0, 1)))


def test_a_card_is_busy_while_anybody_uses_it_or_a_part_of_it(attach: Attach) -> None:
    card = on()
    compute = card.hold(1, 19, 0).computes[0]
    hardware = attach(FakeNvml(card))
    assert not hardware.is_busy(UUID)
    for target, what in [(card, "processes"), (card, "graphics"), (compute, "processes"), (compute, "graphics")]:
        setattr(target, what, 2)
        assert hardware.is_busy(UUID)
        setattr(target, what, 0)
    assert not hardware.is_busy(UUID)


def test_a_card_that_knows_no_graphics_is_not_busy_for_that(attach: Attach) -> None:
    card = FakeCard(errors={"nvmlDeviceGetGraphicsRunningProcesses_v3": UNSUPPORTED})
    assert not attach(FakeNvml(card)).is_busy(UUID)


@pytest.mark.parametrize("code", [UNSUPPORTED, LOST, pynvml.NVML_ERROR_NO_PERMISSION])
def test_a_card_that_does_not_tell_counts_as_busy(attach: Attach, code: int) -> None:
    card = FakeCard(errors={"nvmlDeviceGetComputeRunningProcesses_v3": code})
    assert attach(FakeNvml(card)).is_busy(UUID)


def test_without_a_driver_every_card_counts_as_busy(attach: Attach) -> None:
    library = FakeNvml(FakeCard())
    library.errors["nvmlInitWithFlags"] = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    assert attach(library).is_busy(UUID)


def test_changes_leave_no_session_open(attach: Attach) -> None:
    library = FakeNvml(on())
    attach(library).instances(UUID)
    assert library.running == 0
