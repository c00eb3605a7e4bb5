from __future__ import annotations

import pynvml  # type: ignore[import-untyped]
import pytest

from tessera.host.cards import CardEvent, InventoryError
from tests.support.fake_cards import LOST, UNKNOWN, UNSUPPORTED, Event, FakeCard
from tests.support.fake_nvml import FakeNvml
from tests.unit.host.conftest import Attach

XID = pynvml.nvmlEventTypeXidCriticalError
DOUBLE = pynvml.nvmlEventTypeDoubleBitEccError
SINGLE = pynvml.nvmlEventTypeSingleBitEccError


@pytest.mark.parametrize(
    ("event_type", "data", "expected"),
    [
        (XID, 79, {"xid": 79}),
        (XID, 0, {"xid": 0}),
        (DOUBLE, 1, {"uncorrectable": True}),
        (SINGLE, 1, {}),
    ],
)
def test_an_event_says_what_happened_to_which_card(
    attach: Attach, event_type: int, data: int, expected: dict[str, int]
) -> None:
    card = FakeCard()
    library = FakeNvml(card)
    hardware = attach(library)
    assert hardware.listen([card.called]) == {}
    library.events.append(Event(card, event_type, data))
    assert hardware.wait(5) == CardEvent(card.called, **expected)  # type: ignore[arg-type]
    assert library.waits == [5000]


def test_an_event_of_an_instance_names_it(attach: Attach) -> None:
    card = FakeCard()
    library = FakeNvml(card)
    hardware = attach(library)
    hardware.listen([card.called])
    library.events.append(Event(card, XID, 31, gi=2, ci=0))
    assert hardware.wait(0) == CardEvent(card.called, xid=31, gpu_instance=2, compute_instance=0)


def test_an_event_of_a_card_that_no_longer_knows_its_name_concerns_all(attach: Attach) -> None:
    card = FakeCard()
    library = FakeNvml(card)
    hardware = attach(library)
    hardware.listen([card.called])
    card.errors["nvmlDeviceGetUUID"] = LOST
    library.events.append(Event(card, XID, 79))
    assert hardware.wait(0) == CardEvent(None, xid=79)


def test_nothing_within_the_time_is_no_event(attach: Attach) -> None:
    library = FakeNvml(FakeCard())
    hardware = attach(library)
    hardware.listen([FakeCard().called])
    assert [hardware.wait(0.25), hardware.wait(-1), hardware.wait(1e9)] == [None, None, None]
    assert library.waits == [250, 0, 3_600_000]


@pytest.mark.parametrize(
    ("supported", "registered"), [(0xFFFF, XID | DOUBLE | SINGLE), (XID, XID), (DOUBLE | 0x10, DOUBLE)]
)
def test_only_events_that_the_card_knows_are_asked_for(attach: Attach, supported: int, registered: int) -> None:
    library = FakeNvml(FakeCard(event_types=supported))
    hardware = attach(library)
    assert hardware.listen([FakeCard().called]) == {}
    assert list(library.sets.values()) == [{FakeCard().called: registered}]


@pytest.mark.parametrize(
    "card",
    [
        FakeCard(event_types=0),
        FakeCard(errors={"nvmlDeviceGetSupportedEventTypes": UNSUPPORTED}),
        FakeCard(errors={"nvmlDeviceRegisterEvents": UNSUPPORTED}),
    ],
    ids=["none", "unsupported", "unsupported-after-all"],
)
def test_a_card_without_events_is_no_problem(attach: Attach, card: FakeCard) -> None:
    library = FakeNvml(card)
    hardware = attach(library)
    assert hardware.listen([card.called]) == {}
    assert hardware.wait(0) is None
    assert library.waits == []


@pytest.mark.parametrize("function", ["nvmlDeviceGetSupportedEventTypes", "nvmlDeviceRegisterEvents", "handle"])
def test_a_card_that_cannot_be_listened_to_is_named_and_the_others_are_heard(attach: Attach, function: str) -> None:
    deaf, good = FakeCard(0, errors={function: UNKNOWN}), FakeCard(1)
    library = FakeNvml(deaf, good)
    hardware = attach(library)
    assert list(hardware.listen([deaf.called, good.called])) == [deaf.called]
    library.events.append(Event(good, XID, 31))
    assert hardware.wait(0) == CardEvent(good.called, xid=31)
    deaf.errors.clear()
    assert hardware.listen([deaf.called, good.called]) == {}
    assert list(library.sets.values()) == [{deaf.called: 0xB, good.called: 0xB}]


def test_a_card_that_is_not_wanted_any_more_is_not_listened_to(attach: Attach) -> None:
    one, other = FakeCard(0), FakeCard(1)
    library = FakeNvml(one, other)
    hardware = attach(library)
    hardware.listen([one.called, other.called])
    hardware.listen([other.called])
    assert list(library.sets.values()) == [{other.called: 0xB}]


def test_a_wait_that_fails_is_an_error_and_the_next_one_listens_again(attach: Attach) -> None:
    """8.1 #9: upstream goes round in a loop over the same broken set."""
    card = FakeCard()
    library = FakeNvml(card)
    hardware = attach(library)
    hardware.listen([card.called])
    library.events += [UNKNOWN, Event(card, XID, 48)]
    with pytest.raises(InventoryError, match="waiting for events: Unknown Error"):
        hardware.wait(0)
    assert library.sets == {}
    assert hardware.wait(0) == CardEvent(card.called, xid=48)
    assert list(library.sets.values()) == [{card.called: 0xB}]


def test_a_driver_that_goes_away_while_waiting_is_started_again(attach: Attach) -> None:
    card = FakeCard()
    library = FakeNvml(card)
    hardware = attach(library)
    hardware.listen([card.called])
    library.events += [pynvml.NVML_ERROR_DRIVER_NOT_LOADED, Event(card, XID, 48)]
    with pytest.raises(InventoryError):
        hardware.wait(0)
    assert library.running == 0
    assert hardware.wait(0) == CardEvent(card.called, xid=48)


def test_events_that_cannot_be_collected_at_all_are_an_error(attach: Attach) -> None:
    library = FakeNvml(FakeCard())
    library.errors["nvmlEventSetCreate"] = UNKNOWN
    with pytest.raises(InventoryError, match="cannot listen for events"):
        attach(library).listen([FakeCard().called])


def test_a_switch_of_mig_mode_makes_the_events_be_asked_for_again(attach: Attach) -> None:
    card = FakeCard(mig=[0, 0])
    library = FakeNvml(card)
    hardware = attach(library)
    hardware.listen([card.called])
    hardware.enable_mig(card.called)
    library.sets[next(iter(library.sets))].clear()
    hardware.listen([card.called])
    assert list(library.sets.values()) == [{card.called: 0xB}]


def test_closing_lets_nobody_wait_in_vain_and_frees_nothing_that_is_waited_for(attach: Attach) -> None:
    library = FakeNvml(FakeCard())
    hardware = attach(library)
    hardware.listen([FakeCard().called])
    wait_in_c = type(library)._nvmlEventSetWait_v2

    def close_meanwhile(*args: object) -> int:
        hardware.close()
        assert len(library.sets) == 1
        return wait_in_c(library, *args)

    pynvml._nvmlGetFunctionPointer_cache["nvmlEventSetWait_v2"] = close_meanwhile
    assert hardware.wait(0) is None
