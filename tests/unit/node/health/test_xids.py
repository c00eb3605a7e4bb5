from __future__ import annotations

import pytest

from tessera.host.cards import CardEvent
from tessera.node.health.xids import HARMLESS, HealthRules, read_rules

USUAL = HealthRules()


@pytest.mark.parametrize(
    ("disable", "enable", "fatal", "ignored"),
    [
        pytest.param("", "", {48, 62, 74, 79, 119}, HARMLESS, id="as-shipped"),
        pytest.param("79", "31", {31, 48}, {79, 13}, id="one-taken-out-and-one-put-in"),
        pytest.param("79", "79", {79}, {31}, id="enabling-wins"),
        pytest.param("all", "", set(), {48, 79, 31}, id="nothing-counts"),
        pytest.param("xids", "", set(), {48, 79, 31}, id="nothing-counts-by-another-word"),
        # Upstream forgets the second list here and checks nothing at all.
        pytest.param("all", "48", {48}, {79, 31, 13}, id="one-alone-counts"),
        pytest.param("all", "all", {13, 31, 79}, set(), id="everything-against-nothing"),
        pytest.param("", "xids", {13, 31, 79}, set(), id="everything-counts"),
        pytest.param("79", "all", {13, 79}, set(), id="everything-counts-whatever-is-taken-out"),
        # Upstream reads no further than `all`.
        pytest.param("all,79", "48", {48}, {79, 31}, id="all-beside-a-number"),
        pytest.param(" ALL ", "48, 31", {48, 31}, {79}, id="blanks-and-capitals"),
        pytest.param("79,,x,-1,\u0667,99999999999999999999", "", {48}, {79, 31}, id="words-that-mean-nothing"),
    ],
)
def test_the_two_lists_decide_which_reports_are_fatal(
    disable: str, enable: str, fatal: set[int], ignored: set[int]
) -> None:
    rules = read_rules(disable=disable, enable=enable)
    assert {xid for xid in fatal | ignored if rules.is_fatal(xid)} == fatal


def test_checks_are_off_only_where_nothing_could_be_fatal() -> None:
    assert not read_rules(disable="all").health_checks
    assert read_rules(disable="all", enable="48").health_checks
    assert read_rules(disable="1,2,3").health_checks


def test_words_that_mean_nothing_are_reported() -> None:
    assert read_rules(disable="79,x,0", enable="-1,all").unread == ("x", "-1")


@pytest.mark.parametrize(
    ("rules", "event", "problem"),
    [
        (USUAL, CardEvent("GPU-a", xid=79), "XID 79: the card has fallen off the bus"),
        (USUAL, CardEvent("GPU-a", xid=62), "XID 62"),
        (USUAL, CardEvent("GPU-a", xid=62, gpu_instance=3), "XID 62 in GPU instance 3"),
        (USUAL, CardEvent("GPU-a", xid=31), ""),
        (USUAL, CardEvent("GPU-a", uncorrectable=True), "uncorrectable memory error"),
        (USUAL, CardEvent("GPU-a"), ""),
        (read_rules(disable="48"), CardEvent("GPU-a", uncorrectable=True), ""),
        (read_rules(disable="all"), CardEvent("GPU-a", xid=79), ""),
        (read_rules(disable="all", enable="79"), CardEvent("GPU-a", uncorrectable=True), ""),
    ],
)
def test_an_event_says_why_a_card_takes_no_new_work(rules: HealthRules, event: CardEvent, problem: str) -> None:
    assert rules.problem_in(event) == problem
