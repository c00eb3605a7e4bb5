"""Every YAML block of the documents does what its page says, on the demo's cluster with the real scheduler.

Objects are applied: pods, and the pods of workloads, run. A comment before the block says otherwise:

    <!-- expect: Pending -->            it is taken and fits nowhere
    <!-- expect: refused: TEXT -->      it is not taken, and the reason has TEXT

A block that is not an API object is parsed by the code that reads it in the product. `tests/unit/test_pages.py` checks
what else pages name.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from tessera.host.simulated.description import load_description
from tessera.inspect.defragmentation import plan_cards
from tessera.inspect.description import read_description
from tessera.inspect.offline_cluster import OfflineCluster
from tessera.inspect.render.defragmentation import plan_picture
from tessera.inspect.snapshots import decode_snapshot
from tessera.inspect.state import Setup
from tessera.kube.errors import ApiError
from tessera.kube.resources import (
    DEVICE_CLASSES,
    MUTATING_WEBHOOKS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_QUOTAS,
)
from tessera.vendors.registry import build_vendors
from tessera.wire.keys import DRA_DRIVER
from tessera_lab.demo.cluster import RESOURCES, SWITCHES, DemoCluster, demo_cluster
from tessera_lab.demo.screens import take_view
from tessera_lab.demo.story import STORY
from tessera_lab.sandbox.api.api_state import RequestContext
from tessera_lab.sandbox.api.kinds import WORKLOADS as WORKLOAD_KINDS
from tessera_lab.sandbox.api.requests import EVERYTHING, RequestTarget
from tessera_lab.sandbox.api.shapes import DeleteOptions
from tessera_lab.sandbox.objects import condition_of, name_of, phase_of

Json = dict[str, Any]

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(
    r"(?:<!-- expect: (?P<expected>[^\n]*) -->\n)?^```ya?ml\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
PLACES: dict[str, set[tuple[str, int]]] = {
    "this-one": {("l4-1", 1)},
    "isolated": {("mig-1", 0)},
    "ocr": {("ascend-1", 1)},
    "trainer": {("h100-1", index) for index in range(4, 8)},
}
"""cards that the page says, or that follow from it; on an empty cluster"""
BACKGROUND = DeleteOptions(propagation_policy="Background")
WORKLOADS = {kind.kind: kind for kind in WORKLOAD_KINDS}


@dataclass(frozen=True)
class Block:
    place: str
    text: str
    expected: str

    @property
    def documents(self) -> list[Json]:
        return [each for each in yaml.safe_load_all(self.text) if each is not None]


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for found in BLOCK.finditer(text):
        line = text.count("\n", 0, found.start("text"))
        yield Block(f"{page.relative_to(ROOT)}:{line + 1}", found["text"], found["expected"] or "Running")


APPLIED = [block for page in PAGES for block in blocks(page) if all("kind" in each for each in block.documents)]
READ = [block for page in PAGES for block in blocks(page) if not all("kind" in each for each in block.documents)]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[DemoCluster]:
    async with demo_cluster(tmp_path) as running:
        yield running


async def test_every_manifest_of_the_documents_does_what_its_page_says(cluster: DemoCluster) -> None:
    assert len(APPLIED) > 15, "the documents have lost their examples"
    for block in APPLIED:
        try:
            await apply(cluster, block)
        except Exception as error:
            raise AssertionError(f"{block.place}: {error}") from error
        finally:
            await clear(cluster)


async def apply(cluster: DemoCluster, block: Block) -> None:
    wanted, _, text = block.expected.partition(": ")
    pods = workloads = 0
    for document in block.documents:
        if document["kind"] == "KubeSchedulerConfiguration":
            check_scheduler_configuration(document)
            continue
        if document["kind"] == "MutatingWebhookConfiguration":
            # The cluster has one of this name; a second one beside it does no harm until it is gone again.
            document["metadata"]["name"] += "-example"
        assert document["kind"] in RESOURCES, f"there is no way to try a {document['kind']} here"
        refusal = await refused(cluster, document)
        assert (wanted == "refused") == (refusal is not None), refusal or f"{name_of(document)} was taken"
        assert text in (refusal or "")
        pods += document["kind"] == "Pod" and refusal is None
        if document["kind"] in WORKLOADS:
            spec = document["spec"]
            workloads += spec.get("replicas", spec.get("parallelism", 1))

    def is_over() -> bool:
        found = cluster.pods()
        return len(found) >= pods + workloads and all(is_as_expected(pod, wanted) for pod in found)

    await cluster.until(is_over, f"{pods + workloads} pods to be {wanted}")
    for name in PLACES.keys() & {name_of(pod) for pod in cluster.pods() if block.place.startswith("docs/user-guide")}:
        cards = [card for card in take_view(cluster).cards if name in [one.pod for one in card.slices]]
        assert {(card.node, card.index) for card in cards} == PLACES[name]


async def refused(cluster: DemoCluster, document: Json) -> str | None:
    """Creates the object; why it was not taken."""
    try:
        await cluster.apply(document)
    except ApiError as error:
        return error.message
    return None


def is_as_expected(pod: Json, expected: str) -> bool:
    if expected == "Pending":
        return (condition_of(pod, "PodScheduled") or {}).get("status") == "False"
    # Pods of Jobs end by themselves.
    return phase_of(pod) == expected or (phase_of(pod), expected) == ("Succeeded", "Running")


def check_scheduler_configuration(document: Json) -> None:
    """There is no kube-scheduler here to read it: what it says of Tessera must be true."""
    (extender,) = document["extenders"]
    names = {name for vendor in build_vendors(None, SWITCHES).values() for name in vendor.names.all}
    assert {each["name"] for each in extender["managedResources"]} <= names
    assert (extender["filterVerb"], extender["bindVerb"], extender["nodeCacheCapable"]) == ("filter", "bind", True)


def check_alerts(document: Json) -> None:
    """There is no Prometheus here to read them: what they ask for must be there."""
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src/tessera").rglob("*.py"))
    for rule in document["groups"][0]["rules"]:
        asked = {name.removesuffix("_bucket") for name in re.findall(r"tessera_[a-z_]+", rule["expr"])}
        assert asked, rule["alert"]
        # The library puts prefixes before the names and the ending of counters behind them.
        endings = [name.removeprefix("tessera_").removeprefix("agent_").removesuffix("_total") for name in asked]
        assert all(re.search(rf'"[a-z_]*{name}(_total)?"', source) for name in endings), asked


@contextmanager
def gone_is_fine() -> Iterator[None]:
    """For the deletion of what may be deleted by others too."""
    try:
        yield
    except ApiError as error:
        if error.status != 404:
            raise


async def clear(cluster: DemoCluster) -> None:
    """Nothing of the block is left."""
    for kind in WORKLOADS.values():
        collection = RequestTarget(kind)
        await cluster.plane.server.verbs.delete_all(collection, EVERYTHING, BACKGROUND, RequestContext())
    for pod in cluster.pods():
        with gone_is_fine():  # The garbage collector deletes pods of workloads meanwhile.
            await cluster.plane.delete_pod(pod["metadata"]["namespace"], name_of(pod), grace_s=0)
    client = cluster.plane.client
    for quota in (await client.list(RESOURCE_QUOTAS.path(), dict[str, Any])).items:
        await client.delete(RESOURCE_QUOTAS.path(quota["metadata"]["namespace"], name_of(quota)))
    for hook in (await client.list(MUTATING_WEBHOOKS.path(), dict[str, Any])).items:
        if name_of(hook).endswith("-example"):
            await client.delete(MUTATING_WEBHOOKS.path(name=name_of(hook)))
    for resource in (RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS):
        for found in (await client.list(resource.path(), dict[str, Any])).items:
            with gone_is_fine():  # It goes with its pod.
                await client.delete(resource.path(found["metadata"]["namespace"], name_of(found)))
    for each in (await client.list(DEVICE_CLASSES.path(), dict[str, Any])).items:
        if name_of(each) != DRA_DRIVER:
            await client.delete(DEVICE_CLASSES.path(name=name_of(each)))
    await cluster.until(lambda: not cluster.pods() and not cluster.ledger.pods(), "the pods to be gone")


@pytest.mark.parametrize("block", READ, ids=lambda block: block.place)
def test_what_is_no_object_is_read_by_its_reader(block: Block, tmp_path: Path) -> None:
    (document,) = block.documents
    if "cards" in document:
        (tmp_path / "cards.yaml").write_text(block.text)
        assert load_description(tmp_path / "cards.yaml").cards
        return
    if "nodes" in document:
        assert read_description(block.text, file=block.place, now=0.0, setup=Setup()).nodes
        return
    if "groups" in document:
        check_alerts(document)
        return
    values = yaml.safe_load((ROOT / "charts/tessera/values.yaml").read_text(encoding="utf-8"))
    unknown = document.keys() - values.keys()
    assert not unknown, f"{block.place}: no file of cards, no cluster and no values of the chart"


async def test_the_picture_of_moves_is_the_plan_of_its_snapshot() -> None:
    file = ROOT / "docs/images/defragmentation.yaml"
    cluster = OfflineCluster(decode_snapshot(file.read_bytes(), file=file.name))
    drawn = plan_picture(cluster, plan_cards(cluster, max_moves=50, with_bare=False))
    kept = file.with_suffix(".svg").read_text(encoding="utf-8")
    assert drawn == kept, "tessera defrag plan --snapshot docs/images/defragmentation.yaml --plot ...svg"


def test_the_picture_in_the_readme_shows_the_story_of_today() -> None:
    text = (ROOT / "docs/images/demo.svg").read_text(encoding="utf-8")
    shown = "".join(ElementTree.fromstring(text).itertext()).replace("\xa0", " ")
    until = next(number for number, step in enumerate(STORY) if step.picture)
    for number, step in enumerate(STORY[: until + 1], 1):
        assert f"{number}. {step.title}" in shown, "make demo ARGS='--once --picture docs/images/demo.svg'"
