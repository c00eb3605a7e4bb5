from __future__ import annotations

from pathlib import Path

import pynvml  # type: ignore[import-untyped]
import pytest

from tessera.host.cards import CardError, CardFacts, ComputeMode, Hardware, InventoryError, UnreadableCard
from tessera.host.nvml.hardware import RENEW_EVERY_S
from tests.unit.host.conftest import Attach, Clock
from tests.unit.host.fake_cards import LOST, UNKNOWN, UNSUPPORTED, FakeCard
from tests.unit.host.fake_nvml import FakeNvml

FIRST = "GPU-00000000-0000-0000-0000-000000000000"
SECOND = "GPU-00000000-0000-0000-0000-000000000001"


def facts(hardware: Hardware, index: int = 0) -> CardFacts:
    card = hardware.scan()[index]
    assert isinstance(card, CardFacts)
    return card


def test_a_card_is_read_with_all_it_says(attach: Attach, tmp_path: Path) -> None:
    node = tmp_path / "sys/bus/pci/devices/0000:3b:00.0/numa_node"
    node.parent.mkdir(parents=True)
    node.write_text("1\n")
    assert facts(attach(FakeNvml(FakeCard()))) == CardFacts(
        uuid=FIRST,
        index=0,
        name="NVIDIA H200",
        minor=0,
        memory_bytes=143771 * 2**20,
        numa=1,
        bus_id="00000000:3B:00.0",
        driver_version="580.65.06",
        cuda_version=(13, 2),
        compute_capability=(9, 0),
    )


def test_cards_come_in_the_order_of_nvml(attach: Attach) -> None:
    found = attach(FakeNvml(FakeCard(7), FakeCard(2))).scan()
    assert [(card.index, card.uuid and card.uuid[-1]) for card in found] == [(0, "7"), (1, "2")]


@pytest.mark.parametrize(
    "function",
    [
        "handle",
        "nvmlDeviceGetUUID",
        "nvmlDeviceGetName",
        "nvmlDeviceGetMemoryInfo",
        "nvmlDeviceGetMinorNumber",
        "nvmlDeviceGetPciInfo_v3",
        "nvmlDeviceGetCudaComputeCapability",
        "nvmlDeviceGetMigMode",
    ],
)
@pytest.mark.parametrize("code", [LOST, UNKNOWN, pynvml.NVML_ERROR_IN_USE])
def test_an_error_of_one_card_leaves_the_other_one_alone(attach: Attach, function: str, code: int) -> None:
    """8.1 #1 and golden case 38: upstream's agent ends itself."""
    broken, good = attach(FakeNvml(FakeCard(0, errors={function: code}), FakeCard(1))).scan()
    assert isinstance(broken, UnreadableCard)
    assert broken.problem.startswith("reading the card: ")
    assert isinstance(good, CardFacts)
    assert good.uuid == SECOND


def test_a_card_that_was_lost_keeps_its_uuid(attach: Attach) -> None:
    library = FakeNvml(FakeCard(0))
    hardware = attach(library)
    hardware.scan()
    library.cards[0].errors["handle"] = LOST
    assert hardware.scan() == [UnreadableCard(0, "reading the card: GPU is lost", FIRST)]


def test_a_card_that_was_never_read_has_no_uuid(attach: Attach) -> None:
    assert attach(FakeNvml(FakeCard(errors={"handle": LOST}))).scan() == [
        UnreadableCard(0, "reading the card: GPU is lost")
    ]


def test_the_versions_of_the_driver_and_its_cuda_are_known(attach: Attach) -> None:
    library = FakeNvml(FakeCard())
    assert (facts(attach(library)).driver_version, facts(attach(library)).cuda_version) == ("580.65.06", (13, 2))
    library.missing |= {"nvmlSystemGetDriverVersion", "nvmlSystemGetCudaDriverVersion_v2"}
    assert (facts(attach(library)).driver_version, facts(attach(library)).cuda_version) == ("", None)


@pytest.mark.parametrize(
    ("function", "field", "value"),
    [
        ("nvmlDeviceGetMemoryInfo", "memory_bytes", None),
        ("nvmlDeviceGetMinorNumber", "minor", None),
        ("nvmlDeviceGetPciInfo_v3", "bus_id", ""),
        ("nvmlDeviceGetCudaComputeCapability", "compute_capability", None),
        ("nvmlDeviceGetMigMode", "mig_capable", False),
    ],
)
def test_what_a_card_does_not_know_is_left_out(attach: Attach, function: str, field: str, value: object) -> None:
    library = FakeNvml(FakeCard(mig=[0, 0], errors={function: UNSUPPORTED}), FakeCard(1))
    assert getattr(facts(attach(library)), field) == value
    library.cards[0].errors.clear()
    library.missing.add(function)
    assert getattr(facts(attach(library)), field) == value


@pytest.mark.parametrize("uuid", [b"GPU-1", b"MIG-00000000-0000-0000-0000-000000000000", b"GPU-" + 36 * b"x", b"\xff"])
def test_a_uuid_of_another_form_makes_a_card_unreadable(attach: Attach, uuid: bytes) -> None:
    (card,) = attach(FakeNvml(FakeCard(uuid=uuid))).scan()
    assert isinstance(card, UnreadableCard)
    assert card.uuid is None


def test_a_name_that_is_no_text_makes_a_card_unreadable(attach: Attach) -> None:
    (card,) = attach(FakeNvml(FakeCard(name=b"\xff\xfe"))).scan()
    assert isinstance(card, UnreadableCard)
    assert card.uuid == FIRST


def test_two_cards_never_share_a_uuid(attach: Attach) -> None:
    first, second = attach(FakeNvml(FakeCard(0), FakeCard(1, uuid=FIRST.encode()))).scan()
    assert isinstance(first, CardFacts)
    assert second == UnreadableCard(1, f"its uuid {FIRST} is another card's")


def test_a_readable_card_keeps_its_uuid_before_an_unreadable_one(attach: Attach) -> None:
    """The driver counts the cards anew and the lost one now sits where the good one was."""
    library = FakeNvml(FakeCard(0), FakeCard(1))
    hardware = attach(library)
    hardware.scan()
    library.cards = [FakeCard(2, errors={"handle": LOST}), FakeCard(0)]
    lost, good = hardware.scan()
    assert lost == UnreadableCard(0, "reading the card: GPU is lost")
    assert good.uuid == FIRST


def test_a_driver_that_comes_later_is_found(attach: Attach) -> None:
    library = FakeNvml(FakeCard())
    library.errors["nvmlInitWithFlags"] = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    hardware = attach(library)
    with pytest.raises(InventoryError, match="cannot start NVML: Driver Not Loaded"):
        hardware.scan()
    library.errors.clear()
    assert facts(hardware).uuid == FIRST


@pytest.mark.parametrize("code", [1, 9, 18])
def test_a_session_that_broke_down_is_replaced(attach: Attach, code: int) -> None:
    library = FakeNvml(FakeCard())
    hardware = attach(library)
    hardware.scan()
    library.errors["nvmlDeviceGetCount_v2"] = code
    with pytest.raises(InventoryError):
        hardware.scan()
    assert library.running == 0
    library.errors.clear()
    assert facts(hardware).uuid == FIRST
    assert library.starts == 2


def test_another_error_does_not_cost_the_session(attach: Attach) -> None:
    library = FakeNvml(FakeCard())
    hardware = attach(library)
    library.errors["nvmlDeviceGetCount_v2"] = UNKNOWN
    with pytest.raises(InventoryError, match="NVML: Unknown Error"):
        hardware.scan()
    library.errors.clear()
    hardware.scan()
    assert library.starts == 1


def test_nvml_starts_anew_for_a_lost_card_but_not_with_every_scan(attach: Attach, clock: Clock) -> None:
    library = FakeNvml(FakeCard(0), FakeCard(1))
    hardware = attach(library)
    hardware.scan()
    hardware.listen([FIRST])
    library.cards[1].errors["handle"] = LOST
    for _ in range(3):
        hardware.scan()
        hardware.wait(0)
    assert library.starts == 1
    clock.now += RENEW_EVERY_S
    hardware.scan()
    hardware.wait(0)
    assert library.starts == 2
    assert list(library.sets.values()) == [{FIRST: 0xB}]


def test_closing_twice_is_fine_and_leaves_nothing_open(attach: Attach) -> None:
    library = FakeNvml(FakeCard())
    hardware = attach(library)
    hardware.scan()
    hardware.listen([FIRST])
    hardware.close()
    hardware.close()
    assert (library.running, library.sets) == (0, {})


def test_closing_does_not_mind_a_library_that_fails(attach: Attach) -> None:
    library = FakeNvml(FakeCard())
    hardware = attach(library)
    hardware.scan()
    hardware.listen([FIRST])
    library.errors |= {"nvmlShutdown": UNKNOWN, "nvmlEventSetFree": UNKNOWN}
    hardware.close()


def test_compute_mode_is_set_and_read(attach: Attach) -> None:
    hardware: Hardware = attach(FakeNvml(FakeCard()))
    assert hardware.compute_mode(FIRST) is ComputeMode.DEFAULT
    hardware.set_compute_mode(FIRST, ComputeMode.EXCLUSIVE_PROCESS)
    assert hardware.compute_mode(FIRST) is ComputeMode.EXCLUSIVE_PROCESS


def test_a_compute_mode_that_cannot_be_set_names_the_card(attach: Attach) -> None:
    library = FakeNvml(FakeCard(errors={"nvmlDeviceSetComputeMode": pynvml.NVML_ERROR_NO_PERMISSION}))
    with pytest.raises(CardError, match="EXCLUSIVE_PROCESS: Insufficient Permissions") as caught:
        attach(library).set_compute_mode(FIRST, ComputeMode.EXCLUSIVE_PROCESS)
    assert caught.value.uuid == FIRST
    assert library.running == 0


def test_a_compute_mode_that_nobody_knows_is_an_error(attach: Attach) -> None:
    with pytest.raises(CardError, match="compute mode 1 is unknown"):
        attach(FakeNvml(FakeCard(compute_mode=1))).compute_mode(FIRST)


def test_a_card_that_is_not_there_is_an_error_of_that_card(attach: Attach) -> None:
    with pytest.raises(CardError, match="Not Found") as caught:
        attach(FakeNvml(FakeCard())).compute_mode(SECOND)
    assert caught.value.uuid == SECOND
