"""Which claims fit on their cards beside what is there."""

from __future__ import annotations

from typing import Any

import pytest

from tessera.core.devices import MigPlacement, MigSlot
from tessera.core.grants import Span
from tessera.core.requests import Role
from tessera.node.dra.arbiter import find_excess
from tessera.node.dra.offers import offers
from tessera.node.fleet import Fleet
from tessera.node.handover.bound_pod import BoundPod
from tessera.node.handover.claims import Claim, PodKey
from tessera.node.settings import AgentSettings
from tessera.wire.mig import MigAllocation
from tessera.wire.node_config import NodeSettings
from tests.support.mig_cards import H200
from tests.support.sharing_modes import H200_MIB, A, B, card, fleet, slice_of
from tests.support.sharing_modes import claim as part

SETTINGS = AgentSettings(node_name="n", node=NodeSettings(split_count=3))
SHARED = {each.uuid: each for each in offers(fleet(A, B), SETTINGS)}
WHOLE = {
    each.uuid: each for each in offers(Fleet((card(A),)), AgentSettings(node_name="n", node=NodeSettings(mode="none")))
}
APP, INIT, ENDED_INIT = Span(Role.APP), Span(Role.INIT), Span(Role.INIT, finished=True)
HALF = H200_MIB // 2


def pod(*memory: int, spans: tuple[Span, ...] = (), status: str = "Running", **more: Any) -> BoundPod:
    """A pod whose containers have this much memory of card A each."""
    key = PodKey("team", "classic", "p")
    claims = tuple(Claim(key, at, f"c{at}", (slice_of(A, each, 30),)) for at, each in enumerate(memory))
    own = {"claims": claims, "spans": spans or (APP,) * len(memory), "order": (0, 0, "", "")}
    return BoundPod(key=key, status=status, phase="", assigned=True, **(own | more))


@pytest.mark.parametrize(
    ("claims", "pods", "others", "excess"),
    [
        ([part(slice_of(A, HALF))], [pod(HALF)], [], ""),
        ([part(slice_of(A, HALF + 2))], [pod(HALF)], [], f"{H200_MIB} MiB, pods without claims hold {HALF} of it"),
        ([part(slice_of(B, H200_MIB))], [pod(HALF)], [part(slice_of(A, HALF))], ""),
        ([part(slice_of(A, HALF + 2))], [], [part(slice_of(A, HALF))], f"other claims {HALF}, and {HALF + 2} more"),
        ([part(slice_of(A, HALF)), part(slice_of(A, HALF + 2))], [], [], "MiB"),
        ([part(slice_of(A, 1, 41))], [pod(1), pod(1)], [], "100 cores"),
        ([part(slice_of(A, 1, 40))], [pod(1), pod(1)], [], ""),
        ([part(slice_of(A, 1, 0))], [pod(1)], [part(slice_of(A, 1, 0)), part(slice_of(A, 1, 0))], "3 shares"),
        ([part(slice_of(A, 1, 100))], [], [part(slice_of(A, 1, 0))], ""),
        ([part(slice_of(A, 1, 100))], [], [part(slice_of(A, 1, 1))], "100 cores"),
        # A pod that has ended, and an init container that has: they hold nothing.
        ([part(slice_of(A, HALF + 2))], [pod(HALF, status="Succeeded")], [], ""),
        ([part(slice_of(A, HALF))], [pod(H200_MIB, HALF, spans=(ENDED_INIT, APP))], [], ""),
        ([part(slice_of(A, HALF))], [pod(H200_MIB, HALF, spans=(INIT, APP))], [], "MiB"),
        # Unknown is not free.
        ([part(slice_of(B, 1))], [pod(claims_problem="no number")], [], "unknown what pod team/classic holds"),
    ],
)
def test_a_claim_fits_where_pods_and_other_claims_leave_room(
    claims: list[Claim], pods: list[BoundPod], others: list[Claim], excess: str
) -> None:
    found = find_excess(claims, SHARED, pods=pods, others=others)
    assert excess in found
    assert bool(found) == bool(excess)


def test_a_whole_card_has_one_holder() -> None:
    asked = [part(slice_of(A, H200_MIB, 100))]
    assert not find_excess(asked, WHOLE, pods=[], others=[])
    assert "has 1 shares" in find_excess(asked, WHOLE, pods=[pod(H200_MIB)], others=[])
    assert "has 1 shares" in find_excess(asked, WHOLE, pods=[], others=[part(slice_of(A, H200_MIB, 100))])


def instance(start: int, size: int, **more: Any) -> Claim:
    slot = MigSlot("1g", MigPlacement(start, size))
    return part(slice_of(A), mig=(MigAllocation(0, 0, A, slot),), **more)


def test_an_instance_needs_a_place_that_is_reserved_for_nothing_else() -> None:
    offered = {
        each.uuid: each
        for each in offers(
            Fleet((card(A, mig_profiles=H200, mig_capable=True),)),
            AgentSettings(node_name="n", node=NodeSettings(mode="mig")),
        )
    }
    asked = [instance(2, 2, of_resource_claim=True)]
    beside, on = pod(claims=(instance(0, 2),)), pod(claims=(instance(3, 1),))
    assert not find_excess(asked, offered, pods=[beside], others=[instance(4, 4, of_resource_claim=True)])
    assert "pod team/pod-uid-1 holds the place" in find_excess(asked, offered, pods=[on], others=[])
    taken = find_excess(asked, offered, pods=[], others=[instance(0, 8, of_resource_claim=True)])
    assert "ResourceClaim team/pod-uid-1 holds the place" in taken
    assert "overlap" in find_excess([*asked, instance(3, 1)], offered, pods=[], others=[])
    assert "without a MIG instance" in find_excess(asked, offered, pods=[pod(1000)], others=[])
