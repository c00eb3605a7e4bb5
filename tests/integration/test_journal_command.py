"""The journal of a running scheduler, through the apiserver and from its own address."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from tessera.inspect import installation, journal_source
from tessera.inspect.installation import FindAddress, Installation, at_url, behind_apiserver
from tessera.inspect.journal_source import SchedulerSource
from tessera.inspect.state import InspectionError
from tessera.kube.access import Access, load_access
from tessera.kube.backoff import Backoff
from tessera.kube.client import KubeClient
from tessera.kube.resources import LEASES, NAMESPACES, PODS
from tessera.wire.journal import Placed, Record, Released, Start, decode_record
from tessera_lab.demo.cluster import SERVICE
from tessera_lab.sandbox.api.faults import Fail
from tessera_lab.sandbox.control_plane import ControlPlane
from tessera_lab.sandbox.nodes.node import SimulatedNode, gpu_cards
from tests.support.journals import decide_again
from tests.support.product import Product, gpu_pod, product

NAMESPACE = "tessera-system"


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Product]:
    async with product([SimulatedNode("n1", gpu_cards("n1", 2))], folder) as cluster:
        cluster.plane.server.cluster.services[SERVICE] = cluster.scheduler.extender_url
        yield cluster


@asynccontextmanager
async def source_of(
    access: Access, address: Callable[[KubeClient], FindAddress], notes: list[str] | None = None
) -> AsyncIterator[SchedulerSource]:
    async with KubeClient(access) as client:
        yield SchedulerSource(client, address(client), on_note=(notes if notes is not None else []).append)


def access_of(cluster: Product) -> Access:
    return load_access(kubeconfig=str(cluster.plane.kubeconfig), environ={})


def placed(records: list[Record]) -> list[str]:
    return [record.pod.name for record in records if isinstance(record, Placed)]


async def test_the_whole_journal_is_read_through_the_apiserver_and_from_its_address(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster:
        await cluster.plane.create_pod(gpu_pod("p", gpu=1, mem=1000))
        await cluster.running_pods("p")
        await cluster.at_rest()
        url = cluster.scheduler.extender_url
        read = []
        for access, address in ((access_of(cluster), behind_apiserver), (Access(url), lambda _client: at_url(url))):
            async with source_of(access, address) as source:
                read.append([record async for record in source.records()])
        assert read[0] == read[1]
        assert placed(read[0]) == ["p"]
        counts, difference = decide_again(read[0])
        assert (counts.checked, difference) == (1, None)


@asynccontextmanager
async def following(cluster: Product, notes: list[str]) -> AsyncIterator[list[Record]]:
    """The records so far."""
    records: list[Record] = []

    async def follow() -> None:
        async with source_of(access_of(cluster), behind_apiserver, notes) as source:
            async for record in source.records(follow=True):
                records.append(record)

    task = asyncio.create_task(follow())
    try:
        yield records
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_source, "RETRY", Backoff(initial=0.02, cap=0.02))


@pytest.mark.usefixtures("impatient")
async def test_following_goes_on_after_a_restart_of_the_scheduler_with_a_note(tmp_path: Path) -> None:
    notes: list[str] = []
    async with running(tmp_path) as cluster, following(cluster, notes) as records:
        await cluster.plane.create_pod(gpu_pod("before", gpu=1, mem=1000))
        await cluster.until(lambda: placed(records) == ["before"], what="the first placement")
        # A pod that is not bound yet is unknown to the next scheduler, which has nothing to release then.
        await cluster.running_pods("before")
        await cluster.restart_scheduler()
        await cluster.plane.create_pod(gpu_pod("after", gpu=1, mem=1000))
        await cluster.until(lambda: placed(records) == ["before", "after"], what="the second placement")
        await cluster.plane.delete_pod("default", "before")
        await cluster.until(lambda: any(isinstance(one, Released) for one in records), what="the release")
        assert len({record.identity for record in records if isinstance(record, Start)}) == 2
        assert any("another process of the scheduler from here on" in note for note in notes)
        counts, difference = decide_again(records)
        assert (counts.checked, counts.processes, difference) == (2, 2, None)


@pytest.mark.usefixtures("impatient")
async def test_a_connection_that_ends_is_resumed_where_it_ended(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster, following(cluster, []) as records:
        await cluster.plane.create_pod(gpu_pod("before", gpu=1, mem=1000))
        await cluster.until(lambda: placed(records) == ["before"], what="the first placement")
        for connection in tuple(cluster.running.listeners["extender"]._state.connections):
            connection.abort()
        await cluster.plane.create_pod(gpu_pod("after", gpu=1, mem=1000))
        await cluster.until(lambda: placed(records) == ["before", "after"], what="the second placement")
        assert sum(isinstance(record, Start) for record in records) == 1
        assert decide_again(records)[1] is None


async def test_the_number_of_another_process_means_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster, KubeClient(Access(cluster.scheduler.extender_url)) as client:

        async def first(**query: str) -> Record:
            asked = {"since": "1", "snapshot": "false", **query}
            async with aclosing(client.stream_lines("/journal", query=asked, duration=10)) as lines:
                return decode_record(await anext(lines))

        assert not isinstance(await first(), Start)
        assert not isinstance(await first(process=cluster.service.journal.identity), Start)
        assert isinstance(await first(process="another"), Start)


def scheduler_pod(name: str) -> dict[str, Any]:
    labels = {"app.kubernetes.io/component": "tessera-scheduler"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels},
        "spec": {"nodeName": "control-plane", "containers": [{"name": "tessera", "image": "x"}]},
        "status": {"phase": "Running"},
    }


async def test_the_replica_that_decides_is_asked_and_named_where_it_cannot_be(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster:
        api = cluster.plane.client
        await api.create(NAMESPACES.path(), {"metadata": {"name": NAMESPACE}})
        for name in ("tessera-a", "tessera-b"):
            made = scheduler_pod(name)
            await api.create(PODS.path(NAMESPACE), made)
            await api.patch(PODS.path(NAMESPACE, name, "status"), {"status": made["status"]})
        lease = {"metadata": {"name": "hami-scheduler"}, "spec": {"holderIdentity": "tessera-b_1234"}}
        await api.create(LEASES.path(NAMESPACE), lease)
        async with source_of(access_of(cluster), behind_apiserver) as source:
            with pytest.raises(InspectionError) as refused:
                _ = [record async for record in source.records()]
        assert "pod tessera-system/tessera-b" in str(refused.value)
        assert "kubectl --namespace tessera-system port-forward pod/tessera-b 8080" in str(refused.value)


def installed(*flags: str, vouched_in: str) -> Installation:
    container = {"name": "tessera", "image": "x", "args": ["scheduler", *flags]}
    webhook = {"name": "vgpu.hami.io", "clientConfig": {"service": {"namespace": vouched_in, "name": "s"}}}
    return Installation(
        namespace=NAMESPACE,
        name="tessera-scheduler",
        webhooks=({"metadata": {"name": "w"}, "webhooks": [webhook]},),
        deployment={"spec": {"template": {"spec": {"containers": [container]}}}},
    )


@pytest.mark.parametrize(
    ("found", "path", "header"),
    [
        (installed("--dashboard-bind=:8443", vouched_in=NAMESPACE), "https:tessera-a:8443", "X-Tessera-Token"),
        (installed("--extender-bind=127.0.0.1:99", vouched_in=NAMESPACE), "tessera-a:99", ""),
        # A tenant can have a Deployment of that name, and must not get the token.
        (installed("--dashboard-bind=:8443", vouched_in="elsewhere"), "tessera-a:8080", ""),
    ],
)
async def test_a_scheduler_with_a_dashboard_is_asked_there_with_the_users_token(
    monkeypatch: pytest.MonkeyPatch, found: Installation, path: str, header: str
) -> None:
    async def find(_client: KubeClient) -> Installation:
        return found

    monkeypatch.setattr(installation, "find_installation", find)
    async with ControlPlane(nodes=[]) as plane:
        await plane.client.create(NAMESPACES.path(), {"metadata": {"name": NAMESPACE}})
        made = scheduler_pod("tessera-a")
        await plane.client.create(PODS.path(NAMESPACE), made)
        await plane.client.patch(PODS.path(NAMESPACE, "tessera-a", "status"), {"status": made["status"]})
        address = await behind_apiserver(plane.client)()
    assert unquote(address.path) == f"/api/v1/namespaces/{NAMESPACE}/pods/{path}/proxy/journal"
    assert address.token_header == header
    assert "port-forward pod/tessera-a" in address.help


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (403, "you may not read the journal of Service tessera-system/tessera-scheduler"),
        (503, "cannot read the journal of Service tessera-system/tessera-scheduler"),
    ],
)
async def test_a_refusal_says_what_to_do(tmp_path: Path, status: int, words: str) -> None:
    async with running(tmp_path) as cluster:
        cluster.plane.server.faults.next(Fail(status), path="/proxy/journal")
        async with source_of(access_of(cluster), behind_apiserver) as source:
            with pytest.raises(InspectionError, match=words) as refused:
                _ = [record async for record in source.records()]
        assert "port-forward deploy/tessera-scheduler 8080" in str(refused.value)


async def test_a_server_without_a_journal_is_told_from_a_missing_scheduler(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster:
        url = f"http://{cluster.scheduler.settings.listeners.metrics}"
        async with source_of(Access(url), lambda _client: at_url(url)) as source:
            with pytest.raises(InspectionError, match=f"{url} has no journal"):
                _ = [record async for record in source.records()]


async def test_following_what_was_never_there_fails_at_once(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster:
        cluster.plane.server.cluster.services.clear()
        async with source_of(access_of(cluster), behind_apiserver) as source:
            with pytest.raises(InspectionError, match="no scheduler of Tessera was found in this cluster"):
                _ = [record async for record in source.records(follow=True)]
