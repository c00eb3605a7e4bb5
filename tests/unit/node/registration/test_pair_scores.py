from __future__ import annotations

import pytest

from tessera.host.cards import Links, TopologyLevel
from tessera.node.registration.devices import PairScores, pair_scores
from tessera.wire.registration import decode_pair_scores, encode_pair_scores

NODE = TopologyLevel.NODE


def scores(there: Links, back: Links) -> PairScores:
    return pair_scores(["a", "b"], {("a", "b"): there, ("b", "a"): back})


@pytest.mark.parametrize(
    ("there", "back", "score", "score_back"),
    [
        (Links(TopologyLevel.INTERNAL), Links(TopologyLevel.INTERNAL), 60, 60),
        (Links(TopologyLevel.SINGLE), Links(TopologyLevel.SINGLE), 50, 50),
        (Links(TopologyLevel.MULTIPLE), Links(TopologyLevel.MULTIPLE), 40, 40),
        (Links(TopologyLevel.HOST_BRIDGE), Links(TopologyLevel.HOST_BRIDGE), 30, 30),
        (Links(NODE), Links(NODE), 20, 20),
        (Links(TopologyLevel.SYSTEM), Links(TopologyLevel.SYSTEM), 10, 10),
        (Links(None), Links(None), 0, 0),
        (Links(NODE, switched=18), Links(NODE, switched=18), 1820, 1820),
        (Links(NODE, switched=18), Links(NODE, switched=4), 420, 420),
        (Links(NODE, direct=4), Links(NODE, direct=4), 420, 420),
        (Links(NODE, direct=4), Links(NODE, direct=2), 420, 220),
        (Links(NODE, direct=2, switched=16), Links(NODE, direct=2, switched=16), 220, 220),
        (Links(NODE, direct=19), Links(NODE, direct=19), 20, 20),
        (Links(NODE, switched=18), Links(NODE), 20, 20),
        (Links(None, direct=1), Links(NODE), 100, 20),
    ],
)
def test_a_pair_scores_by_its_ways(there: Links, back: Links, score: int, score_back: int) -> None:
    """Golden case 29 among them."""
    assert scores(there, back) == PairScores({"a": {"b": score}, "b": {"a": score_back}})


@pytest.mark.parametrize(
    ("there", "back"),
    [
        (Links(NODE, direct=4), Links(NODE)),
        (Links(None), Links(NODE)),
        (Links(NODE, direct=18), Links(NODE, direct=19)),
    ],
)
def test_a_pair_that_disagrees_scores_nothing_and_is_named(there: Links, back: Links) -> None:
    assert scores(there, back) == PairScores({"a": {"b": 0}, "b": {"a": 0}}, (("a", "b"),))
    assert scores(back, there).asymmetric == (("a", "b"),)


def test_one_bad_pair_does_not_cost_the_others_their_score() -> None:
    links = {(one, other): Links(NODE) for one in "abc" for other in "abc" if one != other}
    links["a", "b"] = Links(NODE, direct=1)
    found = pair_scores(["c", "a", "b"], links)
    assert found.scores == {"c": {"a": 20, "b": 20}, "a": {"c": 20, "b": 0}, "b": {"c": 20, "a": 0}}
    assert found.asymmetric == (("a", "b"),)


def test_a_pair_that_nobody_asked_about_scores_nothing() -> None:
    assert pair_scores(["a", "b"], {}) == PairScores({"a": {"b": 0}, "b": {"a": 0}})


@pytest.mark.parametrize(("uuids", "rows"), [([], {}), (["a"], {"a": {}})])
def test_a_card_alone_has_an_empty_row(uuids: list[str], rows: dict[str, dict[str, int]]) -> None:
    assert pair_scores(uuids, {}) == PairScores(rows)


def test_scores_can_be_written_on_a_node() -> None:
    found = scores(Links(NODE, switched=18), Links(NODE, switched=18))
    assert decode_pair_scores(encode_pair_scores(found.scores)) == found.scores
