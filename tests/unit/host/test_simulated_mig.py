from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tessera.core.model.devices import MigPlacement
from tessera.host.cards import CardError, CardFacts, ComputeMode, GpuInstanceProfile, Hardware, MigInstance
from tessera.host.simulated.description import parse_description
from tessera.host.simulated.hardware import simulated_hardware
from tessera.wire.config_file import ConfigError
from tests.support.faulty_cards import FaultyCards


def simulate(text: str = "cards: [{model: H200, mig: true}]", *, state: Path | None = None) -> FaultyCards:
    description = parse_description(text, file="cards.yaml")
    return FaultyCards(lambda: description, node_name="node-a", state=state)


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
