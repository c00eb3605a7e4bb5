"""Drains on the embedded API server, whose budgets answer as a real one's. Time is fake."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from tessera.inspect.collector import collect_nodes
from tessera.inspect.offline_cluster import OfflineCluster
from tessera.inspect.state import Setup
from tessera.kube.access import Access
from tessera.kube.client import KubeClient
from tessera.kube.resources import NODES, PODS
from tessera.maintenance.cordon import NamedCard
from tessera.maintenance.drain import (
    LATE_BIND,
    Drain,
    DrainOptions,
    DrainResult,
    Holders,
    PodStage,
    drain_document,
    find_holders,
    holders_table,
    result_lines,
)
from tessera_lab.sandbox.api.faults import Drop, Fail
from tessera_lab.sandbox.api.kinds import Json
from tessera_lab.sandbox.api.server import ApiServer, ServerOptions
from tests.support.builders import NOW, PodBuilder, gpu_pod, node
from tests.support.claim_scheduler import claiming, resource_claim
from tests.support.cluster_states import claim_objects, held, state_of
from tests.support.event_loops import in_fake_time

CARD = NamedCard("n1", 0, "n1-0")
OWNER = {"kind": "Job", "name": "train", "uid": "u", "apiVersion": "batch/v1", "controller": True}
LABELS = {"app": "a"}


@dataclass
class Stage:
    """A node with two cards, and the drain of its first."""

    server: ApiServer
    client: KubeClient
    said: list[str] = field(default_factory=list)
    looks: int = 0
    on_look: Callable[[int], object] = lambda _number: None
    """called before each look with its number"""

    async def add(self, pod: PodBuilder, *, owned: bool = True, **spec: Any) -> None:
        body = pod.manifest()
        del body["metadata"]["uid"]
        body["metadata"] |= {"labels": LABELS} | ({"ownerReferences": [OWNER]} if owned else {})
        for each in body["spec"]["containers"]:
            each["image"] = "i"
        body["spec"] |= spec
        await self.client.create(PODS.path("default"), body)
        ready = [{"type": "Ready", "status": "True"}]
        patch = {"status": {"phase": "Running", "conditions": ready}}
        await self.client.patch(PODS.path("default", pod.name, "status"), patch)

    async def budget(self, *, least: int) -> None:
        spec = {"minAvailable": least, "selector": {"matchLabels": LABELS}}
        path = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
        await self.client.create(path, {"metadata": {"name": "keep"}, "spec": spec})

    async def end(self, name: str) -> None:
        """As kubelet does when the containers have stopped."""
        await self.client.delete(PODS.path("default", name), grace_s=0)

    async def end_terminating(self) -> None:
        for pod in (await self.client.list(PODS.path("default"), dict[str, Any])).items:
            if "deletionTimestamp" in pod["metadata"]:
                await self.end(pod["metadata"]["name"])

    async def look(self) -> Holders:
        self.looks += 1
        made = self.on_look(self.looks)
        if asyncio.iscoroutine(made):
            await made
        state, pods = await collect_nodes(self.client, ["n1"], source="s", now=lambda: NOW, setup=Setup())
        return find_holders(OfflineCluster(state), pods, [CARD])

    async def drain(self, *, dry_run: bool = False, **options: Any) -> DrainResult:
        drain = Drain(self.client, self.look, DrainOptions(**options), self.said.append)
        holders = await self.look()
        return await (drain.rehearse(holders) if dry_run else drain.run(holders))

    async def names(self) -> list[str]:
        return [each["metadata"]["name"] for each in (await self.client.list(PODS.path(), dict[str, Any])).items]


@asynccontextmanager
async def stage() -> AsyncIterator[Stage]:
    async with (
        ApiServer(ServerOptions(seed=1, now=lambda: NOW)) as server,
        KubeClient(Access(server.url)) as client,
    ):
        await client.create(NODES.path(), node("n1").gpus(2).manifest())
        yield Stage(server, client)


def holding(name: str, uuid: str = "n1-0") -> PodBuilder:
    return gpu_pod(name, mem=3000).on("n1", f"{uuid},NVIDIA,3000,0:;")


@in_fake_time
async def test_only_the_pods_of_the_card_are_evicted() -> None:
    async with stage() as on:
        for pod in (holding("a"), holding("b"), holding("other", "n1-1")):
            await on.add(pod)
        on.on_look = lambda number: on.end_terminating() if number > 1 else None
        result = await on.drain()
        assert result.is_drained
        assert await on.names() == ["other"]
    assert on.said == [f"default/{name}: {what}" for what in ("evicted", "gone") for name in ("a", "b")]


@in_fake_time
async def test_a_card_without_pods_is_drained_and_what_was_not_waited_for_is_said() -> None:
    async with stage() as on:
        result = await on.drain()
    assert (result.is_drained, on.said) == (True, [])
    lines = [
        line.text for line in (*holders_table(Holders(), width=None), *result_lines([CARD], result, dry_run=False))
    ]
    assert lines == ["no pod holds a slice", "n1/0: drained, 0 pods gone", LATE_BIND]


@in_fake_time
async def test_a_refused_eviction_is_tried_again_when_the_budget_allows_it() -> None:
    async with stage() as on:
        await on.add(holding("a"))
        await on.add(holding("b"))
        await on.budget(least=1)
        replaced = False

        async def replace(number: int) -> None:
            nonlocal replaced
            await on.end_terminating()
            if number > 6 and not replaced:
                replaced = True
                await on.add(holding("c", "n1-1"))

        on.on_look = replace
        result = await on.drain()
        assert result.is_drained
        assert await on.names() == ["c"]
    assert "default/b: The disruption budget keep needs 1 healthy pods and has 1 currently" in on.said
    assert on.said.count("default/b: evicted") == 1


@in_fake_time
async def test_what_a_budget_keeps_until_the_end_is_left_and_said() -> None:
    async with stage() as on:
        await on.add(holding("a"))
        await on.budget(least=1)
        before = asyncio.get_running_loop().time()
        result = await on.drain(timeout_s=30.0)
        assert asyncio.get_running_loop().time() - before == pytest.approx(30.0, abs=0.5)
        assert await on.names() == ["a"]
        tries = [each for each in on.server.journal if each.path.endswith("/eviction")]
    assert not result.is_drained
    [left] = result.left
    assert (left.stage, left.reason) == (
        PodStage.WAITS,
        "The disruption budget keep needs 1 healthy pods and has 1 currently",
    )
    assert 3 <= len(tries) <= 8, "about one in five seconds"
    lines = [line.text for line in result_lines([CARD], result, dry_run=False)]
    assert lines[0] == "n1/0: not drained, 1 pod left"
    assert "default/a (The disruption budget keep" in lines[1]
    assert drain_document([CARD], result, dry_run=False)["pods"][0]["stage"] == "Waits"


@in_fake_time
async def test_a_dry_run_asks_and_changes_nothing() -> None:
    async with stage() as on:
        await on.add(holding("a"))
        assert (await on.drain(dry_run=True)).is_drained
        await on.budget(least=1)
        result = await on.drain(dry_run=True)
        assert not result.is_drained
        [kept] = (await on.client.list(PODS.path(), dict[str, Any])).items
        assert "deletionTimestamp" not in kept["metadata"]


@in_fake_time
@pytest.mark.parametrize(
    ("spec", "owned", "option", "says"),
    [
        ({}, False, "force", "it is a bare pod"),
        ({"volumes": [{"name": "v", "emptyDir": {}}]}, True, "delete_emptydir_data", "it has an emptyDir"),
    ],
)
async def test_a_pod_that_needs_an_option_keeps_all_pods(spec: Json, owned: bool, option: str, says: str) -> None:
    async with stage() as on:
        await on.add(holding("a"))
        await on.add(holding("special"), owned=owned, **spec)
        result = await on.drain()
        assert [each.pod.name for each in result.left] == ["a", "special"]
        assert says in result.left[1].reason
        assert not [each for each in on.server.journal if each.path.endswith("/eviction")]
        on.on_look = lambda number: on.end_terminating() if number > 2 else None
        assert (await on.drain(**{option: True})).is_drained


@in_fake_time
async def test_a_dry_run_promises_no_eviction_where_a_pod_needs_an_option() -> None:
    async with stage() as on:
        await on.add(holding("a"))
        await on.add(holding("bare"), owned=False)
        for dry_run in (True, False):
            result = await on.drain(dry_run=dry_run)
            assert {each.pod.name: each.reason for each in result.left} == {
                "a": "not evicted as long as others need an option",
                "bare": "it is a bare pod, which nothing creates again (--force evicts it)",
            }


@in_fake_time
async def test_a_pod_of_a_file_on_the_node_cannot_be_evicted() -> None:
    async with stage() as on:
        await on.add(holding("static").annotate(("kubernetes.io/config.mirror", "hash")))
        [left] = (await on.drain(force=True, delete_emptydir_data=True)).left
    assert "a file of its node defines it" in left.reason


@in_fake_time
async def test_a_pod_that_ends_already_is_waited_for_and_not_evicted_again() -> None:
    async with stage() as on:
        await on.add(holding("a"), owned=False)
        await on.client.delete(PODS.path("default", "a"))
        on.on_look = lambda number: on.end_terminating() if number > 2 else None
        assert (await on.drain()).is_drained
        assert not [each for each in on.server.journal if each.path.endswith("/eviction")]
    assert on.said == ["default/a: it is being deleted already", "default/a: gone"]


@in_fake_time
async def test_a_pod_that_was_bound_just_before_the_cordon_is_evicted_too() -> None:
    async with stage() as on:
        await on.add(holding("a"))

        async def bind_late(number: int) -> None:
            if number == 2:
                await on.add(holding("late"))
            if number > 1:
                await on.end_terminating()

        on.on_look = bind_late
        assert (await on.drain()).is_drained
        assert await on.names() == []
    assert "default/late: evicted" in on.said


@in_fake_time
async def test_a_pod_that_was_placed_before_the_cordon_and_is_bound_after_the_first_look_is_evicted_too() -> None:
    async with stage() as on:

        async def bind_late(number: int) -> None:
            if number == 4:
                await on.add(holding("late"))
            await on.end_terminating()

        on.on_look = bind_late
        assert (await on.drain()).is_drained
        assert await on.names() == []
    assert on.said == ["default/late: evicted", "default/late: gone"]


@in_fake_time
async def test_a_later_pod_of_the_same_name_is_not_evicted_for_the_earlier_one() -> None:
    async with stage() as on:
        await on.add(holding("a"))
        holders = await on.look()
        await on.end("a")
        await on.add(holding("a", "n1-1"))
        drain = Drain(on.client, on.look, DrainOptions(), on.said.append)
        assert (await drain.run(holders)).is_drained
        assert await on.names() == ["a"]


@in_fake_time
async def test_faults_of_the_apiserver_are_waited_out() -> None:
    async with stage() as on:
        await on.add(holding("a"))
        on.server.faults.next(Fail(503), method="POST", path="/eviction")
        on.server.faults.next(Drop(), method="POST", path="/eviction")

        def fail(number: int) -> object:
            if number in (3, 4):
                on.server.faults.next(Fail(500), method="GET", path="/nodes/n1")
            return on.end_terminating()

        on.on_look = fail
        assert (await on.drain()).is_drained
    assert any(line.startswith("the nodes cannot be read: 500") for line in on.said)


@in_fake_time
async def test_without_the_right_to_evict_the_drain_ends_at_once() -> None:
    async with stage() as on:
        await on.add(holding("a"))
        on.server.faults.next(Fail(403, message="cannot create pods/eviction"), method="POST", path="/eviction")
        before = asyncio.get_running_loop().time()
        [left] = (await on.drain()).left
        assert asyncio.get_running_loop().time() - before < 1
    assert (left.stage, left.reason) == (PodStage.REFUSED, "cannot create pods/eviction")


@in_fake_time
async def test_pods_whose_devices_are_unknown_are_doubts_and_the_card_is_not_drained() -> None:
    async with stage() as on:
        await on.add(gpu_pod("foreign", mem=1).on("n1"))
        await on.add(gpu_pod("broken", mem=1).on("n1", "G,NVIDIA:;"))
        result = await on.drain()
    assert (result.is_drained, result.left) == (False, [])
    assert [doubt.partition(":")[0] for doubt in result.doubts] == ["default/broken", "default/foreign"]
    lines = [line.text for line in holders_table(Holders((), result.doubts), width=None)]
    assert lines[1].startswith("may hold a slice: default/broken: ")


@in_fake_time
async def test_a_pod_counts_on_a_card_that_its_node_does_not_register_any_more() -> None:
    async with stage() as on:
        await on.add(holding("a"))
        registered = node("n1").gpu("n1-1").manifest()["metadata"]["annotations"]
        await on.client.patch(NODES.path(name="n1"), {"metadata": {"annotations": registered}})
        [pod] = (await on.look()).pods
    assert (pod.text, pod.cards, pod.controller) == ("default/a", ("n1/0",), "Job/train")


@in_fake_time
async def test_a_pod_that_one_look_did_not_find_is_not_gone_when_the_next_one_does() -> None:
    async with stage() as on:
        for name in ("a", "b"):
            await on.add(holding(name))
        first = await on.look()
        a, b = first.pods
        looks = [Holders((a,)), Holders((b,)), Holders()]

        async def look() -> Holders:
            return looks.pop(0) if looks else Holders()

        result = await Drain(on.client, look, DrainOptions(), on.said.append).run(first)
    assert result.is_drained
    assert looks == []
    assert on.said.count("default/b: holds") == 1


async def test_pods_that_hold_a_card_through_claims_are_holders_and_a_claim_without_pods_is_a_doubt() -> None:
    users = [claiming(PodBuilder(name).on("n1"), "shared") for name in ("one", "other")]
    both = claiming(holding("classic"), "own")
    claims = [
        held(resource_claim("shared"), "n1-0", *users),
        held(resource_claim("own"), "n1-0", both, memory=1000),
        held(resource_claim("idle"), "n1-0"),
        held(resource_claim("elsewhere"), "n1-1", users[0]),
    ]
    nodes, pods = [node("n1").gpus(2)], [*users, both]
    cluster = OfflineCluster(state_of(nodes, pods, dra=claim_objects(nodes, claims)))
    found = find_holders(cluster, [each.manifest() for each in pods], [CARD])
    assert [(each.name, each.cards, each.memory_mib) for each in found.pods] == [
        ("classic", (CARD.text,), 4000),
        ("one", (CARD.text,), 4096),
        ("other", (CARD.text,), 4096),
    ]
    assert found.doubts == ("ResourceClaim default/idle holds it, but no pod of the node uses it",)
