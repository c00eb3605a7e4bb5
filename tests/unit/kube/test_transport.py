from __future__ import annotations

import asyncio

import pytest

from tessera.kube import transport
from tessera.kube.errors import BadResponse
from tessera.kube.transport import LineSplitter, RateLimiter
from tests.support.event_loops import in_fake_time


async def turns(limiter: RateLimiter, count: int) -> list[float]:
    clock = asyncio.get_running_loop().time
    times = []
    for _ in range(count):
        await limiter.wait()
        times.append(round(clock(), 3))
    return times


@in_fake_time
async def test_a_burst_goes_at_once_and_the_rest_at_the_rate() -> None:
    assert await turns(RateLimiter(qps=10, burst=3), 6) == [0, 0, 0, 0.1, 0.2, 0.3]


@in_fake_time
async def test_an_idle_time_fills_the_bucket_but_no_further() -> None:
    limiter = RateLimiter(qps=10, burst=2)
    await turns(limiter, 5)
    await asyncio.sleep(100)
    start = asyncio.get_running_loop().time()
    assert [round(time - start, 3) for time in await turns(limiter, 4)] == [0, 0, 0.1, 0.2]


@in_fake_time
async def test_many_at_once_go_in_the_order_of_their_calls() -> None:
    limiter = RateLimiter(qps=10, burst=1)
    order: list[int] = []

    async def ask(number: int) -> None:
        await limiter.wait()
        order.append(number)

    await asyncio.gather(*(ask(number) for number in range(50)))
    assert order == list(range(50))
    assert round(asyncio.get_running_loop().time(), 3) == 4.9


@pytest.mark.parametrize(("qps", "burst"), [(0, 1), (-1.0, 1), (5, 0)])
def test_a_limit_that_lets_nothing_through_is_refused(qps: float, burst: int) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        RateLimiter(qps=qps, burst=burst)


@pytest.mark.parametrize(
    ("chunks", "found", "partial"),
    [
        ([b'{"a":1}\n'], [b'{"a":1}'], False),
        ([b"a\nb\nc"], [b"a", b"b"], True),
        ([b"a", b"b", b"\n"], [b"ab"], False),
        ([b"a\nb", b"c\nd\n"], [b"a", b"bc", b"d"], False),
        ([b"\n\r\n \n"], [], False),
        ([b"", b""], [], False),
        ([b"a\r\n"], [b"a\r"], False),
    ],
)
def test_lines_are_found_wherever_the_chunks_end(chunks: list[bytes], found: list[bytes], partial: bool) -> None:
    splitter = LineSplitter()
    assert [line for chunk in chunks for line in splitter.feed(chunk)] == found
    assert splitter.has_partial_line is partial


def test_a_line_without_end_is_refused_before_it_fills_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "MAX_LINE_BYTES", 1000)
    splitter = LineSplitter()
    splitter.feed(b"x" * 1000)
    with pytest.raises(BadResponse, match="longer than"):
        splitter.feed(b"x")
