"""Which slices a claim becomes, and which claims are refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tessera.node.dra.claim_reader import assignments_of, read_claim
from tessera.node.dra.offers import Offer, offers
from tessera.node.fleet import Fleet
from tessera.node.handover.assignments import ObjectKey
from tessera.node.modes.base import AllocationRefused
from tessera.node.settings import AgentSettings
from tessera.wire.node_config import NodeSettings
from tessera.wire.pod_devices import DeviceEntry
from tessera.wire.resource_api import DRIVER, ResourceClaim
from tests.support.sharing_modes import H200_MIB, A, B, card, fleet

OFFERED = {each.name: each for each in offers(fleet(A, B), AgentSettings(node_name="n"))}
WHOLE = {
    each.name: each for each in offers(Fleet((card(A),)), AgentSettings(node_name="n", node=NodeSettings(mode="none")))
}


def result(uuid: str = A, **more: Any) -> dict[str, Any]:
    consumed = {"memory": "3000Mi", "cores": "30", "shares": "1"}
    own = {"request": "gpu", "driver": DRIVER, "pool": "n", "device": uuid.lower(), "consumedCapacity": consumed}
    return own | more


def claim(*results: dict[str, Any]) -> ResourceClaim:
    metadata = {"namespace": "team", "name": "c", "uid": "u"}
    allocation = {"devices": {"results": list(results)}} if results else None
    return msgspec.convert({"metadata": metadata, "status": {"allocation": allocation}}, ResourceClaim)


def entry(uuid: str = A, memory: int = 3000, cores: int = 30) -> DeviceEntry:
    return DeviceEntry(uuid, "NVIDIA", memory, cores)


@pytest.mark.parametrize(
    ("results", "offered", "slices"),
    [
        ([result()], OFFERED, {"gpu": (entry(),)}),
        ([result(consumedCapacity={"memory": "4Gi", "cores": "0"})], OFFERED, {"gpu": (entry(A, 4096, 0),)}),
        (
            [result(consumedCapacity={f"{DRIVER}/memory": "1Gi", f"{DRIVER}/cores": "5"})],
            OFFERED,
            {"gpu": (entry(A, 1024, 5),)},
        ),
        # A server without consumable capacity gives the device to one claim alone.
        ([result(consumedCapacity=None)], OFFERED, {"gpu": (entry(A, H200_MIB, 100),)}),
        ([result(consumedCapacity=None)], WHOLE, {"gpu": (entry(A, H200_MIB, 100),)}),
        ([result(), result(B)], OFFERED, {"gpu": (entry(), entry(B))}),
        (
            [result(request="b/x"), result(B, request="a"), result(B, request="b/x")],
            OFFERED,
            {"a": (entry(B),), "b": (entry(), entry(B))},
        ),
        ([result(driver="other.example.com"), result(B)], OFFERED, {"gpu": (entry(B),)}),
        ([result(pool="another"), result(B)], OFFERED, {"gpu": (entry(B),)}),
    ],
)
def test_each_request_becomes_its_slices(
    results: list[dict[str, Any]], offered: dict[str, Offer], slices: dict[str, tuple[DeviceEntry, ...]]
) -> None:
    parts = read_claim(claim(*results), offered, node="n")
    found = assignments_of(parts)
    assert {each.container: each.slices for each in found} == slices
    assert [part.name for part in parts] == [*slices]
    assert [each.position for each in found] == list(range(len(parts)))
    assert {each.pod for each in found} == {ObjectKey("team", "c", "u")}
    assert all(each.of_resource_claim for each in found)


def test_an_administrators_access_holds_nothing() -> None:
    sick = Fleet((card(A, problem="XID 79"), card(B, 1)))
    offered = {each.name: each for each in offers(sick, AgentSettings(node_name="n"))}
    (part,) = read_claim(claim(result(adminAccess=True), result(B, adminAccess=True)), offered, node="n")
    assert (part.assignment, part.cards) == (None, (A, B))


@pytest.mark.parametrize(
    ("results", "offered", "reason"),
    [
        ([], OFFERED, "no device of node n"),
        ([result(pool="another")], OFFERED, "no device of node n"),
        ([result(device="gpu-0")], OFFERED, "not among this node's devices"),
        ([result(adminAccess=True), result(B)], OFFERED, "with and without adminAccess"),
        ([result(consumedCapacity={"memory": "0", "cores": "0"})], OFFERED, "no memory is consumed"),
        ([result(consumedCapacity={"cores": "0"})], OFFERED, "nothing of gpu.tessera.io/memory"),
        ([result(consumedCapacity={"memory": "1Gi"})], OFFERED, "nothing of gpu.tessera.io/cores"),
        ([result(consumedCapacity={"memory": "x", "cores": "1"})], OFFERED, '"x" of gpu.tessera.io/memory'),
        ([result(consumedCapacity={"memory": "1Gi", "cores": "-1"})], OFFERED, '"-1" of gpu.tessera.io/cores'),
        (
            [result(consumedCapacity={"memory": "1Gi", "gpu.tessera.io/memory": "2Gi", "cores": "1"})],
            OFFERED,
            '"1Gi" and "2Gi" of gpu.tessera.io/memory',
        ),
    ],
)
def test_what_cannot_be_served_exactly_is_refused(
    results: list[dict[str, Any]], offered: dict[str, Offer], reason: str
) -> None:
    with pytest.raises(AllocationRefused, match=reason):
        read_claim(claim(*results), offered, node="n")


def test_a_card_that_takes_no_work_is_refused() -> None:
    found = offers(Fleet((card(A, problem="lost"),)), AgentSettings(node_name="n"))
    with pytest.raises(AllocationRefused, match="takes no work: lost"):
        read_claim(claim(result()), {each.name: each for each in found}, node="n")
