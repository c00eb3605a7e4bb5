"""The scripted server of the browser tests and the real one describe the same things in the same form."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from tessera.inspect.dashboard.source import RecordedSource
from tessera.inspect.utilization import MeasuredUse, SliceKey, Utilization
from tests.support.builders import gpu_pod, node
from tests.support.journals import RecordedCluster
from tests.support.page import Page, decoded, pods_of
from tests.ui.described_cluster import small_cluster
from tests.ui.scripted_page import ScriptedPage

FITS = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 2_000}
TOO_LARGE = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 90_000}
Form = Any
"""a document with the names of types in place of values"""


def form(value: Any) -> Form:
    """Of objects with chosen names (uids, facts) and of lists, the forms of their values."""
    if isinstance(value, dict):
        return {key: form(member) for key, member in value.items()}
    if isinstance(value, list):
        return [form(member) for member in value]
    return "number" if isinstance(value, (int, float)) and not isinstance(value, bool) else type(value).__name__


def merged_forms(forms: list[Form]) -> set[str]:
    """All different forms, as text."""
    return {json.dumps(one, sort_keys=True) for one in forms}


def manifest(limits: dict[str, int]) -> str:
    return json.dumps({"kind": "Pod", "spec": {"containers": [{"name": "a", "resources": {"limits": limits}}]}})


@pytest.fixture
async def real() -> AsyncIterator[Page]:
    here = RecordedCluster().add(node("n1").gpus(2, memory=24_000))
    here.decide(gpu_pod("a", mem=20_000, cores=5))
    here.decide(gpu_pod("b", mem=90_000))
    source = RecordedSource(here.records, name="j")
    cards = source.view.ledger.devices("n1")
    source.measurements = MeasuredUse(
        {SliceKey("uid-a", "main", uuid): Utilization(0, 0) for uuid in cards},
        {("n1", uuid): Utilization(1_000, 5) for uuid in cards},
    )
    page = Page(source)
    yield page
    await page.server.close()


@pytest.fixture
async def scripted() -> AsyncIterator[ScriptedPage]:
    async with ScriptedPage(small_cluster()) as page:
        yield page


async def asked(page: ScriptedPage, target: str, body: str = "") -> Any:
    async with aiohttp.ClientSession() as session:
        method = "POST" if body else "GET"
        async with session.request(method, f"{page.url}{target}", data=body or None) as response:
            return await response.json()


async def test_states_have_the_same_form(real: Page, scripted: ScriptedPage) -> None:
    ours, theirs = await real.get("/api/state"), await asked(scripted, "api/state")
    assert form(ours["source"]) == form(theirs["source"])
    assert ours.keys() == theirs.keys()
    nodes = [list(state["nodes"].values()) for state in (ours, theirs)]
    assert {key for one in nodes[0] for key in one} == {key for one in nodes[1] for key in one}
    for pod in (*pods_of(ours).values(), *pods_of(theirs).values()):
        assert merged_forms([form(pod)]) <= merged_forms([["str"] * 5 + ["number"], ["str"] * 5 + ["NoneType"]])
    cards = [[card for one in found for card in one["cards"]] for found in nodes]
    kinds = [merged_forms([form(card[:10] + card[11:]) for card in found]) for found in cards]
    slices = [merged_forms([form(part) for card in found for part in card[10]]) for found in cards]
    assert (kinds[0], slices[0]) == (kinds[1], slices[1])


async def test_what_is_newer_has_the_same_form(real: Page, scripted: ScriptedPage) -> None:
    whole, other = await real.get("/api/state"), await asked(scripted, "api/state")
    ours = await real.get(f"/api/state?since={whole['version']}&wait=0")
    theirs = await asked(scripted, f"api/state?since={other['version']}&wait=0")
    assert whole.keys() - {"totals"} == ours.keys() - {"totals"} == theirs.keys() - {"totals"}


async def test_totals_have_the_same_form(real: Page, scripted: ScriptedPage) -> None:
    ours, theirs = (await real.get("/api/state"))["totals"], (await asked(scripted, "api/state"))["totals"]
    for key in ("byNamespace", "byModel"):
        assert merged_forms([form(one) for one in ours.pop(key)]) == merged_forms(
            [form(one) for one in theirs.pop(key)]
        )
    for totals in (ours, theirs):
        totals.pop("waits")
    assert form(ours) == form(theirs)


async def test_waiting_pods_have_the_same_form(real: Page, scripted: ScriptedPage) -> None:
    (ours,), (theirs, *_) = [
        list(state["waiting"].values()) for state in (await real.get("/api/state"), await asked(scripted, "api/state"))
    ]
    assert ours.keys() == theirs.keys()
    forms = [{key: value for key, value in form(one).items() if key != "owner"} for one in (ours, theirs)]
    assert forms[0] == forms[1]


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("card?node=n1&card=n1-0", "card?node=h100-1&card=GPU-h100-1-0"),
        ("node?name=n1", "node?name=h100-1"),
        ("pod?namespace=default&name=a", "pod?namespace=vision&name=train-1"),
    ],
)
async def test_details_have_the_same_form(real: Page, scripted: ScriptedPage, ours: str, theirs: str) -> None:
    one, other = await real.get(f"/api/{ours}"), await asked(scripted, f"api/{theirs}")
    assert one.keys() == other.keys()
    assert merged_forms([form(line) for line in one["lines"]]) == merged_forms([form(line) for line in other["lines"]])
    assert merged_forms([form(record) for record in one.get("history", ())]) == merged_forms(
        [form(record) for record in other.get("history", ())]
    )


async def test_shapes_and_records_have_the_same_form(real: Page, scripted: ScriptedPage) -> None:
    ours, theirs = await real.get("/api/shapes"), await asked(scripted, "api/shapes")
    assert merged_forms([form(one) for one in ours]) == merged_forms([form(one) for one in theirs])
    one, other = await real.get("/api/journal"), await asked(scripted, "api/journal")
    assert one.keys() == other.keys()
    assert merged_forms([form(record) for record in one["records"]]) == merged_forms(
        [form(record) for record in other["records"]]
    )


@pytest.mark.parametrize("limits", [FITS, TOO_LARGE])
async def test_what_if_has_the_same_form(real: Page, scripted: ScriptedPage, limits: dict[str, int]) -> None:
    text = manifest(limits)
    ours = decoded(await real.ask("/api/whatif", method="POST", body=text.encode()))
    theirs = await asked(scripted, "api/whatif", text)
    assert form(ours) == form(theirs)
    assert ours["pods"][0]["fits"] is theirs["pods"][0]["fits"] is (limits is FITS)
