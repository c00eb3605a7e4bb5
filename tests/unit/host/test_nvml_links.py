from __future__ import annotations

import pynvml  # type: ignore[import-untyped]
import pytest

from tessera.host.cards import CardError, Links, TopologyLevel
from tessera.node.registration.devices import pair_scores
from tests.unit.host.conftest import Attach
from tests.unit.host.fake_cards import LOST, UNSUPPORTED, FakeCard
from tests.unit.host.fake_nvml import FakeNvml

SWITCH = pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH
GPU = pynvml.NVML_NVLINK_DEVICE_TYPE_GPU


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
