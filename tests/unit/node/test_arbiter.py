"""Which slices fit on their cards beside what is handed out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tessera.core.model.devices import Device, MigPlacement, MigSlot
from tessera.core.model.grants import Span
from tessera.core.model.requests import Role
from tessera.node.arbiter import find_excess
from tessera.node.fleet import Fleet
from tessera.node.handover.assignments import Assignment, Holding, ObjectKey
from tessera.node.registration.devices import registrable
from tessera.node.settings import AgentSettings
from tessera.wire.node_config import NodeSettings
from tessera.wire.pod_devices import MigAllocation
from tests.support.cards import H200
from tests.support.sharing_modes import H200_MIB, A, B, card, fleet, slice_of
from tests.support.sharing_modes import claim as part

SETTINGS = AgentSettings(node_name="n", node=NodeSettings(split_count=3))


def devices(cards: Fleet, settings: AgentSettings) -> dict[str, Device]:
    return {each.uuid: each for each in registrable(cards, settings).devices}


SHARED = devices(fleet(A, B), SETTINGS)
WHOLE = devices(Fleet((card(A),)), AgentSettings(node_name="n", node=NodeSettings(mode="none")))
APP, INIT, ENDED_INIT = Span(Role.APP), Span(Role.INIT), Span(Role.INIT, finished=True)
HALF = H200_MIB // 2


def pod(*memory: int, uid: str = "p", at: int = 0, **more: Any) -> Holding:
    """A pod whose containers have this much memory of card A each, from position `at` on."""
    key = ObjectKey("team", "classic", uid)
    claims = tuple(Assignment(key, n, f"c{n}", (slice_of(A, each, 30),)) for n, each in enumerate(memory, at))
    return Holding(key, **{"assignments": claims, "spans": (APP,) * (at + len(memory)), **more})


def claim(*parts: Assignment, uid: str = "c") -> Holding:
    key = ObjectKey("team", "claim", uid)
    own = (replace(each, pod=key, position=at, of_resource_claim=True) for at, each in enumerate(parts))
    return Holding(key, tuple(own))


@pytest.mark.parametrize(
    ("asked", "pods", "others", "excess"),
    [
        (claim(part(slice_of(A, HALF))), [pod(HALF)], [], ""),
        (claim(part(slice_of(A, HALF + 2))), [pod(HALF)], [], f"{H200_MIB} MiB, pods without claims hold {HALF} of it"),
        (claim(part(slice_of(B, H200_MIB))), [pod(HALF)], [claim(part(slice_of(A, HALF)), uid="d")], ""),
        (
            claim(part(slice_of(A, HALF + 2))),
            [],
            [claim(part(slice_of(A, HALF)), uid="d")],
            f"other claims {HALF}, and {HALF + 2} more",
        ),
        (claim(part(slice_of(A, HALF)), part(slice_of(A, HALF + 2))), [], [], "MiB"),
        (claim(part(slice_of(A, 1, 41))), [pod(1), pod(1, uid="q")], [], "100 cores"),
        (claim(part(slice_of(A, 1, 40))), [pod(1), pod(1, uid="q")], [], ""),
        (
            claim(part(slice_of(A, 1, 0))),
            [pod(1)],
            [claim(part(slice_of(A, 1, 0)), part(slice_of(A, 1, 0)), uid="d")],
            "3 shares",
        ),
        (claim(part(slice_of(A, 1, 100))), [], [claim(part(slice_of(A, 1, 0)), uid="d")], ""),
        (claim(part(slice_of(A, 1, 100))), [], [claim(part(slice_of(A, 1, 1)), uid="d")], "100 cores"),
        # An init container that has ended holds nothing.
        (claim(part(slice_of(A, HALF))), [pod(H200_MIB, HALF, spans=(ENDED_INIT, APP))], [], ""),
        (claim(part(slice_of(A, HALF))), [pod(H200_MIB, HALF, spans=(INIT, APP))], [], "MiB"),
        # A claim is asked for as a whole: what it had before does not count beside it.
        (claim(part(slice_of(A, H200_MIB))), [], [claim(part(slice_of(A, HALF)))], ""),
        # Unknown is not free, but what holds nothing asks for nothing.
        (claim(part(slice_of(B, 1))), [pod(problem="no number")], [], "unknown what pod team/classic holds"),
        (claim(), [pod(problem="no number")], [], ""),
        # Pods are asked as claims are.
        (pod(HALF), [pod(HALF, uid="q")], [], ""),
        (pod(HALF), [pod(HALF, uid="q")], [claim(part(slice_of(A, 2)))], "other claims 2"),
        (pod(HALF), [], [claim(part(slice_of(A, HALF)))], ""),
        (pod(HALF), [pod(1, uid="q"), pod(1, uid="r"), pod(1, uid="s")], [], "3 shares"),
        # The same container again, another one beside it, and one after an init container.
        (pod(H200_MIB), [pod(H200_MIB)], [], ""),
        (pod(HALF + 2, at=1), [pod(HALF)], [], f"pods without claims hold {HALF} of it"),
        (pod(HALF, at=1, spans=(INIT, APP)), [pod(HALF, spans=(INIT, APP))], [claim(part(slice_of(A, HALF)))], ""),
        (pod(HALF + 2, at=1, spans=(INIT, APP)), [pod(HALF)], [claim(part(slice_of(A, HALF)))], "and 2 more"),
        # What takes nothing more is not refused for what others have too much.
        (pod(HALF, at=1, spans=(INIT, APP)), [pod(HALF, spans=(INIT, APP)), pod(H200_MIB, uid="q")], [], ""),
        # What a pod was only assumed to have is asked for with the rest.
        (
            pod(HALF, spans=(INIT, APP)),
            [pod(HALF, at=1, spans=(INIT, APP), assumed=frozenset({1})), pod(HALF + 2, uid="q")],
            [],
            f"hold {HALF + 2} of it",
        ),
        (claim(part(slice_of("GPU-x", 1))), [], [], "not among those that this node offers"),
    ],
)
def test_slices_fit_where_pods_and_claims_leave_room(
    asked: Holding, pods: list[Holding], others: list[Holding], excess: str
) -> None:
    found = find_excess(asked, SHARED, pods=pods, claims=others)
    assert excess in found
    assert bool(found) == bool(excess)


def test_a_whole_card_has_one_holder() -> None:
    for asked in (claim(part(slice_of(A, H200_MIB, 100))), pod(H200_MIB, uid="q")):
        assert not find_excess(asked, WHOLE, pods=[], claims=[])
        assert "has 1 shares" in find_excess(asked, WHOLE, pods=[pod(H200_MIB)], claims=[])
        other = claim(part(slice_of(A, H200_MIB, 100)), uid="d")
        assert "has 1 shares" in find_excess(asked, WHOLE, pods=[], claims=[other])


def instance(start: int, size: int, **more: Any) -> Assignment:
    slot = MigSlot("1g", MigPlacement(start, size))
    return part(slice_of(A), mig=(MigAllocation(0, 0, A, slot),), **more)


def test_an_instance_needs_a_place_that_is_reserved_for_nothing_else() -> None:
    offered = devices(
        Fleet((card(A, mig_profiles=H200, mig_capable=True),)),
        AgentSettings(node_name="n", node=NodeSettings(mode="mig")),
    )

    def holds(name: str, *parts: Assignment) -> Holding:
        key = ObjectKey("team", name, name)
        return Holding(key, tuple(replace(each, pod=key, position=at) for at, each in enumerate(parts)))

    beside, on = holds("beside", instance(0, 2)), holds("on", instance(3, 1))
    for asked in (claim(instance(2, 2)), holds("pod", instance(2, 2))):
        assert not find_excess(asked, offered, pods=[beside], claims=[claim(instance(4, 4), uid="d")])
        assert "pod team/on holds the place" in find_excess(asked, offered, pods=[on], claims=[])
        taken = find_excess(asked, offered, pods=[], claims=[claim(instance(0, 8), uid="d")])
        assert "ResourceClaim team/claim holds the place" in taken
        assert "without a MIG instance" in find_excess(asked, offered, pods=[pod(1000)], claims=[])
    assert "overlap" in find_excess(claim(instance(2, 2), instance(3, 1)), offered, pods=[], claims=[])
    # Instances live as long as their pod, those of its init containers too; the same one may be asked for again.
    second = Holding(beside.key, (replace(instance(1, 1), pod=beside.key, position=1),), (INIT, APP))
    assert "pod team/beside holds the place" in find_excess(second, offered, pods=[beside], claims=[])
    assert not find_excess(beside, offered, pods=[beside], claims=[])
    # The places of an older geometry are asked of the hardware.
    older = holds("older", part(slice_of(f"{A}[1-0]")))
    assert not find_excess(claim(instance(2, 2)), offered, pods=[older], claims=[])
