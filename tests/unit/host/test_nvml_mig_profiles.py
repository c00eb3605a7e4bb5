from __future__ import annotations

import pynvml  # type: ignore[import-untyped]
import pytest

from tessera.core.model.devices import MigPlacement
from tessera.host.cards import CardError, CardFacts, GpuInstanceProfile
from tessera.host.nvml.hardware import NvmlHardware
from tests.unit.host.conftest import Attach
from tests.unit.host.fake_cards import (
    IN_USE,
    LOST,
    UNSUPPORTED,
    FakeCard,
    Profile,
    h200_profiles,
)
from tests.unit.host.fake_nvml import FakeNvml

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
