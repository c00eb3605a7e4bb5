"""Pods that do not exist yet: where a manifest would go, how many of it fit, and what stops the next one.

The same simulation as `tessera simulate pod`, on a copy of the ledger that is made and thrown away in steps: the
cluster that is shown never changes, and a scheduler that serves the page decides in between. A question has a bound:
beyond it, the answer is to ask for less, or to ask `tessera simulate pod`, which has all the time that it takes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import TypeVar

import msgspec

from tessera.inspect.dashboard.source import PageSource
from tessera.inspect.dashboard.steps import Allowance, Pause, finish_in_steps, in_steps
from tessera.inspect.manifests import read_claim_manifests, read_manifests
from tessera.inspect.render.lines import count_of
from tessera.inspect.simulation import Simulation, StopReason, gang_key, simulate_gangs_in_steps, simulate_in_steps
from tessera.inspect.state import InspectionError, Json
from tessera.scheduler.unschedulable_pods import MAX_WORK

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
    trial = await source.begin_trial()
    for document in beside:
        trial.put_manifest(document)
    ledger = source.view.ledger
    async for name in in_steps(ledger.node_names(), pause):
        trial.ledger.copy_node(name, ledger)
    gangs = await _finish(simulate_gangs_in_steps(trial, manifests, work=MAX_WORK), pause, what="the manifest")
    found = []
    for manifest in manifests:
        most = MAX_COPIES if manifest is manifests[-1] else 0
        steps = simulate_in_steps(trial, manifest, most=most, explain=False, work=MAX_WORK)
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
    groups = [*verdict.groups, *stop.kept_off]
    return {
        "why": "; ".join(f"{count_of(len(group.nodes), 'node')}: {group.reason}" for group in groups) or stop.text,
        "nearest": verdict.near_miss,
        "change": verdict.change,
    }
