"""What allocated claims hold: scheduler and agent read the same, and what running pods use is never free."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import Any

import msgspec
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from tessera.core.ledger.holdings import PodFacts
from tessera.core.model.devices import MigPlacement, MigSlot
from tessera.core.model.grants import Grant, Grants
from tessera.host.simulated.models import MODELS
from tessera.node.dra.claim_reader import assignments_of, read_claim
from tessera.node.dra.offers import offers
from tessera.node.fleet import Fleet
from tessera.node.modes.base import AllocationRefused
from tessera.node.settings import AgentSettings
from tessera.vendors.claims.allocations import (
    claim_devices_text,
    claim_facts,
    read_claim_devices,
    shortfalls,
    with_parts,
)
from tessera.wire.resource_api import DRIVER, ResourceClaim
from tests.support import claims
from tests.support.claims import agent
from tests.support.sharing_modes import A, B, card
from tests.support.strategies import examples

MIG_CARD = card(A, 0, mig_capable=True, mig_profiles=MODELS["H200"].profiles)
NODES: dict[str, tuple[Fleet, AgentSettings]] = {
    "shared": (Fleet((card(A), card(B, 1))), agent()),
    "scaled": (Fleet((card(A),)), agent(core_scaling=2.5, memory_scaling=1.5)),
    "whole": (Fleet((card(A),)), agent("none")),
    "mig": (Fleet((MIG_CARD,)), agent("mig")),
}
QUANTITIES = (
    "0",
    "1",
    "7",
    "30",
    "100",
    "0.5",
    "7500m",
    "1Ki",
    "1025Ki",
    "3000Mi",
    "3000.5Mi",
    "4Gi",
    "-1",
    "x",
    "",
    "9E",
    5,
)
NAMES = ("memory", "cores", f"{DRIVER}/memory", f"{DRIVER}/cores", "shares", "other.example.com/memory")


@st.composite
def allocations(draw: st.DrawFn, devices: list[str]) -> ResourceClaim:
    results: list[dict[str, Any]] = []
    for _ in range(draw(st.integers(1, 3))):
        result: dict[str, Any] = {"request": draw(st.sampled_from(("a", "b"))), "driver": DRIVER, "pool": "n"}
        result["device"] = draw(st.sampled_from(devices))
        if draw(st.booleans()):
            usual = {"memory": "3000Mi", "cores": "30", "shares": "1"}
            odd = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(QUANTITIES), max_size=4)
            result["consumedCapacity"] = draw(odd | st.just(usual))
        results.append(result)
    status = {"allocation": {"devices": {"results": results}}}
    return msgspec.convert({"metadata": {"uid": "u", "name": "c"}, "status": status}, ResourceClaim)


@pytest.mark.parametrize("name", NODES)
@examples(4)
@given(data=st.data())
def test_the_agent_hands_out_exactly_what_the_scheduler_charges(name: str, data: st.DataObject) -> None:
    fleet, settings = NODES[name]
    offered = {each.name: each for each in offers(fleet, settings)}
    claim = data.draw(allocations(sorted(offered)))
    facts = claim_facts(claim, {"n": claims.pool(fleet, settings)})
    assert facts is not None
    try:
        handed = assignments_of(read_claim(claim, offered, node="n"))
    except AllocationRefused:
        handed = None
    event("refused" if handed is None else "handed out")
    assert (handed is None) is bool(facts.problem), "unknown on one side only"
    if handed is not None:
        given_out = Counter((each.uuid, each.memory, each.cores) for part in handed for each in part.slices)
        charged = Counter((grant.uuid, grant.memory, grant.cores) for grant in facts.grants["NVIDIA"][0])
        assert given_out == charged


CARDS = ("A", "B")
SLOT = MigSlot("1g.10gb", MigPlacement(0, 1))
some_grants = st.lists(
    st.builds(
        lambda uuid, memory, cores, slot: Grant(uuid, "NVIDIA", memory=memory, cores=cores, mig=slot),
        st.sampled_from(CARDS), st.integers(1, 9), st.integers(0, 9), st.sampled_from((None, None, SLOT)),
    ),
    max_size=3,
).map(tuple)  # fmt: skip


def facts_of(uid: str, node: str, grants: Grants = ()) -> PodFacts:
    return PodFacts(uid, "default", uid, node, grants={"NVIDIA": (grants,)} if grants else {})


def held(holders: list[PodFacts], node: str, uuid: str) -> tuple[int, int, int]:
    """MiB and cores of a card beside its instances, and how many instances of it."""
    on_node = [facts for facts in holders if facts.node == node]
    grants = [grant for facts in on_node for containers in facts.grants.values() for own in containers for grant in own]
    plain = [grant for grant in grants if grant.uuid == uuid and grant.mig is None]
    instances = [grant for grant in grants if grant.uuid == uuid and grant.mig is not None]
    return sum(grant.memory for grant in plain), sum(grant.cores for grant in plain), len(instances)


@given(
    st.none() | st.tuples(st.sampled_from("nm"), some_grants),
    st.dictionaries(st.sampled_from(("p", "q", "r")), st.tuples(st.sampled_from("nm"), some_grants)),
)
def test_a_claim_and_its_users_hold_all_that_one_of_them_says_and_share_what_they_agree_on(
    claim: tuple[str, Grants] | None, users: dict[str, tuple[str, Grants]]
) -> None:
    shown = [] if claim is None else [facts_of("claim", *claim)]
    found = shortfalls(((pod, node, grants) for pod, (node, grants) in users.items()), shown[0] if shown else None)
    holders = [with_parts(facts_of(pod, node), found.get(pod, ())) for pod, (node, _) in users.items()]
    said = [*shown, *(facts_of(pod, node, grants) for pod, (node, grants) in users.items())]
    for node, uuid in product("nm", CARDS):
        total = held([*holders, *shown], node, uuid)
        each = [held([one], node, uuid) for one in said]
        for amount, of_all in zip(total, zip(*each, strict=True), strict=True) if each else ():
            assert max(of_all) <= amount <= sum(of_all)
    if len({(facts.node, facts.grants.get("NVIDIA")) for facts in said}) == 1:
        for node, uuid in product("nm", CARDS):
            assert held([*holders, *shown], node, uuid) == held(said[:1], node, uuid), "all say the same"


@given(st.dictionaries(st.text(max_size=8), some_grants, max_size=3))
def test_what_a_binding_records_is_read_again(parts: dict[str, Grants]) -> None:
    assert read_claim_devices(claim_devices_text(parts)) == parts
