"""Questions of the page: everything about one card, node or pod, and where pods that do not exist yet would go.

Details are what `tessera top` and `explain` know. They work on a ledger, so that they tell of the past as they tell of
the present.

    {"title": "card 0 of n1", "lines": [{"text": "...", "style": "plain"}], "facts": {"vendor": "NVIDIA"}}

A what-if is the simulation of `tessera simulate pod`, on a copy of the ledger that is made and thrown away in steps:
the cluster that is shown never changes, and a scheduler that serves the page decides in between. A question has a
bound: beyond it, the answer is to ask for less, or to ask `tessera simulate pod`, which has all the time that it takes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterable, Sequence
from typing import TypeVar

import msgspec

from tessera.core.ledger.holders import Holder
from tessera.core.ledger.ledger import Ledger
from tessera.inspect.dashboard.nodes import ShownCluster
from tessera.inspect.dashboard.source import PageSource
from tessera.inspect.dashboard.steps import Allowance, Pause, finish_in_steps, in_steps
from tessera.inspect.dashboard.waiting import reasons_text
from tessera.inspect.manifests import read_claim_manifests, read_manifests
from tessera.inspect.render.explanation import section, slice_text
from tessera.inspect.render.lines import Style, StyledLine, count_of
from tessera.inspect.render.usage import cards_table
from tessera.inspect.simulation import Simulation, StopReason, gang_key, simulate_gangs_in_steps, simulate_in_steps
from tessera.inspect.slices import holder_slices
from tessera.inspect.state import InspectionError, Json
from tessera.inspect.usage import CardUsage, holding_pods, sum_amounts, usage_of
from tessera.scheduler.queue.unschedulable_pods import MAX_WORK

NAMED_PROFILES = 12

T = TypeVar("T")

MAX_COPIES = 1_000
"""of all manifests, and that are counted; a page that says "at least a thousand" says enough"""
MAX_S = 4.0
"""of processor time for one question: a gang of 1000 members on 5000 nodes takes half of it"""
INSTEAD = "ask with fewer pods, or use `tessera simulate pod`"
MAX_MANIFESTS = 20
"""in one question"""
LISTED = 50
"""copies that are listed one by one"""


def card_details(shown: ShownCluster, node: str, uuid: str) -> Json | None:
    """None if there is no such card."""
    ledger = shown.ledger
    view = ledger.node(node)
    card = next((card for card in view.cards if card.device.uuid == uuid), None) if view is not None else None
    if view is None or card is None:
        return None
    device = card.device
    usage = usage_of(ledger, node, card, view.facts.problem, shown.measurements, shown.users_of)
    links = sorted(f"{_index(ledger, node, other)}: {score}" for other, score in device.links.items())
    facts = {
        "vendor": device.vendor,
        "healthy": "yes" if device.healthy else "no",
        "cordoned": "yes" if card.cordoned else "no",
        "freeMemory": f"{usage.memory_mib.total - usage.memory_mib.used} MiB",
        "freeCores": f"{usage.cores.total - usage.cores.used} %",
        "freeSlots": usage.slots.total - usage.slots.used,
        "linkScores": ", ".join(links),
        "migProfiles": ", ".join(profile.name for profile in device.mig_profiles[:NAMED_PROFILES]),
        "node": view.facts.problem,
    }
    return _document(f"card {device.index} of {node}", _table([usage]), facts)


def node_details(shown: ShownCluster, name: str) -> Json | None:
    """None if the node has registered nothing."""
    view = shown.ledger.node(name)
    if view is None:
        return None
    problem, measured, users = view.facts.problem, shown.measurements, shown.users_of
    cards = [usage_of(shown.ledger, name, card, problem, measured, users) for card in view.cards]
    memory, cores = sum_amounts(use.memory_mib for use in cards), sum_amounts(use.cores for use in cards)
    found = {
        "cards": len(cards),
        "closedCards": sum(bool(use.state) for use in cards),
        "pods": len(holding_pods(cards)),
        "freeMemory": f"{memory.total - memory.used} of {memory.total} MiB",
        "freeCores": f"{cores.total - cores.used} of {cores.total} %",
        **{f"trait {key}": value for key, value in view.facts.traits.items()},
        **shown.node_facts(name),
    }
    return _document(f"node {name}", _table(cards), found)


def pod_details(
    namespace: str, name: str, *, lines: Iterable[StyledLine], facts: Json, history: Sequence[Json] = ()
) -> Json:
    return {**_document(f"pod {namespace}/{name}", lines, facts), "history": list(history)}


def held_lines(ledger: Ledger, entry: Holder, containers: Sequence[str] = ()) -> list[StyledLine]:
    """What a pod holds, as the ledger knows it."""
    facts = entry.facts
    slices = holder_slices(ledger, facts, containers)
    head = StyledLine(f"{facts.namespace}/{facts.name}: {entry.state.value} on {facts.node}", Style.GOOD)
    problem = [StyledLine(facts.problem, Style.BAD)] if facts.problem else []
    return [head, *problem, *section("Holds", [StyledLine(slice_text(one)) for one in slices])]


def find_entry(ledger: Ledger, namespace: str, name: str) -> Holder | None:
    """The pod of this name that holds something."""
    for entry in ledger.pods():
        if entry.facts.name == name and entry.facts.namespace == namespace:
            return entry
    return None


def _table(cards: Sequence[CardUsage]) -> list[StyledLine]:
    return cards_table(cards, width=None, wide=True, ascii_only=False)


def _index(ledger: Ledger, node: str, uuid: str) -> str:
    device = ledger.devices(node).get(uuid)
    return f"card {device.index}" if device is not None else uuid


def _document(title: str, lines: Iterable[StyledLine], facts: Json) -> Json:
    return {
        "title": title,
        "lines": [{"text": line.text, "style": line.style.value} for line in lines],
        "facts": {key: value for key, value in facts.items() if value not in ("", None)},
    }


async def try_manifests(source: PageSource, text: str, pause: Pause) -> Json:
    """The answer to a manifest of pods or workloads. Raises InspectionError if it cannot be read."""
    # Not on the event loop: YAML takes its time.
    manifests = await asyncio.to_thread(read_manifests, text, file="the manifest", namespace="default", count=None)
    if len(manifests) > MAX_MANIFESTS:
        raise InspectionError(f"the manifest has {len(manifests)} pods or workloads; try at most {MAX_MANIFESTS}")
    copies = sum(manifest.count for manifest in manifests)
    if copies > MAX_COPIES:
        raise InspectionError(f"the manifest has {copies} pods; at most {MAX_COPIES} are tried here: {INSTEAD}")
    pause = Allowance(pause, MAX_S, INSTEAD)
    beside = await asyncio.to_thread(read_claim_manifests, text, file="the manifest", namespace="default")
    fork = await source.fork()
    for document in beside:
        fork.put_manifest(document)
    ledger = source.ledger
    async for name in in_steps(ledger.node_names(), pause):
        fork.ledger.copy_node(name, ledger)
    gangs = await _finish(simulate_gangs_in_steps(fork, manifests, work=MAX_WORK), pause, what="the manifest")
    found = []
    for manifest in manifests:
        most = MAX_COPIES if manifest is manifests[-1] else 0
        steps = simulate_in_steps(fork, manifest, most=most, explain=False, work=MAX_WORK)
        found.append(await _finish(steps, pause, what=f"the pod {manifest.name}"))
    last = found[-1]
    # Of a gang that does not fit as a whole no member is placed.
    refused = {(gang.namespace, gang.name) for gang in gangs if not gang.fits}
    return {
        "gangs": [
            {"namespace": gang.namespace, "name": gang.name, "size": gang.size, "fits": gang.fits, "why": gang.text}
            for gang in gangs
        ],
        "pods": [
            document
            for manifest, one in zip(manifests, found, strict=True)
            if gang_key(manifest) not in refused
            for document in _documents(one)
        ],
        # Of several manifests, the copies of the last that fit beside all the others.
        "more": last.fits_in_all if last.request is not None or last.stop is not None else None,
        "stops": last.stop.text if last.stop is not None else f"counting stopped at {last.fits_in_all}",
    }


async def _finish(steps: Generator[None, None, T], pause: Pause, *, what: str) -> T:
    """The result, found between other work."""
    try:
        return await finish_in_steps(steps, pause)
    except (msgspec.ValidationError, AttributeError, KeyError, TypeError, ValueError) as error:
        # Whatever a person wrote in the place of a table or a list.
        raise InspectionError(f"{what} is not valid: {error}") from error


def _documents(found: Simulation) -> list[Json]:
    if found.request is None and found.stop is None:
        return []
    placed = [
        {
            "name": one.name,
            "fits": True,
            "node": one.node,
            "cards": list(dict.fromkeys(each.card for each in one.slices)),
            "why": "; ".join(found.warnings) if number == 0 else "",
            "nearest": "",
            "change": "",
        }
        for number, one in enumerate(found.placed[:LISTED])
    ]
    missing = found.count - len(found.placed)
    if missing <= 0 or found.stop is None:
        return placed
    name = found.name if found.count == 1 else f"{count_of(missing, 'more copy')} of {found.name}"
    refused = {"name": name, "fits": False, "node": "", "cards": [], **_reasons(found.stop)}
    return [*placed, refused]


def _reasons(stop: StopReason) -> Json:
    verdict = stop.verdict
    if verdict is None:
        return {"why": stop.text, "nearest": "", "change": ""}
    why = reasons_text([*verdict.groups, *stop.kept_off])
    return {"why": why or stop.text, "nearest": verdict.near_miss, "change": verdict.change}
