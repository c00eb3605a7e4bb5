"""The record of prepared claims: what is live, what survives, and what a disk that fails changes."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tessera.core.model.devices import MigPlacement, MigSlot
from tessera.node.dra import prepared_claims
from tessera.node.dra.prepared_claims import PreparedClaim, PreparedClaims
from tessera.node.handover.assignments import Holding, ObjectKey
from tessera.wire.pod_devices import MigAllocation
from tessera.wire.resource_api import DRIVER, AllocatedDevice
from tests.support.sharing_modes import A, claim


def record(uid: str) -> PreparedClaim:
    result = {
        "request": "gpu",
        "driver": DRIVER,
        "pool": "n",
        "device": A.lower(),
        "shareID": "s",
        "consumedCapacity": {"memory": "1Gi"},
    }
    reserved = MigAllocation(0, 0, A, MigSlot("1g.18gb", MigPlacement(0, 1)))
    return PreparedClaim(
        key=ObjectKey("team", f"c-{uid}", uid),
        boot="b",
        devices=(msgspec.convert(result, AllocatedDevice),),
        assignments=(claim(uid=uid, mig=(reserved,), of_resource_claim=True),),
        cdi_devices={"gpu": ("x/y=z",)},
        spec={"cdiVersion": "0.5.0", "kind": "x/y", "devices": []},
    )


@pytest.fixture
async def claims(tmp_path: Path) -> AsyncIterator[PreparedClaims]:
    found = PreparedClaims(tmp_path / "state", tmp_path / "cdi")
    await found.load()
    yield found
    await found.close()


async def test_a_later_process_knows_every_claim(tmp_path: Path, claims: PreparedClaims) -> None:
    for uid in ("a", "b"):
        await claims.put(record(uid))
    await claims.drop("a")
    later = PreparedClaims(tmp_path / "state", tmp_path / "cdi")
    await later.load()
    assert later.all() == (record("b"),)
    assert await later.spec_uids() == ["b"]
    await later.close()


async def test_the_file_has_the_names_that_earlier_agents_wrote(tmp_path: Path, claims: PreparedClaims) -> None:
    await claims.put(record("a"))
    [found] = json.loads((tmp_path / "state" / prepared_claims.FILE).read_text())["claims"]
    assert found.keys() == {"key", "boot", "devices", "claims", "cdi_devices", "spec"}


async def test_claims_recorded_at_once_are_all_in_the_file(tmp_path: Path, claims: PreparedClaims) -> None:
    await asyncio.gather(*(claims.put(record(f"u{number}")) for number in range(20)))
    await asyncio.gather(*(claims.drop(f"u{number}") for number in range(0, 20, 2)))
    later = PreparedClaims(tmp_path / "state", tmp_path / "cdi")
    await later.load()
    assert {each.key.uid for each in later.all()} == {f"u{number}" for number in range(1, 20, 2)}
    await later.close()


async def test_a_claim_is_live_from_its_beginning_to_its_end(claims: PreparedClaims) -> None:
    assert claims.live_assignments() is None
    claims.open()
    assert claims.live_assignments() == []
    claims.begin(Holding(record("a").key, record("a").assignments))
    assert claims.live_assignments() == list(record("a").assignments)
    await claims.put(record("a"))
    assert claims.live_assignments() == list(record("a").assignments)
    version = claims.version.value
    await claims.drop("a")
    assert claims.live_assignments() == []
    assert claims.version.value > version
    claims.begin(Holding(record("b").key, record("b").assignments))
    claims.abandon("b")
    assert claims.live_assignments() == []


async def test_a_claim_counts_until_its_end_is_written(claims: PreparedClaims, monkeypatch: pytest.MonkeyPatch) -> None:
    """If that fails, the claim is still there, and its room must not have been given away meanwhile."""
    claims.open()
    await claims.put(record("a"))
    began, go_on = threading.Event(), threading.Event()

    def full(*_args: Any, **_more: Any) -> None:
        began.set()
        go_on.wait()
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(prepared_claims, "replace_file", full)
        dropping = asyncio.create_task(claims.drop("a"))
        await asyncio.to_thread(began.wait)
        assert claims.live_assignments() == list(record("a").assignments)
        go_on.set()
        with pytest.raises(OSError, match="No space"):
            await dropping
    assert claims.live_assignments() == list(record("a").assignments)


async def test_what_cannot_be_written_did_not_happen(claims: PreparedClaims, monkeypatch: pytest.MonkeyPatch) -> None:
    await claims.put(record("a"))

    def full(*_args: Any, **_more: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(prepared_claims, "replace_file", full)
        with pytest.raises(OSError, match="No space"):
            await claims.put(record("b"))
        with pytest.raises(OSError, match="No space"):
            await claims.drop("a")
    assert [each.key.uid for each in claims.all()] == ["a"]
    await claims.drop("a")
    assert claims.all() == ()


@pytest.mark.parametrize("uid", ["", "../x", "a/b", "a_b", "x" * 65, "é"])
async def test_no_uid_leads_out_of_the_folder(claims: PreparedClaims, uid: str) -> None:
    with pytest.raises(ValueError, match="is not the uid"):
        await claims.drop(uid)


async def test_foreign_files_are_not_taken_for_specs(tmp_path: Path, claims: PreparedClaims) -> None:
    (tmp_path / "cdi").mkdir()
    for name in ("nvidia.json", f"{DRIVER}-claim-a b.json", f"{DRIVER}-claim-good.json"):
        (tmp_path / "cdi" / name).write_text("{}")
    assert await claims.spec_uids() == ["good"]


async def test_without_a_folder_nothing_is_recorded(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("in the way")
    found = PreparedClaims(tmp_path / "state", tmp_path / "cdi")
    await found.load()
    assert found.all() == ()
    await found.close()
