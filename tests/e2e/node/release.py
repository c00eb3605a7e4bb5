"""The chart as Helm installs it on a real node: its containers run from the image that `make image` builds.

Nothing is pulled: both images are loaded into containerd, under the names that the chart's defaults give them. The
cluster has no kube-proxy, so Services have no addresses of their own; and no network plugin enforces a NetworkPolicy.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tessera.kube.client import KubeClient
from tessera.kube.resources import NODES, PODS
from tessera_lab.sandbox.api.kinds import Json
from tessera_lab.sandbox.objects import phase_of, uid_of
from tests.e2e.control_plane import ACCOUNTS, ControlPlane
from tests.e2e.node.cluster import GPU, Node
from tests.e2e.node.control_plane import NODE
from tests.e2e.replica import until
from tools import chart
from tools.image import oci
from tools.image.debian import architecture
from tools.kubernetes import build

IMAGE, NO_IMAGE = "TESSERA_E2E_IMAGE", "TESSERA_E2E_NO_IMAGE"
"""environment variables that hold the image's archive, or why there is none, inside the container"""
SUITES = ("test_release_real.py", "test_mps_daemons_real.py")
"""which of this folder install the chart, and need the image"""
NAME = "e2e-tessera"
"""of the release; the accounts and roles of the other tests have the chart's usual names"""
CARDS, MEMORY, SPLIT = 4, 81920, 10
PATIENCE = "600s"
"""for Helm to wait, on a machine that is busy"""
IMPOSSIBLE = "the chart's containers cannot run here"
"""how the reason begins for which its tests are skipped"""
SHOWN = 8000
"""characters of events and logs, where something went wrong"""
LEFT_BEHIND = {"lease.coordination.k8s.io/hami-scheduler"}
"""kube-scheduler's Lease, which no release owns"""

VALUES: Json = {
    "devicePlugin": {
        "simulate": {"cards": [{"model": "A100-SXM4-80GB", "count": CARDS, "memory": MEMORY}]},
        "networkPolicy": {"enabled": True},
    },
    "scheduler": {"networkPolicy": {"enabled": True}, "dashboard": {"enabled": True}},
}


def obstacle(node: Node) -> str:
    """Why not; empty where they can."""
    if os.environ.get(NO_IMAGE):
        return f"{IMPOSSIBLE}: {os.environ[NO_IMAGE]}"
    if not node.runtime.has_overlays:
        return f"{IMPOSSIBLE}: without overlays on this file system each of them would copy the image, for minutes"
    return ""


def load_images(node: Node, tools: Mapping[str, Path]) -> None:
    """Tessera's, and one of kube-scheduler that has nothing but the program; once per node."""
    root = node.node_container.folder / "kube-scheduler-image"
    if root.exists():
        return
    node.runtime.load(Path(os.environ[IMAGE]))
    program = root / "usr/local/bin/kube-scheduler"
    program.parent.mkdir(parents=True)
    shutil.copy(tools["kube-scheduler"], program)
    archive = root.with_suffix(".tar")
    oci.write(
        archive,
        f"registry.k8s.io/kube-scheduler:{build.CONTROL_PLANE.version}",
        [oci.layer(root, level=1)],
        architecture=architecture(),
        config={"Env": ["PATH=/usr/local/bin"], "Entrypoint": ["kube-scheduler"]},
    )
    node.runtime.load(archive)


@contextmanager
def default_scheduler(plane: ControlPlane) -> Iterator[None]:
    """The kube-scheduler that every cluster has, for pods that ask for no devices."""
    account = plane.kubeconfig("kube-scheduler")
    program = plane.program(
        "default-scheduler", "kube-scheduler", f"--kubeconfig={account}", "--leader-elect=false", "--secure-port=0"
    )
    program.start()
    try:
        yield
    finally:
        program.stop()


class Release:
    """The release, installed or not."""

    def __init__(self, plane: ControlPlane, helm: Path, api: KubeClient, values: Json = VALUES) -> None:
        self.plane = plane
        self.api = api
        self._helm = helm
        self._values = plane.folder / "values.json"
        self._values.write_text(json.dumps(values))
        self._before = self._objects()
        """what was there already"""

    async def helm(self, verb: str, *arguments: str) -> str:
        """Waits until everything that it changed is ready, or gone."""
        reached = (f"--kubeconfig={self.plane.kubeconfig()}", f"--namespace={ACCOUNTS}")
        try:
            waiting = ("--wait", f"--timeout={PATIENCE}")
            return await asyncio.to_thread(chart.run, self._helm, verb, NAME, *arguments, *reached, *waiting)
        except chart.ChartFault as fault:
            raise AssertionError(f"{fault}\n{await asyncio.to_thread(self.describe)}") from fault

    async def install(self) -> str:
        return await self.helm("install", str(chart.CHART), f"--values={self._values}")

    async def upgrade(self, settings: str) -> str:
        return await self.helm("upgrade", str(chart.CHART), f"--values={self._values}", f"--set={settings}")

    def describe(self) -> str:
        """What kubelet and its own containers say about its pods."""
        where = f"--namespace={ACCOUNTS}"
        events = self.plane.kubectl("get", "events", where, "--sort-by=.lastTimestamp")
        chosen = f"--selector=app.kubernetes.io/instance={NAME}"
        logs = self.plane.try_kubectl("logs", where, chosen, "--all-containers", "--prefix", "--tail=30").stdout
        return f"{events[-SHOWN:]}\n{logs[-SHOWN:]}"

    async def diagnosis(self) -> str:
        """What `tessera doctor` says to an administrator; it must find nothing broken."""
        doctor = (sys.executable, "-m", "tessera", "doctor", f"--kubeconfig={self.plane.kubeconfig()}")
        asking = await asyncio.create_subprocess_exec(*doctor, stdout=PIPE, stderr=STDOUT)
        said, _ = await asking.communicate()
        assert asking.returncode == 0, said.decode()
        return said.decode()

    async def pods(self, component: str) -> dict[str, Json]:
        """By uid; those that end are left out."""
        return {
            uid_of(each): each
            for each in await self._own_pods()
            if each["metadata"]["labels"]["app.kubernetes.io/component"] == f"tessera-{component}"
            and "deletionTimestamp" not in each["metadata"]
        }

    async def shares(self, count: int) -> None:
        """Waits until kubelet shows so many, which it does some time after the agent is ready."""

        async def are_shown() -> bool:
            found: Json = await self.api.get(NODES.path(name=NODE), dict[str, Any])
            return int(found["status"].get("allocatable", {}).get(GPU, 0)) == count

        await until(are_shown, what=f"the node to show {count} shares")

    async def gone(self) -> None:
        """Waits until nothing of it is left. Helm does not wait for pods that end."""
        left: set[str] = set()

        async def is_gone() -> bool:
            nonlocal left
            # Its pods end last; a look at every kind of object takes a second.
            left = {each["metadata"]["name"] for each in await self._own_pods()}
            if left:
                return False
            left = await asyncio.to_thread(self._objects) - self._before - LEFT_BEHIND
            return not left

        try:
            await until(is_gone, what="nothing to be left of the release")
        except TimeoutError as error:
            raise AssertionError(f"left of the release: {sorted(left)}") from error

    async def _own_pods(self) -> list[Json]:
        """Those that end too."""
        found = (await self.api.list(PODS.path(ACCOUNTS), dict[str, Any])).items
        return [each for each in found if each["metadata"]["labels"].get("app.kubernetes.io/instance") == NAME]

    def _objects(self) -> set[str]:
        """Everything in its namespace, and everything anywhere that it labels; without events."""
        kinds = self.plane.kubectl("api-resources", "--verbs=list", "--output=name").split()
        namespaced = self.plane.kubectl("api-resources", "--verbs=list", "--output=name", "--namespaced").split()
        there = ",".join(kind for kind in namespaced if not kind.startswith("events"))
        labelled = ",".join(kind for kind in kinds if not kind.startswith("events"))
        own = self.plane.kubectl("get", there, f"--namespace={ACCOUNTS}", "--output=name", "--ignore-not-found")
        chosen = f"--selector=app.kubernetes.io/instance={NAME}"
        anywhere = self.plane.kubectl(
            "get", labelled, "--all-namespaces", chosen, "--output=name", "--ignore-not-found"
        )
        return {*own.split(), *anywhere.split()}


def lives(pods: list[Json]) -> dict[str, tuple[str, str, list[tuple[str, int]]]]:
    """By uid: the pod's phase and node, and for each container its id and how often it was started again."""
    return {
        uid_of(each): (
            phase_of(each),
            each["spec"]["nodeName"],
            [(status["containerID"], status["restartCount"]) for status in each["status"]["containerStatuses"]],
        )
        for each in pods
    }
