from __future__ import annotations

import aiohttp
import pytest

from tessera.services.listener import Listener, health_routes
from tessera.services.value_types import Address
from tests.support.event_loops import in_real_time


@pytest.mark.parametrize(
    ("missing", "path", "expected"),
    [
        ("", "/healthz", (200, "")),
        ("", "/readyz", (200, "")),
        ("no cards yet", "/healthz", (200, "")),
        ("no cards yet", "/readyz", (503, "no cards yet\n")),
        ("", "/other", (404, "not found\n")),
    ],
)
@in_real_time
async def test_a_service_tells_whether_it_lives_and_whether_it_is_ready(
    missing: str, path: str, expected: tuple[int, str]
) -> None:
    listener = Listener(Address("127.0.0.1", 0), health_routes(lambda: missing), grace=1.0)
    await listener.start()
    try:
        async with aiohttp.ClientSession() as session, session.get(f"http://{listener.address}{path}") as response:
            assert (response.status, await response.text()) == expected
    finally:
        await listener.stop()


@pytest.mark.parametrize(
    ("address", "text"), [(Address("127.0.0.1", 80), "127.0.0.1:80"), (Address("::1", 80), "[::1]:80")]
)
def test_an_address_reads_as_in_a_url(address: Address, text: str) -> None:
    assert str(address) == text
