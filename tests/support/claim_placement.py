"""Claims placed on an empty node, and what is written for them."""

from __future__ import annotations

from itertools import count

from tessera.core.fit.fit import fit_pod
from tessera.core.ledger.ledger import Ledger
from tessera.core.model.grants import Placement
from tessera.core.model.misfits import Misfit
from tessera.core.model.requests import PodRequest
from tessera.host.simulated.models import MODELS
from tessera.node.fleet import Fleet
from tessera.node.settings import AgentSettings
from tessera.vendors.claims.allocations import allocation
from tessera.vendors.claims.asks import claim_grants, with_claims
from tessera.vendors.drafts import BadPod
from tessera.wire.resource_api import Allocation, ResourceClaim
from tests.support import claims
from tests.support.builders import vendors
from tests.support.claims import agent, ask
from tests.support.sharing_modes import A, card, fleet

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
