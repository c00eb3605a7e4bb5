"""Events for viewers of any speed."""

from __future__ import annotations

from contextlib import aclosing

from tessera.inspect.dashboard.live_state import HEARTBEAT, PIECE_BYTES, EventLog, encode_event


async def test_a_viewer_that_was_away_gets_what_it_missed_in_small_pieces() -> None:
    log, data = EventLog(7), b"x" * (PIECE_BYTES // 4)
    for _ in range(20):
        log.append("nodes", data)
    pieces: list[bytes] = []
    async with aclosing(log.stream(8)) as stream:
        assert await anext(stream) == HEARTBEAT
        while sum(map(len, pieces)) < 19 * len(data):
            pieces.append(await anext(stream))
    assert b"".join(pieces) == b"".join(encode_event("nodes", data, version) for version in range(9, 28))
    assert max(map(len, pieces)) < 2 * PIECE_BYTES
