from __future__ import annotations

from pathlib import Path

import pytest

from tessera.host.simulated.description import SimulationDescription, load_description, parse_description
from tessera.host.simulated.models import MODELS
from tessera.wire.config_file import ConfigError

EVERYTHING = """
cards:
  - {model: H200, count: 2, numa: [0, 1], mig: true, resetless: false}
  - {model: L4, uuid: GPU-00000000-0000-0000-0000-000000000001, name: My Card, memory: 0, numa: 1, busy: true,
     problem: gone, deaf: no events}
links:
  - {cards: [0, 1], nvlinks: 18, through: cards, pcie: single, one_way: true}
events:
  - {card: 0, at: 1.5, xid: 79, lost: fell off the bus}
  - {ecc: double-bit}
problems:
  - {card: 1, problem: flaky, after: 3, until: 4}
problem: no driver
state: state.json
"""


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_description(text, file="cards.yaml")
    return str(caught.value).splitlines()


def test_a_file_may_say_everything() -> None:
    found = parse_description(EVERYTHING, file="cards.yaml")
    assert [group.model for group in found.cards] == ["H200", "L4"]
    assert (found.problem, found.state) == ("no driver", "state.json")


def test_json_says_the_same() -> None:
    assert parse_description('{"cards": [{"model": "L4"}]}', file="cards.json") == parse_description(
        "cards: [{model: L4}]", file="cards.yml"
    )


@pytest.mark.parametrize("model", MODELS)
def test_every_model_can_be_asked_for(model: str) -> None:
    assert isinstance(parse_description(f"cards: [{{model: {model}}}]", file="f"), SimulationDescription)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "cards.yaml: expected a table of keys, found nothing"),
        ("cards: []\nlinks: [{cards: [0, 1]}]", "cards.yaml:1: there is no card 0; the node has none"),
        ("cards: [{}]", 'cards.yaml:1: cards[0]: the key "model" is missing'),
        ("cards: [{model: H20O}]", 'cards.yaml:1: cards[0].model: unknown model "H20O"; did you mean "H200"?'),
        ("cards: [{model: L4, cuont: 2}]", 'cards.yaml:1: cards[0]: unknown key "cuont"; did you mean "count"?'),
        ("cards:\n- model: L4\n  mig: true", "cards.yaml:2: cards[0]: L4 cannot do MIG"),
        (
            "cards: [{model: L4, count: 65}]",
            "cards.yaml:1: cards[0].count: expected a whole number <= 64, found 65",
        ),
        ("cards: [{model: L4, count: 40}, {model: L4, count: 40}]", "cards.yaml:1: 80 cards; at most 64 are simulated"),
        ("cards: [{model: L4, count: 2, numa: [0]}]", 'cards.yaml:1: cards[0]: "numa" has 1 numbers for 2 cards'),
        (
            "cards: [{model: L4, count: 2, uuid: GPU-00000000-0000-0000-0000-000000000001}]",
            'cards.yaml:1: cards[0]: "uuid" names one card; write one group for each card that has its own',
        ),
        (
            2 * "- {model: L4, uuid: GPU-00000000-0000-0000-0000-000000000001}\n",
            "cards.yaml:1: two cards have the same uuid",
        ),
        ("cards: [{model: L4}]\nlinks: [{cards: [0, 1]}]", "cards.yaml:1: there is no card 1; the only card is 0"),
        ("cards: [{model: L4}]\nevents: [{card: 3, xid: 1}]", "cards.yaml:1: there is no card 3; the only card is 0"),
        (
            "cards: [{model: L4, count: 2}]\nproblems: [{card: 3, problem: x}]",
            "cards.yaml:1: there is no card 3; the cards are 0 to 1",
        ),
        (
            "cards: [{model: L4}]\nlinks: [{cards: [0, 0]}]",
            'cards.yaml:2: links[0]: "cards" must name at least two different cards',
        ),
        ("cards: [{model: L4}]\nevents: [{card: 0}]", 'cards.yaml:2: events[0]: an event has either "xid" or "ecc"'),
        (
            "cards: [{model: L4}]\nevents: [{xid: 3, ecc: single-bit}]",
            'cards.yaml:2: events[0]: an event has either "xid" or "ecc"',
        ),
        ("cards: [{model: L4}]\nevents: [{xid: 3, lost: x}]", 'cards.yaml:2: events[0]: "lost" needs a "card"'),
        (
            "cards: [{model: L4}]\nproblems: [{card: 0, problem: x, after: 3, until: 3}]",
            'cards.yaml:2: problems[0]: "until" must be later than "after"',
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_place(text: str, problem: str) -> None:
    assert problems(text if not text.startswith("-") else f"cards:\n{text}") == [problem]


def test_everything_that_is_wrong_is_said_at_once() -> None:
    assert len(problems("cards:\n- {model: X}\n- {model: L4, memory: -1}\nevents: [{xid: a}]\nlink: []")) == 4


def test_a_file_is_read_from_disk(tmp_path: Path) -> None:
    path = tmp_path / "cards.yaml"
    path.write_text("cards: [{model: T4}]")
    assert load_description(path).cards[0].model == "T4"


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cards\.yaml: cannot be read: No such file or directory"):
        load_description(tmp_path / "cards.yaml")
    (tmp_path / "bytes").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="bytes: cannot be read: it is not UTF-8 text"):
        load_description(tmp_path / "bytes")


@pytest.mark.parametrize(
    ("model", "names"),
    [
        ("A100-SXM4-40GB", "1g.5gb 1g.5gb+me 1g.10gb 2g.10gb 3g.20gb 4g.20gb 7g.40gb"),
        ("A100-SXM4-80GB", "1g.10gb 1g.10gb+me 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb"),
        ("H100", "1g.10gb 1g.10gb+me 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb"),
        ("H200", "1g.18gb 1g.18gb+me 1g.35gb 2g.35gb 3g.71gb 4g.71gb 7g.141gb"),
        ("A30", "1g.6gb 1g.6gb+me 2g.12gb 2g.12gb+me 4g.24gb"),
        ("L4", ""),
    ],
)
def test_a_model_offers_what_the_real_one_does(model: str, names: str) -> None:
    assert " ".join(offer.name for offer in MODELS[model].profiles) == names
