from __future__ import annotations

import pytest

from tessera.wire.golang import format_bool, parse_bool


@pytest.mark.parametrize("text", ["1", "t", "T", "TRUE", "true", "True"])
def test_go_knows_six_ways_to_say_true(text: str) -> None:
    assert parse_bool(text) is True


@pytest.mark.parametrize("text", ["0", "f", "F", "FALSE", "false", "False"])
def test_go_knows_six_ways_to_say_false(text: str) -> None:
    assert parse_bool(text) is False


@pytest.mark.parametrize("text", ["", "yes", "tRUE", " true", "true ", "2", "on", "\ud800"])
def test_anything_else_says_nothing(text: str) -> None:
    assert parse_bool(text) is None


@pytest.mark.parametrize("value", [True, False])
def test_a_written_bool_is_read_back(value: bool) -> None:
    assert parse_bool(format_bool(value)) is value
