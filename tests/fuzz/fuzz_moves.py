"""Requests for moves, as the scheduler reads and holds them: none breaks a ledger, and what is held is given back."""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(
    include=["tessera.wire.moves", "tessera.scheduler.features.moves.holds", "tessera.core.ledger.holdings"]
):
    from tessera.core.ledger.audit import audit
    from tessera.core.ledger.ledger import Ledger
    from tessera.core.model.devices import MIG, Device, NodeFacts
    from tessera.scheduler.features.moves.holds import PlaceHeld, asked_facts, hold_all, release_all
    from tessera.vendors.base import Switches
    from tessera.vendors.registry import build_vendors
    from tessera.wire.errors import WireError
    from tessera.wire.moves import decode_moves_request

VENDORS = build_vendors(None, Switches())


def one_input(data: bytes) -> None:
    try:
        request = decode_moves_request(data)
    except WireError:
        return
    ledger = Ledger(VENDORS)
    cards = (Device("a", "NVIDIA", slots=10, memory=1000), Device("b", "NVIDIA", slots=10, memory=1000, mode=MIG))
    ledger.observe_node(NodeFacts("n", cards))
    places = [PlaceHeld(asked_facts(each.uid, each.name, each.target), each.namespace) for each in request.moves]
    problem = hold_all(ledger, places, deadline=1.0)
    assert not audit(ledger), "more is held than there is"
    view = ledger.node("n")
    assert view is not None
    assert not problem or not any(card.tenants for card in view.cards), "all places are held, or none"
    release_all(ledger, places)
    assert not any(card.used or card.used_memory or card.mig for card in view.cards), "what was held is given back"


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
