from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tessera.core.model.devices import MigPlacement
from tessera.host.cards import (
    CardError,
    CardEvent,
    CardFacts,
    ComputeMode,
    GpuInstanceProfile,
    Hardware,
    InventoryError,
    Links,
    MigInstance,
    TopologyLevel,
    UnreadableCard,
)
from tessera.host.simulated.description import parse_description
from tessera.host.simulated.hardware import simulated_hardware
from tessera.wire.config_file import ConfigError
from tests.support.cards import FaultyCards
from tests.support.logs import captured
from tests.unit.host.conftest import Clock

TWO = "cards: [{model: H200, count: 2, numa: [0, 1]}]"


def simulate(
    text: str = "cards: [{model: H200, mig: true}]",
    clock: Callable[[], float] = lambda: 0.0,
    *,
    state: Path | None = None,
) -> FaultyCards:
    description = parse_description(text, file="cards.yaml")
    return FaultyCards(lambda: description, node_name="node-a", state=state, clock=clock)


def uuids(hardware: Hardware) -> list[str]:
    return [card.uuid or "" for card in hardware.scan()]


def test_cards_are_what_the_file_says() -> None:
    first, second, third = simulate(
        "cards: [{model: H100, count: 2, numa: 1}, {model: V100, name: Tesla Mine, memory: 16384}]"
    ).scan()
    assert isinstance(first, CardFacts)
    assert (first.name, first.memory_bytes, first.numa, first.minor) == ("NVIDIA H100 80GB HBM3", 81559 * 2**20, 1, 0)
    assert (first.compute_capability, first.mig_capable, first.mig_enabled) == ((9, 0), True, False)
    assert isinstance(third, CardFacts)
    assert (third.name, third.memory_bytes, third.numa, third.minor) == ("Tesla Mine", 16384 * 2**20, None, 2)
    assert [card.index for card in (first, second, third)] == [0, 1, 2]
    assert not third.mig_capable


def test_uuids_have_the_form_of_real_ones_and_are_always_the_same() -> None:
    found = uuids(simulate(TWO))
    assert found == uuids(simulate(TWO))
    assert {(len(uuid), uuid.count("-"), uuid[:4]) for uuid in found} == {(40, 5, "GPU-")}
    other = FaultyCards(lambda: parse_description(TWO, file="f"), node_name="node-b")
    assert not set(found) & set(uuids(other))


def test_a_uuid_may_be_given() -> None:
    given = "GPU-03f69c50-207a-2038-9b45-23cac89cb67a"
    assert uuids(simulate(f"cards: [{{model: L4, uuid: {given}}}]")) == [given]


def test_a_card_may_hide_its_memory() -> None:
    (card,) = simulate("cards: [{model: L4, memory: 0}]").scan()
    assert isinstance(card, CardFacts)
    assert card.memory_bytes is None


def test_one_unreadable_card_leaves_the_others_alone() -> None:
    found = simulate("cards: [{model: L4, problem: GPU is lost}, {model: L4}]").scan()
    assert isinstance(found[0], UnreadableCard)
    assert found[0].problem == "GPU is lost"
    assert isinstance(found[1], CardFacts)


def test_a_scripted_problem_comes_and_goes(clock: Clock) -> None:
    hardware = simulate(
        "cards: [{model: L4, count: 2}]\nproblems: [{card: 1, problem: hot, after: 10, until: 20}]", clock
    )
    seen = []
    for _ in range(4):
        seen.append([isinstance(card, CardFacts) for card in hardware.scan()])
        clock.now += 7
    assert seen == [[True, True], [True, True], [True, False], [True, True]]


def test_a_problem_without_an_end_stays(clock: Clock) -> None:
    hardware = simulate("cards: [{model: L4}]\nproblems: [{card: 0, problem: hot, after: 1}]", clock)
    clock.now += 1e6
    assert [card for card in hardware.scan() if isinstance(card, CardFacts)] == []


def test_a_card_is_lost_and_comes_back() -> None:
    hardware = simulate("cards: [{model: L4, problem: broken from the start}]")
    (uuid,) = uuids(hardware)
    hardware.bring_back(uuid)
    assert isinstance(hardware.scan()[0], CardFacts)
    hardware.lose(uuid)
    assert hardware.scan() == [UnreadableCard(0, "GPU is lost", uuid)]


def test_hardware_as_a_whole_breaks_down_and_is_repaired() -> None:
    hardware = simulate("cards: [{model: L4}]\nproblem: driver not loaded")
    for ask in (hardware.scan, lambda: hardware.wait(0), lambda: hardware.listen([]), lambda: hardware.links([])):
        with pytest.raises(InventoryError, match="driver not loaded"):
            ask()
    hardware.repair()
    (uuid,) = uuids(hardware)
    hardware.break_down("gone again")
    with pytest.raises(InventoryError, match="gone again"):
        hardware.scan()
    assert hardware.is_busy(uuid)


def test_cards_of_one_numa_node_share_a_cpu() -> None:
    hardware = simulate("cards: [{model: L4, count: 3, numa: [0, 0, 1]}]")
    a, b, c = uuids(hardware)
    found = hardware.links([a, b, c])
    assert found[a, b] == found[b, a] == Links(TopologyLevel.NODE)
    assert found[a, c] == Links(TopologyLevel.SYSTEM)
    assert len(found) == 6
    assert set(hardware.links([a, c])) == {(a, c), (c, a)}


@pytest.mark.parametrize(
    ("group", "there", "back"),
    [
        ("nvlinks: 18", Links(TopologyLevel.NODE, switched=18), Links(TopologyLevel.NODE, switched=18)),
        ("nvlinks: 4, through: cards", Links(TopologyLevel.NODE, direct=4), Links(TopologyLevel.NODE, direct=4)),
        ("pcie: host-bridge", Links(TopologyLevel.HOST_BRIDGE), Links(TopologyLevel.HOST_BRIDGE)),
        ("nvlinks: 4, through: cards, one_way: true", Links(TopologyLevel.NODE, direct=4), Links(TopologyLevel.NODE)),
    ],
)
def test_a_group_of_links_says_how_its_cards_reach_each_other(group: str, there: Links, back: Links) -> None:
    hardware = simulate(f"cards: [{{model: V100, count: 3}}]\nlinks: [{{cards: [0, 2], {group}}}]")
    a, b, c = uuids(hardware)
    found = hardware.links([a, b, c])
    assert (found[a, c], found[c, a], found[a, b]) == (there, back, Links(TopologyLevel.NODE))


def test_links_of_a_lost_card_are_an_error_of_that_card() -> None:
    hardware = simulate(TWO)
    _, second = known = uuids(hardware)
    hardware.lose(second)
    with pytest.raises(CardError) as caught:
        hardware.links(known)
    assert caught.value.uuid == second


def test_scripted_events_come_at_their_time(clock: Clock) -> None:
    hardware = simulate(
        TWO + "\nevents: [{card: 0, at: 5, xid: 79}, {card: 1, ecc: double-bit}, {ecc: single-bit}]", clock
    )
    first, second = known = uuids(hardware)
    hardware.listen(known)
    assert hardware.wait(0) == CardEvent(second, uncorrectable=True)
    assert hardware.wait(0) == CardEvent(None)
    assert hardware.wait(0) is None
    clock.now += 5
    assert hardware.wait(0) == CardEvent(first, xid=79)
    clock.now += 100
    assert hardware.wait(0) is None


def test_a_card_may_be_lost_with_an_event() -> None:
    hardware = simulate("cards: [{model: L4}]\nevents: [{card: 0, xid: 79, lost: fell off the bus}]")
    known = uuids(hardware)
    hardware.listen(known)
    assert isinstance(hardware.scan()[0], CardFacts)
    assert hardware.wait(0) == CardEvent(known[0], xid=79)
    assert hardware.scan() == [UnreadableCard(0, "fell off the bus", known[0])]


def test_events_wait_for_somebody_to_listen() -> None:
    hardware = simulate(TWO)
    first, second = uuids(hardware)
    hardware.push(CardEvent(first, xid=31))
    hardware.listen([second])
    assert hardware.wait(0) is None
    hardware.listen([first])
    assert hardware.wait(0) == CardEvent(first, xid=31)


def test_a_pushed_event_ends_a_wait() -> None:
    hardware = simulate("cards: [{model: L4}]")
    known = uuids(hardware)
    hardware.listen(known)
    thread = threading.Thread(target=lambda: hardware.push(CardEvent(known[0], xid=31)))
    thread.start()
    # The first wait may end for nothing, as it may on real hardware.
    heard = hardware.wait(60) or hardware.wait(60)
    thread.join()
    assert heard == CardEvent(known[0], xid=31)


def test_closing_ends_a_wait() -> None:
    hardware = simulate("cards: [{model: L4}]")
    hardware.wait(0)
    hardware.close()
    assert hardware.wait(60) is None


def test_a_card_that_cannot_be_listened_to_says_why() -> None:
    hardware = simulate("cards: [{model: L4, deaf: no event support}, {model: L4, problem: lost}, {model: L4}]")
    first, second, third = uuids(hardware)
    assert hardware.listen([first, second, third, "GPU-x"]) == {
        first: "no event support",
        second: "lost",
        "GPU-x": "there is no such card",
    }


def test_compute_mode_stays_as_it_was_set() -> None:
    hardware = simulate(TWO)
    first, second = uuids(hardware)
    hardware.set_compute_mode(first, ComputeMode.EXCLUSIVE_PROCESS)
    assert hardware.compute_mode(first) is ComputeMode.EXCLUSIVE_PROCESS
    assert hardware.compute_mode(second) is ComputeMode.DEFAULT


def test_a_file_that_changes_changes_the_cards_and_brings_events(tmp_path: Path) -> None:
    path = tmp_path / "cards.yaml"
    path.write_text("cards: [{model: L4}]\nevents: [{card: 0, xid: 1}]\n")
    hardware = simulated_hardware(path, node_name="n")
    known = uuids(hardware)
    hardware.listen(known)
    assert hardware.wait(0) == CardEvent(known[0], xid=1)
    path.write_text(
        "cards: [{model: L4, count: 2}]\nevents: [{card: 0, xid: 1}, {card: 0, xid: 1}, {card: 0, xid: 2}]\n"
    )
    assert uuids(hardware)[:1] == known
    assert len(hardware.scan()) == 2
    assert [hardware.wait(0), hardware.wait(0), hardware.wait(0)] == [
        CardEvent(known[0], xid=1),
        CardEvent(known[0], xid=2),
        None,
    ]


def test_a_file_that_became_wrong_changes_nothing_and_is_reported_once(tmp_path: Path) -> None:
    path = tmp_path / "cards.yaml"
    path.write_text("cards: [{model: L4}]")
    hardware = simulated_hardware(path, node_name="n")
    before = hardware.scan()
    with captured() as logs:
        path.write_text("cards: 7")
        assert hardware.scan() == before
        assert hardware.scan() == before
        path.unlink()
        assert hardware.scan() == before
    assert len(logs.events) == 2


def card(hardware: Hardware) -> CardFacts:
    found = hardware.scan()[0]
    assert isinstance(found, CardFacts)
    return found


def offer(hardware: Hardware, name: str) -> GpuInstanceProfile:
    return next(each for each in card(hardware).mig_profiles if each.name == name)


def make(hardware: Hardware, name: str, start: int, size: int) -> MigInstance:
    return hardware.create(card(hardware).uuid, offer(hardware, name), MigPlacement(start, size))


def test_mig_mode_goes_on_and_off() -> None:
    hardware = simulate("cards: [{model: A30}]")
    uuid = card(hardware).uuid
    for _ in range(2):
        hardware.enable_mig(uuid)
    assert hardware.mig_enabled(uuid)
    assert card(hardware).mig_enabled
    hardware.disable_mig(uuid)
    assert not hardware.mig_enabled(uuid)


@pytest.mark.parametrize(
    ("text", "prepare", "problem"),
    [
        ("{model: L4}", None, "Not Supported"),
        ("{model: H200, resetless: false}", None, "mig mode enable would need a GPU reset"),
        ("{model: H200, busy: true}", None, "in use by another client"),
        ("{model: H200}", "use", "in use by another client"),
        ("{model: H200}", "lose", "GPU is lost"),
    ],
)
def test_a_card_may_refuse_to_be_switched(text: str, prepare: str | None, problem: str) -> None:
    hardware = simulate(f"cards: [{text}]")
    uuid = card(hardware).uuid
    if prepare:
        getattr(hardware, prepare)(uuid)
    with pytest.raises(CardError, match=problem):
        hardware.enable_mig(uuid)


def test_mig_mode_stays_on_while_there_are_instances() -> None:
    hardware = simulate()
    made = make(hardware, "1g.18gb", 0, 1)
    with pytest.raises(CardError, match="while GPU instances exist"):
        hardware.disable_mig(made.uuid)
    hardware.destroy(made)
    hardware.disable_mig(made.uuid)


def test_instances_are_made_listed_and_destroyed() -> None:
    hardware = simulate()
    big = make(hardware, "3g.71gb", 4, 4)
    small = make(hardware, "1g.18gb", 0, 1)
    assert hardware.instances(big.uuid) == [small, big]
    assert big.mig_uuid is not None
    assert len(big.mig_uuid) == 40
    assert len({big.mig_uuid, small.mig_uuid}) == 2
    hardware.destroy(big)
    hardware.destroy(big)
    assert hardware.instances(big.uuid) == [small]


@pytest.mark.parametrize(
    ("first", "second", "problem"),
    [
        (("2g.35gb", 0, 2), ("1g.18gb", 1, 1), "another instance is there"),
        (("7g.141gb", 0, 8), ("1g.18gb", 6, 1), "another instance is there"),
        (("1g.18gb+me", 0, 1), ("1g.18gb+me", 1, 1), r"no more than 1 of 1g\.18gb\+me fit"),
        (("1g.18gb", 0, 1), ("3g.71gb", 2, 4), "cannot be put at 2, 4 slices wide"),
    ],
)
def test_what_does_not_fit_is_refused(first: tuple[str, int, int], second: tuple[str, int, int], problem: str) -> None:
    hardware = simulate()
    made = make(hardware, *first)
    with pytest.raises(CardError, match=problem):
        make(hardware, *second)
    assert hardware.instances(made.uuid) == [made]


def test_a_card_that_is_not_in_mig_mode_makes_nothing() -> None:
    with pytest.raises(CardError, match="MIG mode is off"):
        make(simulate("cards: [{model: H200}]"), "1g.18gb", 0, 1)


def test_a_profile_of_another_card_is_refused() -> None:
    hardware = simulate()
    foreign = offer(simulate("cards: [{model: A30, mig: true}]"), "1g.6gb")
    with pytest.raises(CardError, match=r"1g\.6gb is no profile of this card"):
        hardware.create(card(hardware).uuid, foreign, MigPlacement(0, 1))


def test_another_instance_with_the_same_number_is_left_alone() -> None:
    hardware = simulate()
    old = make(hardware, "1g.18gb", 0, 1)
    hardware.destroy(old)
    new = make(hardware, "1g.18gb", 3, 1)
    assert new.gpu_instance == old.gpu_instance
    with pytest.raises(CardError, match="is now a different one"):
        hardware.destroy(old)
    assert hardware.instances(new.uuid) == [new]


def test_an_instance_in_use_is_not_destroyed_and_makes_its_card_busy() -> None:
    hardware = simulate()
    made = make(hardware, "1g.18gb", 0, 1)
    assert made.mig_uuid is not None
    assert not hardware.is_busy(made.uuid)
    hardware.use(made.mig_uuid)
    assert hardware.is_busy(made.uuid)
    with pytest.raises(CardError, match="in use by another client"):
        hardware.destroy(made)
    hardware.leave(made.mig_uuid)
    hardware.destroy(made)
    assert hardware.instances(made.uuid) == []


@pytest.mark.parametrize(
    "ask",
    [
        lambda hardware, uuid: hardware.mig_enabled(uuid),
        lambda hardware, uuid: hardware.instances(uuid),
        lambda hardware, uuid: hardware.compute_mode(uuid),
        lambda hardware, uuid: hardware.set_compute_mode(uuid, ComputeMode.DEFAULT),
        lambda hardware, uuid: hardware.destroy(MigInstance(uuid, 0, 19, MigPlacement(0, 1))),
    ],
)
def test_a_lost_card_answers_nothing_and_keeps_its_instances(ask: Callable[[Hardware, str], object]) -> None:
    hardware = simulate()
    made = make(hardware, "1g.18gb", 0, 1)
    hardware.lose(made.uuid)
    with pytest.raises(CardError, match="GPU is lost"):
        ask(hardware, made.uuid)
    assert hardware.is_busy(made.uuid)
    hardware.bring_back(made.uuid)
    assert hardware.instances(made.uuid) == [made]


def test_what_lives_in_the_hardware_outlives_the_agent(tmp_path: Path) -> None:
    path = tmp_path / "cards.yaml"
    path.write_text("state: state.json\ncards: [{model: H200}]")
    before = simulated_hardware(path, node_name="n")
    uuid = card(before).uuid
    before.enable_mig(uuid)
    made = make(before, "3g.71gb", 4, 4)
    before.set_compute_mode(uuid, ComputeMode.PROHIBITED)
    after = simulated_hardware(path, node_name="n")
    assert after.mig_enabled(uuid)
    assert after.instances(uuid) == [made]
    assert after.compute_mode(uuid) is ComputeMode.PROHIBITED
    assert sorted(each.name for each in tmp_path.iterdir()) == ["cards.yaml", "state.json"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "cannot be read"),
        ("[]", "Expected `object`, got `array`"),
        ('{"GPU-1": {"mig": true, "mode": 9, "instances": []}}', "Invalid enum value 9"),
    ],
)
def test_a_state_that_cannot_be_read_is_not_overwritten(tmp_path: Path, text: str, problem: str) -> None:
    state = tmp_path / "state.json"
    state.write_text(text)
    with pytest.raises(ConfigError, match=problem):
        simulate(state=state)
    assert state.read_text() == text


def test_a_state_that_is_no_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        simulate(state=tmp_path)


def test_a_change_that_cannot_be_kept_is_refused(tmp_path: Path) -> None:
    hardware = simulate("cards: [{model: H200}]", state=tmp_path / "state.json")
    (tmp_path / "state.draft").mkdir()
    uuid = card(hardware).uuid
    with pytest.raises(CardError, match="its state cannot be kept"):
        hardware.enable_mig(uuid)
    assert not hardware.mig_enabled(uuid)


@pytest.mark.parametrize("model", ["A100-SXM4-40GB", "A100-SXM4-80GB", "H100", "H200", "A30"])
def test_instances_never_overlap_and_never_take_more_than_the_card_has(model: str) -> None:
    rng = random.Random(model)
    hardware = simulate(f"cards: [{{model: {model}, mig: true}}]")
    facts = card(hardware)
    by_id = {each.profile_id: each for each in facts.mig_profiles}
    whole = max(facts.mig_profiles, key=lambda each: each.slices)
    for _ in range(400):
        there = hardware.instances(facts.uuid)
        if there and rng.random() < 0.4:
            hardware.destroy(rng.choice(there))
            continue
        wanted = rng.choice(facts.mig_profiles)
        place = rng.choice(wanted.placements)
        room = not any(place.overlaps(each.placement) for each in there)
        room = room and sum(each.profile_id == wanted.profile_id for each in there) < wanted.instances
        if room:
            hardware.create(facts.uuid, wanted, place)
        else:
            with pytest.raises(CardError):
                hardware.create(facts.uuid, wanted, place)
        made = hardware.instances(facts.uuid)
        assert len({each.gpu_instance for each in made}) == len(made)
        assert sum(by_id[each.profile_id].slices for each in made) <= whole.slices
        assert sum(by_id[each.profile_id].memory_mib for each in made) <= whole.memory_mib
