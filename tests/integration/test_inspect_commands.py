"""The inspect commands beside the running scheduler: both must always agree."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog
from click.testing import CliRunner

from tessera.cli import main, top
from tessera.cli.sources import ClusterSource
from tessera.inspect.anonymize import anonymize
from tessera.inspect.checks import Finding, Severity
from tessera.inspect.collector import collect
from tessera.inspect.diagnosis import diagnose
from tessera.inspect.explanation import PodVerdict, explain
from tessera.inspect.installation import find_installation
from tessera.inspect.manifests import Manifest
from tessera.inspect.offline_cluster import OfflineCluster
from tessera.inspect.simulation import simulate
from tessera.inspect.snapshots import decode_snapshot, encode_snapshot
from tessera.inspect.state import ClusterState, InspectionError
from tessera.inspect.usage import UsageFilter
from tessera.inspect.verdicts import FitsNowhere
from tessera.kube.access import load_access
from tessera.kube.client import KubeClient
from tessera.kube.resources import CONFIG_MAPS, MUTATING_WEBHOOKS, NAMESPACES, RESOURCE_QUOTAS
from tessera_lab.sandbox.api.faults import Fail
from tessera_lab.sandbox.nodes.node import SimulatedNode, gpu_cards
from tests.support.commands import started
from tests.support.product import Product, container, gpu_pod, pod, product, sidecar

US = "tessera-inspecting"

Json = dict[str, Any]


def nodes() -> list[SimulatedNode]:
    return [
        SimulatedNode("a100", gpu_cards("a100", 4, linked=2, numa_nodes=2)),
        SimulatedNode("l4", gpu_cards("l4", 2, model="NVIDIA L4", memory=23034)),
        SimulatedNode("few-slots", gpu_cards("few-slots", 1, slots=2)),
        SimulatedNode("tainted", gpu_cards("tainted", 8), taints=[{"key": "k", "effect": "NoSchedule"}]),
        SimulatedNode("plain"),
    ]


@asynccontextmanager
async def client_of(cluster: Product) -> AsyncIterator[KubeClient]:
    access = load_access(kubeconfig=str(cluster.plane.kubeconfig), environ={})
    async with KubeClient(access, user_agent=US) as client:
        yield client


async def state_of(cluster: Product) -> ClusterState:
    async with client_of(cluster) as client:
        return await collect(client, source="sandbox", now=time.time)


async def diagnosed(cluster: Product) -> list[Finding]:
    async with client_of(cluster) as client:
        installation = await find_installation(client)
        world = OfflineCluster(await collect(client, source="sandbox", now=time.time, installation=installation))
        return await diagnose(client, installation, world, namespace="default")


async def told(cluster: Product, name: str, texts: set[str]) -> None:
    """Wait until the scheduler's events say all this."""
    await cluster.plane.wait_for(
        lambda: texts <= {event["message"] for event in cluster.plane.events("default", name)},
        what=f"events about {name} that say {texts}",
    )


PODS: list[Json] = [
    gpu_pod("one", gpu=1, mem=20000, cores=20),
    gpu_pod("two", gpu=2, mem=40000, annotations={"hami.io/gpu-scheduler-policy": "topology-aware"}),
    gpu_pod("whole", gpu=1),
    gpu_pod("spread", gpu=1, mem=1000, annotations={"hami.io/node-scheduler-policy": "spread"}),
    pod(
        "several",
        container("a", gpu=1, mem=3000),
        container("b", gpu=1, mem=5000),
        init=[container("i", gpu=1, mem=9000)],
    ),
    pod("sidecars", container("a", gpu=2, mem=100), init=[sidecar("s", gpu=1, mem=200)]),
    gpu_pod("model", gpu=1, mem=9000, annotations={"nvidia.com/use-gputype": "L4"}),
    gpu_pod("greedy", gpu=1, mem=81921),
    gpu_pod("many", gpu=5, mem=100),
    gpu_pod("no-such-model", gpu=1, mem=100, annotations={"nvidia.com/use-gputype": "H100"}),
    gpu_pod("numa", gpu=3, mem=100, annotations={"nvidia.com/numa-bind": "true"}),
    gpu_pod("mutex", gpu=4, mem=100, annotations={"hami.io/gpu-scheduler-policy": "mutex"}),
]
"""one after the other: some fit, some do not"""


async def test_simulate_and_explain_say_what_the_scheduler_does(tmp_path: Path) -> None:
    async with product(nodes(), tmp_path) as cluster:
        for manifest in PODS:
            name = manifest["metadata"]["name"]
            predicted = simulate(OfflineCluster(await state_of(cluster)), Manifest("default", name, manifest, 1))
            await cluster.plane.create_pod(manifest)
            if predicted.all_fit:
                await cluster.running_pods(name)
                found = explain(OfflineCluster(await state_of(cluster)), f"default/{name}")
                assert (found.status, found.node) == (PodVerdict.PLACED, predicted.placed[0].node), name
                assert found.slices == predicted.placed[0].slices, name
                continue
            message = await cluster.refused(name)
            found = explain(OfflineCluster(await state_of(cluster)), f"default/{name}", cards=True)
            assert found.status is PodVerdict.REFUSED, name
            assert isinstance(found.verdict, FitsNowhere)
            assert predicted.stop is not None
            assert predicted.stop.verdict is not None
            assert predicted.stop.verdict.groups == found.verdict.groups
            for group in (*found.verdict.groups, *found.kept_off):
                assert f"{len(group.nodes)} {group.reason}" in message, name
            assert found.said == message
            await told(cluster, name, {found.verdict.event})


async def test_a_snapshot_hashed_or_not_answers_as_the_cluster_does(tmp_path: Path) -> None:
    async with product(nodes(), tmp_path) as cluster:
        for manifest in PODS[:4]:
            await cluster.plane.create_pod(manifest)
        await cluster.running_pods(*(manifest["metadata"]["name"] for manifest in PODS[:4]))
        await cluster.plane.create_pod(gpu_pod("greedy", gpu=1, mem=81921))
        await cluster.refused("greedy")
        state = await state_of(cluster)
    asked = Manifest("default", "p", gpu_pod("p", gpu=1, mem=7000), 1)
    live = simulate(OfflineCluster(state), asked)
    again = decode_snapshot(encode_snapshot(state), file="s.json")
    assert simulate(OfflineCluster(again), asked) == live
    assert explain(OfflineCluster(again), "default/greedy") == explain(OfflineCluster(state), "default/greedy")
    hashed = simulate(OfflineCluster(anonymize(state, b"key")), asked)
    assert hashed.fits_in_all == live.fits_in_all
    assert [one.card for one in hashed.placed[0].slices] == [one.card for one in live.placed[0].slices]


async def test_the_configuration_of_the_cluster_decides(tmp_path: Path) -> None:
    async with product(nodes(), tmp_path) as cluster:
        text = "nvidia: {resourceCountName: example.com/gpu, resourceMemoryName: example.com/mem}\n"
        body = {
            "metadata": {"name": "tessera-scheduler-device", "namespace": "kube-system"},
            "data": {"device-config.yaml": text},
        }
        await cluster.plane.client.create(CONFIG_MAPS.path("kube-system"), body)
        state = await state_of(cluster)
    assert state.setup.device_config_from == "ConfigMap kube-system/tessera-scheduler-device"
    assert OfflineCluster(state).vendors["NVIDIA"].names.count == "example.com/gpu"


async def test_who_may_not_read_quotas_and_configuration_is_told_what_is_missing(tmp_path: Path) -> None:
    async with product(nodes(), tmp_path) as cluster:
        for path in ("/resourcequotas", "/configmaps", "/mutatingwebhookconfigurations"):
            cluster.plane.server.faults.next(Fail(403), method="GET", path=path, agent=US, times=100)
        state = await state_of(cluster)
        findings = await diagnosed(cluster)
        assert any("quotas" in text for text in state.unseen)
        assert any("ConfigMap" in text for text in state.unseen)
        assert not [each for each in findings if each.severity is Severity.BROKEN], findings
        assert any(each.severity is Severity.UNSEEN and each.area == "webhook" for each in findings)
        cluster.plane.server.faults.next(Fail(403), method="GET", path="/nodes", agent=US)
        with pytest.raises(InspectionError, match="you may not list nodes"):
            await state_of(cluster)


async def answered(cluster: Product, *arguments: str) -> tuple[int, str]:
    """A command in a thread of this process, which is much cheaper than a process of its own."""
    before = structlog.get_config()
    given = [*arguments, "--kubeconfig", str(cluster.plane.kubeconfig)]
    try:
        found = await asyncio.to_thread(CliRunner().invoke, main, given, catch_exceptions=False)
    finally:
        structlog.configure(**before)
    return found.exit_code, found.output


@asynccontextmanager
async def as_tenant(cluster: Product, *, may_list_nodes: bool) -> AsyncIterator[None]:
    """The commands may read the namespace default only, and nodes perhaps."""
    everywhere = ("/v1/pods$", "/v1/resourcequotas$", "/configmaps", "/mutatingwebhookconfigurations", "/deployments")
    for path in (*everywhere, *(() if may_list_nodes else ("/nodes",))):
        cluster.plane.server.faults.next(Fail(403), method="GET", path=path, agent="^tessera-cli/", times=99)
    yield
    cluster.plane.server.faults.clear()


async def test_a_tenant_gets_answers_from_the_own_namespace_and_is_told_what_is_left_out(tmp_path: Path) -> None:
    async with product(nodes(), tmp_path) as cluster:
        await cluster.plane.client.create(NAMESPACES.path(), {"metadata": {"name": "other"}})
        await cluster.plane.create_pod(gpu_pod("mine", gpu=1, mem=20000))
        await cluster.plane.create_pod(gpu_pod("theirs", gpu=1, mem=30000, namespace="other"))
        await cluster.plane.create_pod(gpu_pod("greedy", gpu=1, mem=81921))
        await cluster.running_pods("mine")
        await cluster.refused("greedy")
        file = tmp_path / "p.yaml"
        file.write_text(json.dumps(gpu_pod("q", gpu=1, mem=3000)))
        left_out = "not readable: pods outside namespace default (you may not list them): cards that they hold look"
        async with as_tenant(cluster, may_list_nodes=True):
            for arguments, expected, says in (
                (("explain", "mine"), 0, "default/mine: placed on"),
                (("explain", "default/greedy"), 1, "you may not list the pods of other namespaces"),
                (("top", "pods"), 0, "mine"),
                (("simulate", "pod", "-f", str(file)), 0, "default/q: would go to"),
            ):
                code, text = await answered(cluster, *arguments)
                assert code == expected, text
                assert says in text
                assert left_out in text
                assert "theirs" not in text
        async with as_tenant(cluster, may_list_nodes=False):
            code, text = await answered(cluster, "explain", "mine")
            assert (code, "container main: card" in text) == (0, True), text
            code, text = await answered(cluster, "explain", "greedy")
            assert code == 2, text
            assert "you may not list nodes, so nothing says where it would fit" in text
            assert "CardInsufficientMemory" in text, "kube-scheduler's last message is there"
            code, text = await answered(cluster, "top", "pods", "-o", "json")
            [held] = json.loads(text)["items"]
            assert (code, held["name"], held["memoryMib"]) == (0, "mine", 20000), text
            for command in (["top"], ["simulate", "pod", "-f", str(file)]):
                code, text = await answered(cluster, *command)
                assert code == 2, text
                assert "Ask for the ClusterRole tessera-reader" in text


async def test_a_doctor_without_the_right_to_list_nodes_still_tries_the_webhook(tmp_path: Path) -> None:
    async with product(nodes(), tmp_path) as cluster:
        cluster.plane.server.faults.next(Fail(403), method="GET", path="/nodes", agent="^tessera-cli/", times=2)
        code, text = await run(cluster, "doctor")
        assert code == 0, text
        assert "unseen   cluster: you may not list nodes" in text
        assert "fine     webhook: it answers" in text
        for path in ("/nodes", "/mutatingwebhookconfigurations", "/pods"):
            cluster.plane.server.faults.next(Fail(403), path=path, agent="^tessera-cli/", times=9)
        cluster.plane.server.faults.next(Fail(403), path="accessreviews", agent="^tessera-cli/", times=99)
        code, text = await run(cluster, "doctor")
        assert code == 2, text
        assert "nothing could be checked" in text


async def test_a_good_installation_has_no_findings_and_the_trial_leaves_nothing_behind(tmp_path: Path) -> None:
    async with product(nodes(), tmp_path) as cluster:
        findings = await diagnosed(cluster)
        assert not [each for each in findings if each.severity in (Severity.BROKEN, Severity.WARNING)], findings
        assert any("it answers" in each.what for each in findings)
        assert cluster.plane.pods() == []
        assert {seen.method for seen in cluster.requests(US)} <= {"GET", "POST"}


async def test_a_webhook_that_is_gone_or_does_not_answer_is_found(tmp_path: Path) -> None:
    async with product(nodes(), tmp_path) as cluster:
        await cluster.stop_scheduler()
        [dead] = [each for each in await diagnosed(cluster) if each.severity is Severity.BROKEN]
        assert "the apiserver cannot call it" in dead.what
        await cluster.plane.client.delete(MUTATING_WEBHOOKS.path(name="tessera-webhook"))
        [gone] = [each for each in await diagnosed(cluster) if each.severity is Severity.BROKEN]
        assert "no MutatingWebhookConfiguration" in gone.what


async def test_a_plugin_that_has_gone_is_found(tmp_path: Path) -> None:
    async with product(nodes(), tmp_path) as cluster:
        await cluster.plane.nodes["a100"].stop_plugin()
        [found] = [each for each in await diagnosed(cluster) if each.severity is Severity.BROKEN]
        assert "a100: the plugin of NVIDIA is gone" in found.what


async def run(cluster: Product, *arguments: str) -> tuple[int, str]:
    async with started(*arguments, "--kubeconfig", str(cluster.plane.kubeconfig)) as command:
        code = await command.end()
    return code, command.output + command.last_words()


async def test_the_commands_themselves_work_against_a_cluster(tmp_path: Path) -> None:
    async with product(nodes(), tmp_path) as cluster:
        quota = {"metadata": {"name": "q"}, "spec": {"hard": {"limits.nvidia.com/gpumem": "90000"}}}
        await cluster.plane.client.create(RESOURCE_QUOTAS.path("default"), quota)
        await cluster.plane.create_pod(gpu_pod("p", gpu=1, mem=20000))
        await cluster.running_pods("p")
        code, text = await run(cluster, "explain", "p")
        assert code == 0, text
        assert "default/p: placed on" in text
        code, text = await run(cluster, "top", "-o", "json")
        assert code == 0, text
        assert sum(len(card["pods"]) for card in json.loads(text)["items"]) == 1
        code, text = await run(cluster, "doctor")
        assert code == 0, text
        assert "0 broken" in text
        file = tmp_path / "p.yaml"
        file.write_text(json.dumps(gpu_pod("q", gpu=1, mem=30000)))
        code, text = await run(cluster, "simulate", "pod", "-f", str(file), "--count", "3")
        assert code == 1, text
        assert "exceeding resource quota" in text


async def test_a_watched_top_prints_another_document_when_something_has_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = ""

    def documents() -> list[Json]:
        nonlocal printed
        printed += capsys.readouterr().out
        return [json.loads(line) for line in printed.splitlines() if line.startswith("{")]

    screen = top.Screen("cards", "node", "json", UsageFilter(), is_watched=True)
    async with product(nodes(), tmp_path) as cluster, client_of(cluster) as client:
        watching = asyncio.create_task(
            top._follow(ClusterSource(None, None, 30.0), client, "sandbox", screen, "default", 0.01)
        )
        await cluster.until(lambda: len(documents()) == 1, what="the first document")
        await cluster.plane.create_pod(gpu_pod("large", gpu=1, mem=900_000))
        await cluster.until(lambda: documents()[-1]["pending"], what="another document")
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    first, last = documents()[0], documents()[-1]
    assert (first["pending"], [pod["name"] for pod in last["pending"]]) == ([], ["large"])
