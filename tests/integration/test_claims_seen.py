"""Claims on the demo's cluster, as its users see them: live page, the scheduler's own page, explain, top, doctor."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from tessera.inspect.checks import Severity
from tessera.inspect.checks.ledger import check_claims
from tessera.inspect.collector import collect
from tessera.inspect.dashboard.live_source import LiveSource, follow_cluster
from tessera.inspect.dashboard.nodes import CLAIM, render_node
from tessera.inspect.dashboard.questions import try_manifests
from tessera.inspect.dashboard.source import PageSource
from tessera.inspect.explanation import PodVerdict, explain
from tessera.inspect.installation import Installation
from tessera.inspect.offline_cluster import OfflineCluster
from tessera.inspect.render.explanation import explanation_lines
from tessera.inspect.state import ClusterState, Setup
from tessera.inspect.usage import card_usage
from tessera.kube.access import load_access
from tessera.kube.client import KubeClient
from tessera_lab.demo import story
from tessera_lab.demo.cluster import DemoCluster, demo_cluster
from tessera_lab.sandbox.api.faults import Fail

US = "tests"
MANIFEST = yaml.safe_dump_all([story.CLAIM_TEMPLATE, {**story.CLAIMANT, "metadata": {"name": "more"}}])


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[DemoCluster]:
    async with demo_cluster(tmp_path) as running:
        yield running


@asynccontextmanager
async def reader(cluster: DemoCluster) -> AsyncIterator[KubeClient]:
    access = load_access(kubeconfig=str(cluster.plane.kubeconfig), environ={})
    async with KubeClient(access, user_agent=US) as client:
        yield client


@asynccontextmanager
async def followed(cluster: DemoCluster) -> AsyncIterator[LiveSource]:
    async with (
        reader(cluster) as client,
        follow_cluster(client, name="demo", namespace="default", override=lambda setup: setup) as source,
    ):
        yield source


def shown(source: PageSource, node: str) -> list[Any]:
    """The pods of a node as the page has them."""
    document = render_node(source, node)
    assert document is not None
    return list(json.loads(document.body)["pods"].values())


def _none_waits(source: PageSource) -> bool:
    return not list(source.waiting())


async def no_pause(_seconds: float) -> None:
    """Questions may take all the time."""


async def test_claims_are_seen_from_the_wait_for_a_template_to_the_end(cluster: DemoCluster) -> None:
    async with followed(cluster) as live:
        own = cluster.page_source()
        await cluster.apply({**story.CLAIMANT, "spec": {**story.CLAIMANT["spec"], "schedulerName": "hami-scheduler"}})
        await cluster.until(lambda: [pod.name for pod in live.waiting()] == ["embed"], "the wait")
        (waits,) = live.waiting()
        assert waits.problem == "the claim gpu of template small-gpu does not exist yet"
        await cluster.apply(story.CLAIM_TEMPLATE)
        await cluster.until(lambda: cluster.plane.phase("default", "embed") == "Running", "the pod")
        await cluster.until(lambda: live.view.ledger.state() == cluster.ledger.state(), "the same ledger")
        [name] = [found.claim.metadata.name for found in live.view.claims()]
        for source in (live, own):
            await cluster.until(partial(_none_waits, source), "the end of the wait")
            assert [pod[:4] for pod in shown(source, "l4-1")] == [["default", "embed", CLAIM, name]]
            answer = await source.explain("default", "embed")
            assert answer is not None
            assert any(f"claim {name}: card" in line.text for line in explanation_lines(answer.found))
            tried = await try_manifests(source, MANIFEST, no_pause)
            assert [(one["name"], one["node"], one["fits"]) for one in tried["pods"]] == [("more", "l4-1", True)]
            assert tried["more"] == 19  # ten slots on each of two cards, less that of `embed`
        await cluster.delete_pod("default", "embed")
        await cluster.until(lambda: not live.view.ledger.pods(), "the cards to be free")


async def test_commands_answer_about_claims_of_a_live_cluster(cluster: DemoCluster) -> None:
    await cluster.apply(story.CLAIM_TEMPLATE)
    await cluster.apply(story.CLAIMANT)
    await cluster.until(lambda: cluster.plane.phase("default", "embed") == "Running", "the pod")
    async with reader(cluster) as client:
        found = OfflineCluster(await collect(client, source="demo", now=time.time))
        assert found.ledger.state()["pods"] == cluster.ledger.state()["pods"]
        explained = explain(found, "default/embed")
        assert (explained.status, explained.node) == (PodVerdict.PLACED, "l4-1")
        [holder] = [one for card in card_usage(found) for one in card.pods]
        assert (holder.name, holder.memory_mib, bool(holder.claim)) == ("embed", 2000, True)
        assert all(each.severity is Severity.FINE for each in check_claims(found))


def with_dra(_setup: Setup) -> Setup:
    return Setup(flags={"dra": "true"})


@pytest.mark.parametrize(
    ("faults", "namespace", "unseen"),
    [
        ([(403, "/resourceclaims")], None, "ResourceClaims (you may not list them): cards that they hold look free"),
        ([(403, "^/apis/resource.k8s.io/v1/resourceclaims")], "default", "ResourceClaims outside namespace default"),
        ([(404, "^/apis/resource.k8s.io")], None, "ResourceClaims: the cluster does not serve"),
    ],
)
async def test_what_may_not_be_read_of_claims_is_said_with_what_it_means(
    cluster: DemoCluster, faults: list[tuple[int, str]], namespace: str | None, unseen: str
) -> None:
    for status, path in faults:
        cluster.plane.server.faults.next(Fail(status), method="GET", path=path, agent=US, times=1000)
    async with reader(cluster) as client:
        state: ClusterState = await collect(
            client,
            source="demo",
            now=time.time,
            namespace=namespace,
            installation=Installation(),
            override=with_dra,
        )
        assert any(text.startswith(unseen) for text in state.unseen)
        assert state.nodes
        follow = follow_cluster(client, name="demo", namespace="default", override=with_dra)
        async with follow as source:
            assert unseen.partition(" (")[0].partition(":")[0] in source.problem
