from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from tessera.wire.errors import WireError
from tessera.wire.registration import NodeLock, decode_node_lock, encode_node_lock

NOON = datetime(2026, 11, 5, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "lock"),
    [
        ("2026-11-05T12:00:00Z,team,train-0", NodeLock(NOON, "team", "train-0")),
        ("2026-11-05T20:00:00+08:00,team,train-0", NodeLock(NOON, "team", "train-0")),
        ("2026-11-05T06:30:00-05:30,team,train-0", NodeLock(NOON, "team", "train-0")),
        ("2026-11-05T12:00:00Z", NodeLock(NOON)),
        ("2026-11-05T12:00:00.5Z", NodeLock(NOON + timedelta(milliseconds=500))),
        ("2026-11-05T12:00:00.123456789Z", NodeLock(NOON + timedelta(microseconds=123456))),
        ("2026-11-05T12:00:00Z,,", NodeLock(NOON)),
        ("2026-11-05T12:00:00Z,team,", NodeLock(NOON)),
        ("2026-11-05T12:00:00Z,,train-0", NodeLock(NOON)),
    ],
)
def test_a_lock_says_since_when_and_for_whom(text: str, lock: NodeLock) -> None:
    assert decode_node_lock(text) == lock


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "2026-11-05T12:00:00Z,team",
            "malformed lock annotation: expected 3 parts, got 2 from 2026-11-05T12:00:00Z,team",
        ),
        ("a,b,c,d", "malformed lock annotation: expected 3 parts, got 4 from a,b,c,d"),
        ("", 'malformed lock annotation: "" is not an RFC 3339 time'),
        ("yesterday", 'malformed lock annotation: "yesterday" is not an RFC 3339 time'),
        ("2026-11-05 12:00:00Z", "malformed lock annotation"),
        ("2026-11-05T12:00:00", "malformed lock annotation"),
        ("2026-11-05T12:00Z", "malformed lock annotation"),
        ("20261105T120000Z", "malformed lock annotation"),
        ("2026-11-05t12:00:00z", "malformed lock annotation"),
        ("2026-11-05T12:00:00.Z", "malformed lock annotation"),
        ("2026-11-05T12:00:00Z\n", "malformed lock annotation"),
        ("2026-13-05T12:00:00Z", 'malformed lock annotation: "2026-13-05T12:00:00Z" is not a time'),
        ("2026-11-05T12:00:60Z", "malformed lock annotation"),
        ("2026-11-05T24:00:00Z", "malformed lock annotation"),
        ("0001-01-01T00:00:00+08:00", "malformed lock annotation"),
        ("9999-12-31T23:59:59-08:00", "malformed lock annotation"),
        ("2026-11-05T12:00:00+24:00", "malformed lock annotation"),
        ("\uff12026-11-05T12:00:00Z", "malformed lock annotation"),
        ("," * 100_000, "malformed lock annotation: expected 3 parts, got 100001 from ,,,"),
    ],
)
def test_a_malformed_lock_is_refused(text: str, message: str) -> None:
    with pytest.raises(WireError) as caught:
        decode_node_lock(text)
    assert str(caught.value).startswith(message)
    assert len(str(caught.value)) < 400


def test_a_lock_is_written_in_utc_and_whole_seconds() -> None:
    local = (NOON + timedelta(milliseconds=900)).astimezone(timezone(timedelta(hours=8)))
    assert encode_node_lock(NodeLock(local, "team", "train-0")) == "2026-11-05T12:00:00Z,team,train-0"


def test_a_lock_without_an_owner_is_written_in_the_legacy_form() -> None:
    lock = NodeLock(NOON)
    assert lock.owner is None
    assert encode_node_lock(lock) == "2026-11-05T12:00:00Z"


def test_an_owner_is_a_namespace_and_a_name() -> None:
    assert decode_node_lock("2026-11-05T12:00:00Z,team,train-0").owner == ("team", "train-0")
