"""Which cards there are, for a pod that accepts none of them: models, sharing modes and uuids.

A card's model and mode are one reason on the wire (`CardTypeMismatch`); people have to know which of the two it is.
Works on the arrays, so nodes that are too wide for them do not count.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

import numpy as np

from tessera.core import screen
from tessera.core.arrays import Ints
from tessera.core.device_rules import Rules
from tessera.core.devices import Device
from tessera.core.ledger import Ledger
from tessera.core.published_cards import CLUSTER_COST
from tessera.core.requests import CardFilter, Constraint, PodRequest, container_title

LISTED = 6
"""models, modes or uuids in one sentence; the rest are counted"""
PUBLISHING = "--dra and --dra-allocator=tessera"
"""flags of agents whose cards are for claims that Tessera places"""
COMPARED = 4096
"""cards whose uuids are compared with a wrong one, some milliseconds"""

Kinds = list[tuple[Device, int]]
"""a sample of every kind of card, and how many there are"""


def unmet_wishes(ledger: Ledger, pod: PodRequest, rows: Ints) -> Iterator[str]:
    """One sentence for every vendor of whose cards the pod accepts none on these columns."""
    for vendor in pod.vendors:
        rules, constraint = ledger.rules.get(vendor), pod.constraint(vendor)
        kinds = _kinds(ledger, vendor, rows)
        if rules is None or not kinds:
            continue
        if not any(rules.accepts_model(device, constraint) for device, _ in kinds):
            yield _no_model_or_mode(rules, constraint, kinds)
        elif constraint.use_uuids:
            there = set(ledger.arrays.places(constraint.use_uuids)[1].tolist()) & set(rows.tolist())
            if not there:
                yield _no_uuid(ledger, vendor, constraint.use_uuids, rows)
    for unmet in unmet_selectors(ledger, pod, rows):
        cards = screen.card_counts(ledger.arrays, unmet.vendor, rows).sum()
        what = "the selectors match none of them" if unmet.published else f"nodes publish them with {PUBLISHING}"
        yield f"{unmet.title}: {unmet.published} of {cards} {unmet.vendor} cards are for claims; {what}"


class UnmetSelectors(NamedTuple):
    """A request of a claim whose selectors match no card."""

    title: str
    vendor: str
    selectors: CardFilter
    published: int
    """cards that are for claims"""


def unmet_selectors(ledger: Ledger, pod: PodRequest, rows: Ints) -> Iterator[UnmetSelectors]:
    """Of the cards on these columns, by the rule with which the scheduler places claims."""
    arrays = ledger.arrays
    for position, request in pod.requests:
        selectors = pod.constraint_of(request).filter
        if selectors is None or arrays.published_cards.cost(selectors) > CLUSTER_COST:
            continue  # Whether they match is not known.
        if arrays.selected(selectors, rows).any():
            continue
        published = int((arrays.published[:, rows] >= 0).sum())
        yield UnmetSelectors(container_title(pod.containers[position].name), request.vendor, selectors, published)


def mismatch_words(ledger: Ledger, pod: PodRequest, rows: Ints) -> str:
    """Whether it is the model or the sharing mode of cards on these columns that the pod does not accept; empty if it
    accepts all of them."""
    models: dict[str, None] = {}
    modes: dict[str, None] = {}
    for vendor in pod.vendors:
        rules, constraint = ledger.rules.get(vendor), pod.constraint(vendor)
        if rules is None:
            continue
        for device, _ in _kinds(ledger, vendor, rows):
            if rules.accepts_model(device, constraint):
                continue
            if rules.accepts_model(device, replace(constraint, mode=None)):
                modes[device.mode] = None
            else:
                models[device.model] = None
    said = [
        f"this {what} ({_listed(list(names))})" for what, names in (("model", models), ("sharing mode", modes)) if names
    ]
    return f"the pod does not accept {', or '.join(said)}" if said else ""


def _kinds(ledger: Ledger, vendor: str, rows: Ints) -> Kinds:
    """Of this vendor's cards on these columns, the most frequent kind first."""
    arrays = ledger.arrays
    numbers = arrays.kind[:, rows]
    counts = np.bincount(numbers[numbers >= 0], minlength=len(arrays.kinds)).tolist()
    found = [(kind.sample, count) for kind, count in zip(arrays.kinds, counts, strict=True) if count]
    ours = [(device, count) for device, count in found if device.vendor == vendor]
    return sorted(ours, key=lambda pair: (-pair[1], pair[0].model, pair[0].mode))


def _no_model_or_mode(rules: Rules, constraint: Constraint, kinds: Kinds) -> str:
    of_model = [(d, n) for d, n in kinds if rules.accepts_model(d, replace(constraint, mode=None))]
    if not of_model:
        wanted = f"with {' or '.join(constraint.use_models)} in its name" if constraint.use_models else ""
        avoided = f"without {' and '.join(constraint.avoid_models)}" if constraint.avoid_models else ""
        wish = " and ".join(filter(None, (wanted, avoided)))
        there = _counted((device.model, number) for device, number in kinds)
        return f"no {rules.key} card is of a model {wish}; there are {there}"
    there = _counted((device.mode, number) for device, number in of_model)
    which = "cards of the models that it accepts" if len(of_model) < len(kinds) else "cards"
    return f"the pod accepts the sharing mode {constraint.mode}, and the {rules.key} {which} are in {there}"


def _no_uuid(ledger: Ledger, vendor: str, wanted: Sequence[str], rows: Ints) -> str:
    """The cards whose uuids begin most like a wanted one come first: a typo or a missing end is the usual mistake."""
    nodes = (ledger.node(ledger.arrays.names[row]) for row in rows.tolist())
    cards = (
        (card.device.uuid, f"{node.name}/{card.device.index}")
        for node in nodes
        if node is not None
        for card in node.of_vendor(vendor)
    )
    compared = list(islice(cards, COMPARED))

    compared.sort(key=lambda card: max(_same_start(card[0], uuid) for uuid in wanted), reverse=True)
    more = "; tessera top -o wide shows all" if len(compared) > LISTED else ""
    there = _listed([f"{uuid} ({place})" for uuid, place in compared])
    elsewhere = ledger.arrays.places(wanted)[1]
    if len(elsewhere):
        where = _listed(sorted({ledger.arrays.names[row] for row in elsewhere.tolist()}))
        return f"the card with the uuid {_listed(wanted)} is on {where}, where kube-scheduler does not let the pod go"
    return f"no {vendor} card has the uuid {_listed(wanted)}; there are {there}{more}"


def _same_start(one: str, other: str) -> int:
    """How many characters two texts begin with in common."""
    pairs = zip(one, other, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def _counted(pairs: Iterable[tuple[str, int]]) -> str:
    """`8 x L4, 4 x A100`, each name once."""
    counts: dict[str, int] = {}
    for name, number in pairs:
        counts[name] = counts.get(name, 0) + number
    return _listed([f"{number} x {name or 'unnamed'}" for name, number in counts.items()])


def _listed(names: Sequence[str]) -> str:
    more = len(names) - LISTED
    return ", ".join(names if more <= 0 else (*names[:LISTED], f"{more} more"))
