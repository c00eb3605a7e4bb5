"""Claims in the words of the core: what they ask for, what they hold, and what is written."""

from __future__ import annotations

from itertools import count
from typing import Any

import msgspec
import pytest

from tessera.core.devices import MigPlacement, MigSlot
from tessera.core.fit import fit_pod
from tessera.core.grants import Grant, Placement
from tessera.core.ledger import Ledger
from tessera.core.misfits import Misfit
from tessera.core.requests import PodRequest
from tessera.host.simulated.models import MODELS
from tessera.node.fleet import Fleet
from tessera.node.settings import AgentSettings
from tessera.vendors.claims import (
    allocation,
    claim_facts,
    claim_grants,
    with_claims,
)
from tessera.vendors.drafts import BadPod
from tessera.wire.resource_api import Allocation, ResourceClaim
from tests.support import claims
from tests.support.builders import vendors
from tests.support.claims import agent, ask, attribute, claim, exactly
from tests.support.sharing_modes import H200_MIB, A, card, fleet

EMPTY = PodRequest("uid", "default", "p", ())


def mig_fleet() -> Fleet:
    return Fleet((card(A, 0, mig_capable=True, mig_profiles=MODELS["H200"].profiles),))


def place(
    *asked: ResourceClaim, cards: Fleet | None = None, settings: AgentSettings | None = None
) -> Placement | Misfit:
    """The first variant of a pod with these claims that fits an empty node."""
    facts = claims.node(cards if cards is not None else fleet(), settings or agent())
    ledger = Ledger(vendors())
    ledger.observe_node(facts)
    node = ledger.node(facts.name)
    variants = with_claims(EMPTY, [ask(each) for each in asked])
    assert node is not None
    assert not isinstance(variants, BadPod)
    answers = [fit_pod(node, each, ledger.rules, {}) for each in variants]
    return next((each for each in answers if isinstance(each, Placement)), answers[-1])


def written(asked: ResourceClaim, cards: Fleet, settings: AgentSettings) -> Allocation:
    """What is written for one claim on an empty node."""
    found = ask(asked)
    variants = with_claims(EMPTY, [found])
    assert not isinstance(variants, BadPod)
    placement = place(asked, cards=cards, settings=settings)
    assert isinstance(placement, Placement), placement
    numbers = count(1)
    given = claim_grants(variants[0], placement.grants)[asked.metadata.name]
    answer = allocation(found, given, claims.pool(cards, settings), new_share=lambda: f"share-{next(numbers)}")
    assert isinstance(answer, Allocation), answer
    return answer


# -- what is written, and what is read again


def test_a_part_of_a_card_is_written_as_a_stock_scheduler_would() -> None:
    settings = agent()
    answer = written(claim("c", gpu=exactly(memory="4Gi", cores="30")), fleet(A), settings)
    assert msgspec.to_builtins(answer) == {
        "devices": {
            "results": (
                {
                    "request": "gpu",
                    "driver": "gpu.tessera.io",
                    "pool": "n",
                    "device": A.lower(),
                    "shareID": "share-1",
                    "consumedCapacity": {"memory": "4Gi", "cores": "30", "shares": "1"},
                },
            ),
        },
        "nodeSelector": {
            "nodeSelectorTerms": ({"matchFields": ({"key": "metadata.name", "operator": "In", "values": ("n",)},)},)
        },
    }


@pytest.mark.parametrize(
    ("mode", "asked", "held"),
    [
        ("hami-core", exactly(memory="4Gi", cores="30"), Grant(A, "NVIDIA", 4096, 30)),
        ("hami-core", exactly(memory="4097Ki"), Grant(A, "NVIDIA", 5, 0)),
        ("mps", exactly(), Grant(A, "NVIDIA", H200_MIB, 0)),
        ("none", exactly(memory="4Gi"), Grant(A, "NVIDIA", H200_MIB, 100)),
        (
            "mig",
            exactly(f"{attribute('profile')} == '1g.18gb'"),
            Grant(A, "NVIDIA", 16384, 13, mig=MigSlot("1g.18gb", MigPlacement(6, 1))),
        ),
    ],
)
def test_a_claim_holds_what_was_placed(mode: Any, asked: dict[str, Any], held: Grant) -> None:
    cards, settings = mig_fleet() if mode == "mig" else fleet(A), agent(mode)
    asking = claim("c", gpu=asked)
    placement = place(asking, cards=cards, settings=settings)
    assert isinstance(placement, Placement), placement
    shown = claims.allocated(asking, written(asking, cards, settings))
    facts = claim_facts(shown, {"n": claims.pool(cards, settings)})
    assert facts is not None
    assert (facts.uid, facts.namespace, facts.node, facts.problem) == ("default/c", "default", "n", "")
    assert facts.grants == {"NVIDIA": ((held,),)} == placement.grants
