from __future__ import annotations

from functools import partial
from pathlib import Path

import pynvml  # type: ignore[import-untyped]
import pytest

from tessera.core.model.devices import MigPlacement
from tessera.host.cards import (
    CardError,
    CardFacts,
    ComputeMode,
    Hardware,
    InventoryError,
    Links,
    MigInstance,
    TopologyLevel,
    UnreadableCard,
)
from tessera.host.nvml.hardware import RENEW_EVERY_S, NvmlHardware, numa_node, pcie_root
from tessera.host.nvml.session import load_binding
from tessera.host.simulated.hardware import no_cards
from tessera.node.registration.devices import pair_scores
from tests.support.fake_cards import LOST, UNKNOWN, UNSUPPORTED, FakeCard
from tests.support.fake_nvml import FakeNvml
from tests.support.logs import captured
from tests.unit.host.conftest import Attach, Clock

FIRST = "GPU-00000000-0000-0000-0000-000000000000"
SECOND = "GPU-00000000-0000-0000-0000-000000000001"

SWITCH = pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH
GPU = pynvml.NVML_NVLINK_DEVICE_TYPE_GPU


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


def pair(level: int = 40) -> tuple[FakeCard, FakeCard]:
    return FakeCard(0, levels={1: level}), FakeCard(1, levels={0: level})


@pytest.mark.parametrize("connection", list(TopologyLevel))
def test_each_level_of_topology_is_known(attach: Attach, connection: TopologyLevel) -> None:
    one, other = pair(connection.value)
    found = attach(FakeNvml(one, other)).links([one.called, other.called])
    assert found == {(one.called, other.called): Links(connection), (other.called, one.called): Links(connection)}


def test_a_level_that_nobody_knows_is_no_connection(attach: Attach) -> None:
    one, other = pair(45)
    assert attach(FakeNvml(one, other)).links([one.called, other.called])[one.called, other.called] == Links(None)


def test_topology_that_a_driver_does_not_know_is_no_connection(attach: Attach) -> None:
    one, other = pair()
    one.errors["nvmlDeviceGetTopologyCommonAncestor"] = UNSUPPORTED
    assert attach(FakeNvml(one, other)).links([one.called, other.called])[one.called, other.called] == Links(None)


def test_links_that_end_at_the_other_card_are_counted(attach: Attach) -> None:
    one, other = pair()
    one.links = {0: (other.bus.lower(), GPU), 3: (other.bus, GPU), 5: (b"00000000:99:00.0", GPU)}
    found = attach(FakeNvml(one, other)).links([one.called, other.called])
    assert found[one.called, other.called] == Links(TopologyLevel.NODE, direct=2)
    assert found[other.called, one.called] == Links(TopologyLevel.NODE)


def test_eighteen_links_to_a_switch_on_both_sides_score_1820(attach: Attach) -> None:
    """Golden case 29."""
    one, other = pair()
    one.links = other.links = dict.fromkeys(range(18), (b"00000000:05:00.0", SWITCH))
    uuids = [one.called, other.called]
    scores = pair_scores(uuids, attach(FakeNvml(one, other)).links(uuids)).scores
    assert scores == {uuids[0]: {uuids[1]: 1820}, uuids[1]: {uuids[0]: 1820}}


@pytest.mark.parametrize("function", ["nvmlDeviceGetNvLinkRemotePciInfo_v2", "nvmlDeviceGetNvLinkRemoteDeviceType"])
def test_a_link_that_does_not_say_where_it_ends_is_left_out(attach: Attach, function: str) -> None:
    one, other = pair()
    one.links = {0: (other.bus, SWITCH)}
    one.errors[function] = UNSUPPORTED
    links = attach(FakeNvml(one, other)).links([one.called, other.called])[one.called, other.called]
    assert links.direct + links.switched == 1


@pytest.mark.parametrize("function", ["nvmlDeviceGetNvLinkState", "nvmlDeviceGetPciInfo_v3", "handle"])
def test_a_card_that_cannot_answer_is_named(attach: Attach, function: str) -> None:
    one, other = pair()
    other.errors[function] = LOST
    with pytest.raises(CardError) as caught:
        attach(FakeNvml(one, other)).links([one.called, other.called])
    assert caught.value.uuid == other.called


def test_one_card_alone_has_no_links(attach: Attach) -> None:
    assert attach(FakeNvml(FakeCard())).links([FakeCard().called]) == {}


def sysfs(tmp_path: Path, text: str, *, device: str = "0000:3b:00.0") -> Path:
    node = tmp_path / "bus/pci/devices" / device / "numa_node"
    node.parent.mkdir(parents=True)
    node.write_text(text, "utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("text", "numa"), [("0\n", 0), ("1\n", 1), ("-1\n", None), ("", None), ("x", None), ("é", None)]
)
def test_the_kernel_says_which_node(tmp_path: Path, text: str, numa: int | None) -> None:
    assert numa_node("00000000:3B:00.0", sysfs=sysfs(tmp_path, text)) == numa


@pytest.mark.parametrize(
    ("bus_id", "device"),
    [
        ("0000:3B:00.0", "0000:3b:00.0"),
        ("00000009:01:00.0", "0009:01:00.0"),
        ("00010000:00:00.0", "10000:00:00.0"),
    ],
)
def test_an_address_is_found_however_long_its_domain(tmp_path: Path, bus_id: str, device: str) -> None:
    assert numa_node(bus_id, sysfs=sysfs(tmp_path, "1", device=device)) == 1


@pytest.mark.parametrize("bus_id", ["", "0000", "00000000:99:00.0", "0000../../../x", "/etc", "00000000:3B:00.0\n"])
def test_an_address_without_a_device_has_no_node(tmp_path: Path, bus_id: str) -> None:
    assert numa_node(bus_id, sysfs=sysfs(tmp_path, "1")) is None


def test_the_root_complex_is_the_first_in_the_kernels_path(tmp_path: Path) -> None:
    card = tmp_path / "devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0"
    card.mkdir(parents=True)
    (tmp_path / "bus/pci/devices").mkdir(parents=True)
    (tmp_path / "bus/pci/devices/0000:3b:00.0").symlink_to(card)
    assert pcie_root("00000000:3B:00.0", sysfs=tmp_path) == "pci0000:3a"


@pytest.mark.parametrize("bus_id", ["", "00000000:99:00.0", "/etc"])
def test_an_address_without_a_device_has_no_root_complex(tmp_path: Path, bus_id: str) -> None:
    assert pcie_root(bus_id, sysfs=tmp_path) == ""


# -- a node without cards, and a driver that comes later than the agent


class Driver:
    """dlopen of a library that is there once it came."""

    def __init__(self) -> None:
        self.library = FakeNvml(FakeCard())
        self.came = False

    def __call__(self, name: str) -> FakeNvml:
        if not self.came:
            raise OSError(f"{name}: not here")
        return self.library


@pytest.fixture
def driver() -> Driver:
    return Driver()


@pytest.fixture
def awaited(driver: Driver, no_library: None, tmp_path: Path) -> NvmlHardware:
    return NvmlHardware(awaits_driver=True, load=partial(load_binding, tmp_path, dlopen=driver), sysfs=tmp_path)


def test_a_node_has_no_cards_until_its_driver_comes(driver: Driver, awaited: NvmlHardware) -> None:
    with captured() as logs:
        assert (awaited.scan(), awaited.scan(), awaited.is_busy("GPU-a")) == ([], [], True)
        (missing,) = logs.events
        assert "not here" in missing["problem"]
        driver.came = True
        (card,) = awaited.scan()
        assert isinstance(card, CardFacts)
        awaited.scan()
        assert [each["event"] for each in logs.events[1:]] == ["NVIDIA's management library was found"]
    awaited.close()


def test_a_driver_that_is_there_at_once_is_not_announced(driver: Driver, awaited: NvmlHardware) -> None:
    driver.came = True
    with captured() as logs:
        assert len(awaited.scan()) == 1
    assert not logs.events
    awaited.close()


def test_a_driver_that_goes_again_is_a_fault(driver: Driver, awaited: NvmlHardware) -> None:
    driver.came = True
    awaited.scan()
    awaited.close()
    driver.library.errors["nvmlInitWithFlags"] = 9
    with pytest.raises(InventoryError):
        awaited.scan()


def test_a_node_without_cards_has_none_and_hears_nothing() -> None:
    hardware: Hardware = no_cards()
    assert (hardware.scan(), hardware.links([]), hardware.listen([]), hardware.wait(0)) == ([], {}, {}, None)
    assert list(hardware.listen(["GPU-1"])) == ["GPU-1"]
    hardware.close()
    assert hardware.wait(60) is None


def test_a_card_that_no_node_has_is_an_error_of_that_card_and_never_free() -> None:
    hardware = no_cards()
    with pytest.raises(CardError, match="no such card") as caught:
        hardware.destroy(MigInstance("GPU-1", 1, 19, MigPlacement(0, 1)))
    assert caught.value.uuid == "GPU-1"
    assert hardware.is_busy("GPU-1")
