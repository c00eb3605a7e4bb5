"""A real node whose agent serves ResourceClaims, a stock kube-scheduler that allocates them, and pods that use them."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import yaml

from tessera.kube.access import load_access
from tessera.kube.client import KubeClient
from tessera.kube.resources import NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from tessera.node.dra.prepared_claims import FILE
from tessera.wire.resource_api import API_VERSION, DRIVER
from tessera_lab.sandbox.api.kinds import Json
from tessera_lab.sandbox.objects import phase_of
from tests.e2e.cluster import clean_up, make_namespace
from tests.e2e.node.agent import CDI, Agent
from tests.e2e.node.cluster import PATIENCE_S, Node, environments
from tests.e2e.node.environment_check import Environment
from tests.e2e.node.image import TALKER
from tests.e2e.node.shapes import GRACE_S
from tests.e2e.processes import Program
from tests.e2e.replica import until

CARDS = 3
CLASS = "gpu.tessera.io"
CLASSES = "/apis/resource.k8s.io/v1/deviceclasses"


def request(*, memory: int, cores: int = 0, name: str = "gpu") -> Json:
    """A part of one card; memory in MiB."""
    amounts = {"memory": f"{memory}Mi"} | ({"cores": str(cores)} if cores else {})
    return {"name": name, "exactly": {"deviceClassName": CLASS, "capacity": {"requests": amounts}}}


def template(name: str, *requests: Json) -> Json:
    spec = {"spec": {"devices": {"requests": list(requests)}}}
    return {"apiVersion": API_VERSION, "kind": "ResourceClaimTemplate", "metadata": {"name": name}, "spec": spec}


def claim(name: str, *requests: Json) -> Json:
    spec = {"devices": {"requests": list(requests)}}
    return {"apiVersion": API_VERSION, "kind": "ResourceClaim", "metadata": {"name": name}, "spec": spec}


def pod(name: str, source: Mapping[str, str], *, containers: int = 1) -> Json:
    """A pod whose containers all use one claim and print their environment."""
    each = {"image": TALKER.name, "resources": {"claims": [{"name": "gpu"}]}}
    spec = {
        "terminationGracePeriodSeconds": GRACE_S,
        "resourceClaims": [{"name": "gpu", **source}],
        "containers": [{"name": f"c{number}", **each} for number in range(containers)],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


class ClaimCluster:
    """One node, ready for claims."""

    def __init__(self, node: Node, agent: Agent, api: KubeClient, *, namespace: str, devices: int) -> None:
        """`devices` is how many the agent publishes."""
        self._count = devices
        self.node = node
        self.agent = agent
        self.api = api
        self.namespace = namespace

    # -- objects

    async def create(self, *manifests: Json) -> None:
        for each in manifests:
            plural = {"Pod": PODS.path(self.namespace), "ResourceClaim": RESOURCE_CLAIMS.path(self.namespace)}
            path = plural.get(each["kind"], RESOURCE_CLAIMS.path(self.namespace) + "templates")
            await self.api.create(path.replace("claimstemplates", "claimtemplates"), each)

    async def pods(self) -> list[Json]:
        return (await self.api.list(PODS.path(self.namespace), dict[str, Any])).items

    async def claims(self) -> dict[str, Json]:
        found = (await self.api.list(RESOURCE_CLAIMS.path(self.namespace), dict[str, Any])).items
        return {each["metadata"]["name"]: each for each in found}

    async def devices(self) -> dict[str, Json]:
        """As published, by name."""
        found = (await self.api.list(RESOURCE_SLICES.path(), dict[str, Any])).items
        return {each["name"]: each for one in found for each in one["spec"].get("devices", ())}

    async def running(self, count: int) -> list[Json]:
        """All pods, once so many run."""

        async def look() -> list[Json]:
            found = await self.pods()
            return found if [phase_of(each) for each in found].count("Running") == count else []

        return await until(look, what=f"{count} pods to run", within_s=PATIENCE_S)

    async def phases(self) -> list[str]:
        return sorted(phase_of(each) for each in await self.pods())

    async def environments(self) -> dict[tuple[str, str], Environment]:
        return await environments(self.node.plane, await self.pods())

    async def environments_of(self, pod: Json) -> Environment:
        """What the only container of a pod printed."""
        (found,) = (await environments(self.node.plane, [pod])).values()
        return found

    async def granted(self) -> dict[str, tuple[Json, ...]]:
        """What was allocated to each pod's claim, by the pod's name."""
        claims = await self.claims()
        found = {}
        for each in await self.pods():
            (status,) = each["status"].get("resourceClaimStatuses", ({},))
            (source,) = each["spec"]["resourceClaims"]
            name = source.get("resourceClaimName") or status["resourceClaimName"]
            results = claims[name]["status"]["allocation"]["devices"]["results"]
            found[each["metadata"]["name"]] = tuple(results)
        return found

    # -- the node

    async def served(self) -> None:
        await until(self.agent.is_ready, what="kubelet and the agent to be ready")
        await until(self._has_devices, what="the devices to be published")

    async def _has_devices(self) -> bool:
        return len(await self.devices()) == self._count

    async def restart_kubelet(self) -> None:
        await asyncio.to_thread(self.node.kubelet.stop)
        self.node.kubelet.start()
        await until(self._is_open, what="kubelet to be back")
        await self.served()

    async def restart_agent(self) -> None:
        """As after SIGKILL."""
        self.agent.program.kill()
        self.agent.program.start()
        await self.served()

    async def _is_open(self) -> bool:
        for found in (await self.api.list(NODES.path(), dict[str, Any])).items:
            ready = [each["status"] for each in found["status"].get("conditions", ()) if each["type"] == "Ready"]
            if ready == ["True"] and not found["spec"].get("taints"):
                return True
        return False

    def specs(self) -> list[str]:
        """CDI specs of claims."""
        return sorted(each.name for each in CDI.glob(f"{DRIVER}-*"))

    def recorded(self) -> list[Json]:
        """The claims that the agent has prepared."""
        found: list[Json] = json.loads((self.agent.state / FILE).read_text())["claims"]
        return found

    async def empty(self) -> None:
        """All pods and claims end in order."""
        await self.api.delete(PODS.path(self.namespace))

        async def no_pods() -> bool:
            return not await self.pods()

        await until(no_pods, what="the end of all pods", within_s=PATIENCE_S)
        await self.api.delete(RESOURCE_CLAIMS.path(self.namespace))

        async def no_claims() -> bool:
            return not await self.claims()

        await until(no_claims, what="the end of all claims", within_s=PATIENCE_S)


def scheduler(node: Node, label: str) -> Program:
    """A stock kube-scheduler with its defaults, DynamicResources among them. Not started."""
    plane = node.plane
    file = plane.folder / f"kube-scheduler-{label}.yaml"
    access = {"kubeconfig": str(plane.kubeconfig("kube-scheduler")), "qps": 1000, "burst": 1000}
    configuration = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": access,
        "leaderElection": {"leaderElect": False},
    }
    file.write_text(yaml.safe_dump(configuration))
    return plane.program(f"kube-scheduler-{label}", "kube-scheduler", f"--config={file}", "--secure-port=0", "--v=2")


@asynccontextmanager
async def claim_cluster(node: Node, *flags: str, devices: int = CARDS) -> AsyncIterator[ClaimCluster]:
    label = uuid.uuid4().hex[:6]
    namespace = f"e2e-{label}"
    agent = Agent(node.node_container, node.plane, "--dra", *flags, cards=CARDS, label=f"agent-{label}")
    stock = scheduler(node, label)
    device_class = {
        "apiVersion": API_VERSION,
        "kind": "DeviceClass",
        "metadata": {"name": CLASS},
        "spec": {"selectors": [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}]},
    }
    access = load_access(kubeconfig=str(node.plane.kubeconfig()), environ={})
    try:
        async with KubeClient(access) as api:
            await make_namespace(api, namespace)
            await api.create(CLASSES, device_class)
            found = ClaimCluster(node, agent, api, namespace=namespace, devices=devices)
            try:
                await until(found._is_open, what="kubelet to be ready")
                agent.program.start()
                stock.start()
                await found.served()
                yield found
            finally:
                await clean_up(api, namespace, ())
                await api.delete(f"{CLASSES}/{CLASS}")
    finally:
        stock.kill()
        agent.program.kill()
