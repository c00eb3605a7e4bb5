from __future__ import annotations

import asyncio

from tessera.node.watched_value import WatchedValue
from tests.support.event_loops import in_fake_time


@in_fake_time
async def test_another_value_is_returned_as_soon_as_there_is_one() -> None:
    watched = WatchedValue(1)
    assert await watched.other_than(2) == 1
    asyncio.get_running_loop().call_later(5.0, watched.set, 3)
    assert await watched.other_than(1) == 3
    assert asyncio.get_running_loop().time() == 5.0


@in_fake_time
async def test_the_same_value_is_returned_after_the_deadline() -> None:
    watched = WatchedValue(1)
    assert await watched.other_than(1, within=30.0) == 1
    assert asyncio.get_running_loop().time() == 30.0


@in_fake_time
async def test_a_value_that_came_and_went_is_no_other_value() -> None:
    watched = WatchedValue(1)
    for value in (2, 1):
        asyncio.get_running_loop().call_later(5.0, watched.set, value)
    assert await watched.other_than(1, within=30.0) == 1
    assert asyncio.get_running_loop().time() == 30.0
