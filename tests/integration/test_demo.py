"""`tessera demo`: the story is told, kubectl works against it, and nothing is left behind."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import socket
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tessera.kube.access import load_access
from tessera.kube.client import KubeClient
from tessera.kube.resources import EVENTS, NODES, PODS
from tessera_lab.demo import story
from tessera_lab.demo.cluster import CannotStart, DemoCluster, DemoError, demo_cluster
from tessera_lab.demo.machines import CARDS_FILE
from tessera_lab.demo.runner import ENDED, DemoPlan, run_demo
from tessera_lab.demo.screens import CardView, ClusterView, DemoStarted, take_view
from tessera_lab.demo.story import STORY
from tessera_lab.sandbox.api.kinds import DEPLOYMENTS, RESOURCE_CLAIMS
from tessera_lab.sandbox.controllers.workloads import active_pods
from tests.support.commands import executed

Json = dict[str, Any]

PATIENCE_S = 60.0


class Listener:
    """A screen that remembers."""

    def __init__(self) -> None:
        self.started: DemoStarted | None = None
        self.told_at: list[tuple[list[str], ClusterView]] = []
        self.ends: list[str] = []

    def on_started(self, started: DemoStarted, view: ClusterView) -> None:
        self.started = started

    def on_step(self, number: int, title: str) -> None: ...

    def on_result(self, lines: Sequence[str], view: ClusterView) -> None:
        self.told_at.append((list(lines), view))

    def on_change(self, view: ClusterView) -> None: ...

    def on_end(self, text: str) -> None:
        self.ends.append(text)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[DemoCluster]:
    async with demo_cluster(tmp_path) as running:
        yield running


def holding(view: ClusterView, pod: str) -> list[CardView]:
    return [card for card in view.cards if pod in [one.pod for one in card.slices]]


async def test_the_story_tells_what_really_happened() -> None:
    screen = Listener()
    await run_demo(DemoPlan(once=True), screen)
    assert len(screen.told_at) == len(STORY)
    shared, claimed, _notebook, train, isolated, ascend, greedy, quota, room = screen.told_at
    (card,) = {(card.node, card.index): card for n in range(1, 5) for card in holding(shared[1], f"chat-{n}")}.values()
    assert (card.used_mib, card.used_cores, len(card.slices)) == (20000, 80, 4)
    assert "CUDA_DEVICE_MEMORY_LIMIT_0=5000m" in shared[0][1]
    (beside,) = holding(claimed[1], "embed")
    assert (beside.node, beside.index, beside.used_mib, beside.used_cores) == (card.node, card.index, 22000, 90)
    assert "limited to 2000m by its claim" in claimed[0][0]
    first = [card.index for card in holding(train[1], "train-1")]
    assert first in ([0, 1, 2, 3], [4, 5, 6, 7])
    assert holding(train[1], "notebook")[0].index not in first
    assert "MIG instance 1g.10gb" in isolated[0][0]
    assert holding(ascend[1], "ocr")[0].node == "ascend-1"
    assert [pod.pod for pod in greedy[1].waiting] == ["train-2"]
    assert "needs 4 cards of its own on one node; nearest is h100-1, where 3 of its cards fit" in greedy[0][1]
    assert "leaves 10000 MiB" in quota[0][1]
    assert holding(quota[1], "students/homework-2") == []
    assert sorted(first + [card.index for card in holding(room[1], "train-2")]) == list(range(8))
    assert room[1].waiting == ()
    assert screen.ends == [ENDED]


async def test_nothing_is_left_behind() -> None:
    screen = Listener()
    before = asyncio.all_tasks()
    await run_demo(DemoPlan(once=True, story=False), screen)
    assert screen.started is not None
    assert not Path(screen.started.folder).exists()
    assert asyncio.all_tasks() == before
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", int(screen.started.server.rpartition(":")[2])))


async def test_a_port_that_is_taken_is_said(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CannotStart, match=f"port {port}"):
            async with demo_cluster(tmp_path, port=port):
                pass


async def test_slices_are_handed_over_by_the_real_agent(cluster: DemoCluster) -> None:
    await cluster.apply(story.NOTEBOOK)
    await cluster.until(lambda: cluster.plane.phase("default", "notebook") == "Running", "the notebook")
    pod = cluster.plane.pod("default", "notebook")
    assert pod is not None
    view = cluster.plane.nodes["h100-1"].containers[pod["metadata"]["uid"], "main"]
    card = view.env["NVIDIA_VISIBLE_DEVICES"]
    assert view.env["CUDA_DEVICE_MEMORY_LIMIT_0"] == "20000m"
    # kubelet was steered to the planned card, which only the real allocator does.
    assert view.device_ids[0].startswith(card)
    await cluster.until(
        lambda: (
            (cluster.plane.pod("default", "notebook") or {})["metadata"]["annotations"].get("hami.io/bind-phase")
            == "success"
        ),
        "the end of the handover",
    )


async def test_a_claim_is_made_allocated_prepared_and_leaves_nothing_behind(cluster: DemoCluster) -> None:
    await cluster.apply(story.CLAIM_TEMPLATE)
    await cluster.apply(story.CLAIMANT)
    await cluster.until(lambda: cluster.plane.phase("default", "embed") == "Running", "the pod")
    pod = cluster.plane.pod("default", "embed")
    assert pod is not None
    [status] = pod["status"]["resourceClaimStatuses"]
    store = cluster.plane.server.cluster.store
    claim = store.get(RESOURCE_CLAIMS, "default", status["resourceClaimName"])
    assert claim is not None
    [result] = claim.object["status"]["allocation"]["devices"]["results"]
    view = cluster.plane.nodes["l4-1"].containers[pod["metadata"]["uid"], "main"]
    assert view.env["NVIDIA_VISIBLE_DEVICES"].lower() == result["device"]
    assert (view.env["CUDA_DEVICE_MEMORY_LIMIT_0"], view.env["CUDA_DEVICE_SM_LIMIT"]) == ("2000m", "10")
    assert view.device_ids == ()
    assert cluster.ledger.pod(claim.uid) is not None
    await cluster.delete_pod("default", "embed")
    await cluster.until(lambda: not store.list(RESOURCE_CLAIMS, "default"), "the claim to go")
    await cluster.until(lambda: not cluster.ledger.pods(), "the card to be free")


async def test_every_container_of_an_ascend_pod_gets_its_own_chips(cluster: DemoCluster) -> None:
    pod = story.pod("two", {"huawei.com/Ascend910B3": 1})
    (first,) = pod["spec"]["containers"]
    pod["spec"]["containers"] = [first, {**first, "name": "other"}]
    await cluster.apply(pod)
    await cluster.until(lambda: cluster.plane.phase("default", "two") == "Running", "the pod of two containers")
    seen = [view.env["ASCEND_VISIBLE_DEVICES"] for view in cluster.plane.nodes["ascend-1"].containers.values()]
    assert len(set(seen)) == len(seen) == 2
    assert "hami.io/mutex.lock" not in (cluster.plane.node("ascend-1") or {})["metadata"]["annotations"]


async def test_a_card_that_breaks_takes_no_pods(cluster: DemoCluster, tmp_path: Path) -> None:
    file = tmp_path / "l4-1" / CARDS_FILE
    text = yaml.safe_load(file.read_text()) | {"events": [{"card": 0, "xid": 79, "lost": "GPU is lost"}]}
    file.write_text(yaml.safe_dump(text))
    await cluster.until(lambda: take_view(cluster).card("l4-1", 0).state == "unhealthy", "the card to be unhealthy")
    for pod in story.CHATS:
        await cluster.apply(pod)
    await cluster.until(lambda: take_view(cluster).card("l4-1", 1).used_mib == 20000, "the pods on the other card")
    assert take_view(cluster).card("l4-1", 0).slices == ()


# -- as a user, with kubectl where there is one


PENDING = story.pod("large", {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 90000})
SMALL = story.pod("small", {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000})


class Kubectl:
    """The real one."""

    def __init__(self, kubeconfig: Path) -> None:
        self._environ = {"PATH": os.environ["PATH"], "HOME": str(kubeconfig.parent), "KUBECONFIG": str(kubeconfig)}

    async def run(self, *arguments: str, given: Json | None = None) -> str:
        process = await asyncio.create_subprocess_exec(
            *("kubectl", *arguments),
            env=self._environ,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(PATIENCE_S):
            out, err = await process.communicate(yaml.safe_dump(given).encode() if given else b"")
        assert process.returncode == 0, err.decode()
        return out.decode()

    async def apply(self, manifest: Json) -> None:
        assert "created" in await self.run("apply", "-f", "-", given=manifest)

    async def ready(self, name: str) -> None:
        await self.run("wait", "--for=condition=Ready", f"pod/{name}", f"--timeout={PATIENCE_S:g}s")

    async def pods(self) -> dict[str, str]:
        rows = [line.split() for line in (await self.run("get", "pods", "--no-headers")).splitlines()]
        return {row[0]: row[2] for row in rows}

    async def nodes(self) -> list[str]:
        return sorted(line.split()[0] for line in (await self.run("get", "nodes", "--no-headers")).splitlines())

    async def described(self, name: str) -> str:
        return await self.run("describe", "pod", name)

    async def delete(self, name: str) -> None:
        await self.run("delete", "pod", name)


class HttpClient:
    """The same questions to the API, for machines without kubectl."""

    def __init__(self, client: KubeClient, cluster: DemoCluster) -> None:
        self._client = client
        self._cluster = cluster

    async def apply(self, manifest: Json) -> None:
        await self._client.create(PODS.path("default"), manifest)

    async def ready(self, name: str) -> None:
        await self._cluster.until(lambda: self._cluster.plane.phase("default", name) == "Running", name)

    async def pods(self) -> dict[str, str]:
        listed = await self._client.list(PODS.path("default"), dict[str, Any])
        return {pod["metadata"]["name"]: pod["status"]["phase"] for pod in listed.items}

    async def nodes(self) -> list[str]:
        listed = await self._client.list(NODES.path(), dict[str, Any])
        return sorted(node["metadata"]["name"] for node in listed.items)

    async def described(self, name: str) -> str:
        listed = await self._client.list(EVENTS.path("default"), dict[str, Any])
        return "\n".join(event["message"] for event in listed.items if event["involvedObject"]["name"] == name)

    async def delete(self, name: str) -> None:
        await self._client.delete(PODS.path("default", name))
        await self._cluster.until(lambda: self._cluster.plane.pod("default", name) is None, f"{name} to be gone")


@pytest.mark.parametrize(
    "how",
    [
        pytest.param("kubectl", marks=pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl on PATH")),
        "http",
    ],
)
async def test_a_user_can_apply_get_describe_and_delete(cluster: DemoCluster, how: str) -> None:
    kubeconfig = cluster.plane.kubeconfig
    async with KubeClient(load_access(kubeconfig=str(kubeconfig), environ={})) as client:
        user = Kubectl(kubeconfig) if how == "kubectl" else HttpClient(client, cluster)
        assert await user.nodes() == ["a100-1", "a100-2", "ascend-1", "h100-1", "l4-1", "mig-1"]
        await user.apply(SMALL)
        await user.apply(PENDING)
        await user.ready("small")
        assert await user.pods() == {"small": "Running", "large": "Pending"}
        reason = "needs 90000 MiB; the most free on one card is 81920 of 81920 MiB on a100-1"
        await cluster.until(
            lambda: any(reason in each["message"] for each in cluster.plane.events("default", "large")), "the event"
        )
        assert reason in await user.described("large")
        await user.delete("small")
        await user.delete("large")
        assert await user.pods() == {}


CHAT: Json = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "chat"},
    "spec": {
        "replicas": 2,
        "selector": {"matchLabels": {"app": "chat"}},
        "template": {
            "metadata": {"labels": {"app": "chat"}, "annotations": story.CHATS[0]["metadata"]["annotations"]},
            "spec": story.CHATS[0]["spec"],
        },
    },
}


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl on PATH")
async def test_a_user_can_roll_out_scale_and_delete_a_deployment(cluster: DemoCluster) -> None:
    user, rollout = Kubectl(cluster.plane.kubeconfig), ("rollout", "status", "deployment/chat", "--timeout=60s")
    await user.apply(CHAT)
    assert "successfully rolled out" in await user.run(*rollout)
    lines = (await user.run("logs", "--selector=app=chat")).splitlines()
    (limits,) = set(lines)
    assert len(lines) == 2
    assert limits.endswith("; memory limit 5000 MiB; core limit 20 %")
    await user.run("scale", "deployment/chat", "--replicas=4")
    await user.run("set", "image", "deployment/chat", "main=registry.example/chat:2")
    assert "successfully rolled out" in await user.run(*rollout)
    images = {pod["spec"]["containers"][0]["image"] for pod in active_pods(cluster.pods())}
    assert (len(active_pods(cluster.pods())), images) == (4, {"registry.example/chat:2"})
    await user.run("rollout", "undo", "deployment/chat")
    assert "successfully rolled out" in await user.run(*rollout)
    await user.run("delete", "deployment", "chat")
    await cluster.until(lambda: not cluster.pods() and not cluster.ledger.pods(), "the pods to be gone")


async def test_a_part_of_the_control_plane_that_fails_ends_the_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: object) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr("tessera_lab.sandbox.controllers.loop.PLANNERS", {DEPLOYMENTS: broken})

    async def use_it() -> None:
        async with demo_cluster(tmp_path) as cluster:
            await cluster.apply(CHAT)
            await cluster.until(lambda: False, "the end")

    with pytest.raises(DemoError, match=r"control plane failed: ValueError\('a bug'\)"):
        await use_it()


# -- the command


async def test_the_command_tells_the_story_without_a_terminal_and_ends_well(tmp_path: Path) -> None:
    picture = tmp_path / "demo.svg"
    async with executed("demo", "--once", f"--picture={picture}", LANG="C.UTF-8") as command:
        assert await command.end() == 0
    assert [line for line in command.output.splitlines() if re.match(r"\d\. ", line)] == [
        f"{number}. {step.title}" for number, step in enumerate(STORY, 1)
    ]
    assert command.words == []
    assert picture.read_text().startswith("<svg")


async def logged(log: Path, text: str) -> None:
    while not (log.exists() and text in log.read_text()):
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
async def test_a_signal_stops_everything(number: signal.Signals, tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with executed("demo", "--no-story", "-o", "json", f"--log-file={log}", TMPDIR=str(tmp_path)) as command:
        # Ready is logged after the listeners and before the last nodes have registered.
        await command.until(logged(log, '"ready"'))
        command.send(number)
        assert await command.end() == 0
    assert command.words == []
    assert [json.loads(line)["kind"] for line in command.output.splitlines()] in ([], ["DemoStarted"])
    assert list(tmp_path.glob("tessera-demo-*")) == []
