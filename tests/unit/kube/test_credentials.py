from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from tessera.kube.access import Access
from tessera.kube.client import KubeClient
from tessera.kube.credentials import TokenFile
from tessera.kube.errors import AccessError, ApiError
from tests.support.looping import in_fake_time
from tests.support.raw_server import RawServer, refusal, reply


class Thing(msgspec.Struct):
    kind: str = ""


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@in_fake_time
async def test_a_token_that_rotates_is_followed_within_a_minute(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("first\n")
    tokens = TokenFile(path)
    assert await tokens.headers() == bearer("first")
    path.write_text("second")
    await asyncio.sleep(59)
    assert await tokens.headers() == bearer("first")
    await asyncio.sleep(1)
    assert await tokens.headers() == bearer("second")
    assert tokens.issued_pair() is None


@in_fake_time
async def test_a_token_that_is_refused_is_read_again_at_once(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("first")
    async with (
        RawServer(refusal(401, "Unauthorized"), reply(200, {"kind": "Pod"})) as server,
        KubeClient(Access(server.url, credentials=TokenFile(path))) as client,
    ):
        with pytest.raises(ApiError) as caught:
            await client.get("/x", Thing)
        assert caught.value.status == 401
        path.write_text("second")
        await client.get("/x", Thing)
    assert [request.headers["authorization"] for request in server.requests] == ["Bearer first", "Bearer second"]


@pytest.mark.parametrize("broken", [None, "", "two words", "\x00", "é"])
@in_fake_time
async def test_a_file_that_is_broken_for_a_moment_does_not_end_a_good_token(tmp_path: Path, broken: str | None) -> None:
    path = tmp_path / "token"
    path.write_text("first")
    tokens = TokenFile(path)
    await tokens.headers()
    if broken is None:
        path.unlink()
    else:
        path.write_text(broken)
    await asyncio.sleep(100)
    assert await tokens.headers() == bearer("first")
    path.write_text("second")
    assert await tokens.headers() == bearer("second")


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "cannot read .*: No such file"), ("", "not a token"), ("a b", "not a token"), ("a\nb", "not a token")],
)
@in_fake_time
async def test_a_file_that_never_held_a_token_is_refused(tmp_path: Path, content: str | None, said: str) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_text(content)
    with pytest.raises(AccessError, match=said):
        await TokenFile(path).headers()
