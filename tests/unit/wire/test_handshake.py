from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from tessera.wire.registration import Reported, Requesting, decode_handshake, encode_reported, encode_requesting

SHANGHAI = timezone(timedelta(hours=8))
EVENING = datetime(2026, 11, 5, 20, 0, 1, tzinfo=SHANGHAI)


@pytest.mark.parametrize(
    ("text", "state"),
    [
        (None, None),
        ("Requesting_2026-11-05 20:00:01", Requesting(EVENING)),
        ("Requesting_2026.11.05 20:00:01", Requesting(EVENING)),
        ("Requesting_2026-11-05 20:00:01.250", Requesting(EVENING)),
        ("Deleted_2026-11-05 20:00:01", Reported()),
        ("Deleted_2026.11.05 20:00:01", Reported()),
        ("Reported 2026-11-05 20:00:01.7 +0800 CST m=+3", Reported()),
        ("Reported_2026.11.05 20:00:01", Reported()),
        ("Reported", Reported()),
        ("Requesting", Requesting(None)),
        ("Requesting_", Requesting(None)),
        ("Requesting_soon", Requesting(None)),
        ("Requesting_2026-11.05 20:00:01", Requesting(None)),
        ("Requesting_2026-02-30 20:00:01", Requesting(None)),
        ("Requesting_0001-01-01 00:00:00", Requesting(None)),
        ("Requesting_9999-12-31 23:59:59", Requesting(None)),
        ("Requesting_\uff12026-11-05 20:00:01", Requesting(None)),
        ("Requesting_2026-11-05 20:00:01_x", Requesting(None)),
        ("Reported while Requesting_2026-11-05 20:00:01", Requesting(EVENING)),
        ("Deleted", Reported()),
        ("", Reported()),
        ("hello", Reported()),
        ("requesting_2026-11-05 20:00:01", Reported()),
        ("\ud800", Reported()),
    ],
)
def test_every_value_is_a_state(text: str | None, state: Requesting | Reported | None) -> None:
    assert decode_handshake(text, zone=SHANGHAI) == state


def test_a_time_belongs_to_the_zone_of_its_writer() -> None:
    state = decode_handshake("Requesting_2026-11-05 20:00:01", zone=UTC)
    assert state == Requesting(EVENING + timedelta(hours=8))


def test_a_request_is_written_in_local_time() -> None:
    assert encode_requesting(EVENING.astimezone(UTC), zone=SHANGHAI) == "Requesting_2026-11-05 20:00:01"


def test_a_report_is_written_in_local_time() -> None:
    assert encode_reported(EVENING.astimezone(UTC), zone=SHANGHAI) == "Reported 2026-11-05 20:00:01"
