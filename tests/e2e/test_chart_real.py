"""The chart: a real apiserver takes its objects, and admission then does what the chart promises."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import tessera
from tessera.kube.access import load_access
from tessera.kube.client import KubeClient
from tessera.kube.resources import NODES, PODS
from tessera.wire.keys import DRA_DRIVER
from tessera.wire.resource_api import MANAGED
from tessera_lab.sandbox.api.kinds import Json
from tessera_lab.sandbox.nodes.node import SimulatedFleet, SimulatedNode, gpu_cards
from tests.contract.client import APPLY, JSON_PATCH, MERGE, STRATEGIC, Answer, Client, client, read_kubeconfig
from tests.e2e.chart_install import AGENT, BOTH_WORLDS, SCHEDULER, ChartInstall, apply, install
from tests.e2e.cluster import end_tasks, make_namespace
from tests.e2e.control_plane import ACCOUNTS, ControlPlane
from tests.e2e.replica import until
from tests.support.product import container, gpu_pod, pod
from tools import chart

OPEN, IGNORED = "open", "ignored"
"""namespaces: in the second the webhook is not asked, as the label says"""
ALLOCATED = "hami.io/vgpu-devices-allocated"
RESERVED = (
    *(ALLOCATED, "hami.io/vgpu-devices-to-allocate", "hami.io/vgpu-node", "hami.io/vgpu-time", "hami.io/bind-phase"),
    *("hami.io/bind-time", "hami.io/vgpu-mig-allocations", "hami.io/Ascend910B3-devices-allocated"),
    *("tessera.io/c0.visible-devices", "tessera.io/c0.memory-limit-0", "tessera.io/c0.core-limit", "tessera.io/retry"),
)
SCHEDULER_ROLE = "tessera-scheduler"
EXAMPLES = sorted(chart.EXAMPLES.glob("*.yaml"))


@pytest.fixture(scope="module")
def installed(own_plane: ControlPlane, helm: Path) -> ChartInstall:
    """On a control plane of its own: its policies hold for every namespace."""
    return install(own_plane, helm, settings="devicePlugin.dra.enabled=true")


@asynccontextmanager
async def speaking(installed: ChartInstall, kubeconfig: Path | None = None) -> AsyncIterator[Client]:
    async with client(read_kubeconfig(kubeconfig or installed.plane.kubeconfig("tenant"))) as found:
        yield found


@pytest.fixture
async def tenant(installed: ChartInstall) -> AsyncIterator[Client]:
    """May do everything that RBAC can allow; the policies are known when this returns."""
    async with speaking(installed) as found:
        for name, labels in ((OPEN, {}), (IGNORED, {"hami.io/webhook": "ignore"})):
            made = await found.post("/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
            assert made.status in (201, 409), made.body
            account = await found.post(f"/api/v1/namespaces/{name}/serviceaccounts", {"metadata": {"name": "default"}})
            assert account.status in (201, 409), account.body

        async def are_known() -> bool:
            forged = plain("probe", annotations={ALLOCATED: "x"})
            if (await found.post(PODS.path(IGNORED), forged, dryRun="All")).status != 403:
                return False
            node = {"metadata": {"name": "probe", "annotations": {"tessera.io/agent": "x"}}}
            if (await found.post(NODES.path(), node, dryRun="All")).status != 403:
                return False
            return (await found.post(PODS.path(OPEN), gpus("probe", gpu=1), dryRun="All")).status == 500

        await until(are_known, what="the apiserver to know the chart's policies and webhook")
        yield found


def plain(name: str, **metadata: Any) -> Json:
    return pod(name, container("main")) | {"metadata": {"name": name, **metadata}}


def gpus(name: str, **asked: Any) -> Json:
    return gpu_pod(name, **asked) | {"metadata": {"name": name}}


def asking(*containers: Json, **spec: Any) -> Json:
    return pod("p", *containers, **spec) | {"metadata": {"name": "p"}}


def limited(resource: str) -> Json:
    return {"name": "main", "image": "image", "resources": {"limits": {"cpu": "1", resource: "1"}}}


def annotated(value: Mapping[str, str | None]) -> Json:
    return {"metadata": {"annotations": dict(value)}}


async def fresh(client: Client, name: str, **metadata: Any) -> str:
    """The path of a pod that was made now, in the namespace without webhook."""
    path = PODS.path(IGNORED, name)
    await client.delete(path, gracePeriodSeconds="0")
    await client.made(PODS.path(IGNORED), plain(name, **metadata))
    return path


async def metadata_of(client: Client, path: str) -> Json:
    found: Json = (await client.get(path)).body["metadata"]
    return found


# -- the apiserver


VARIANTS = {
    **{path.stem: ([path], "") for path in EXAMPLES},
    "static MIG": ([], "devicePlugin.migStrategy=mixed"),
    "claims": ([], "devicePlugin.dra.enabled=true"),
    "both worlds": ([], f"{BOTH_WORLDS},scheduler.dra.convert=true"),
    "no election": ([], "scheduler.leaderElect=false"),
    "no webhook": ([], "scheduler.admissionWebhook.enabled=false"),
    "Tessera alone": ([], "scheduler.kubeScheduler.enabled=false,devicePlugin.enabled=false"),
    "certificate from files": ([], "scheduler.tls.existingSecret=mine,scheduler.tls.caBundle="),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_the_apiserver_takes_what_other_values_render(installed: ChartInstall, helm: Path, name: str) -> None:
    values, settings = VARIANTS[name]
    if name == "certificate from files":
        settings += base64.b64encode(installed.plane.authority.cert_pem.bytes()).decode()
    rendered = chart.objects(helm, values=values, settings=settings)
    # Kinds that a cluster has to be taught first.
    known = [each for each in rendered if not each["apiVersion"].startswith("cert-manager.io/")]
    for each in known:
        if each["kind"] == "DaemonSet":
            # The control plane of these tests was not started to let such containers in.
            for container in each["spec"]["template"]["spec"]["containers"]:
                container["securityContext"].pop("privileged", None)
    assert len(apply(installed.plane, "variant", known, "--dry-run=server").splitlines()) == len(known)


def test_helm_installs_it_and_says_what_to_do_next(installed: ChartInstall, helm: Path) -> None:
    """Another release beside the first, which the apiserver judges and does not keep."""
    reached = (f"--kubeconfig={installed.plane.kubeconfig()}", f"--namespace={ACCOUNTS}")
    said = chart.run(helm, "install", "second", str(chart.CHART), *reached, "--dry-run=server")
    manifests, _, notes = said.partition("NOTES:")
    assert "name: second-tessera-scheduler" in manifests
    for text in (
        "rollout status deployment/second-tessera-scheduler",
        "kubectl label node NODE gpu=on",
        "/usr/local/vgpu",
        f"tessera:{tessera.__version__}",
        "registry.k8s.io/kube-scheduler:v",
        "pods that ask for devices are refused",
        # The first release has a webhook for the same pods.
        "MutatingWebhookConfiguration tessera-webhook changes the same pods",
    ):
        assert text in notes, notes


def test_helm_says_before_the_installation_what_the_cluster_lacks(installed: ChartInstall, helm: Path) -> None:
    plane = installed.plane
    plane.kubectl("create", "namespace", "strict")
    plane.kubectl("label", "namespace", "strict", "pod-security.kubernetes.io/enforce=baseline")
    reached = (f"--kubeconfig={plane.kubeconfig()}", "--namespace=strict", "--dry-run=server")
    said = chart.run(helm, "install", "third", str(chart.CHART), *reached, "--set=devicePlugin.runtimeClassName=nvidia")
    notes = said.partition("NOTES:")[2]
    for text in ("Namespace strict admits only baseline pods", "no RuntimeClass nvidia"):
        assert text in notes, notes


# -- match conditions of the webhook; nothing serves it here, so a pod that matches cannot be created


@pytest.mark.parametrize(
    "manifest",
    [
        gpus("p", gpu=1, mem=100),
        asking(container("main"), container("side", mem=100)),
        asking(container("main"), initContainers=[container("first", gpu=1)]),
        plain("p", annotations={ALLOCATED: "GPU-1,NVIDIA,1,1:;"}),
        plain("p", annotations={"tessera.io/anything": "x"}),
        plain("p", labels={"hami.io/vgpu-node": "n1"}),
        gpus("p", gpu=1) | {"metadata": {"name": "p", "labels": {"hami.io/webhook": "ignore"}}},
    ],
    ids=["count", "memory alone", "init container", "allocation", "our prefix", "label", "ignored"],
)
async def test_the_webhook_is_asked_about_pods_that_concern_devices(tenant: Client, manifest: Json) -> None:
    answer = await tenant.post(PODS.path(OPEN), manifest)
    assert answer.status == 500, answer.body
    assert 'failed calling webhook "vgpu.hami.io"' in answer.message


@pytest.mark.parametrize(
    "manifest",
    [
        plain("p"),
        plain("p", annotations={"hami.io/node-scheduler-policy": "spread", "nvidia.com/use-gputype": "A100"}),
        asking(limited("example.com/gpu")),
        asking(limited("amd.com/gpu")),
    ],
    ids=["plain", "wishes", "another resource", "a vendor that is off"],
)
async def test_all_other_pods_pass_untouched_while_tessera_is_down(tenant: Client, manifest: Json) -> None:
    answer = await tenant.post(PODS.path(OPEN), manifest, dryRun="All")
    assert answer.status == 201, answer.body
    assert answer.body["spec"]["schedulerName"] == "default-scheduler"


# -- what only Tessera writes


@pytest.mark.parametrize("key", RESERVED)
async def test_a_forged_allocation_is_refused_at_creation_without_the_webhook(tenant: Client, key: str) -> None:
    answer = await tenant.post(PODS.path(IGNORED), plain("forged", annotations={key: "x"}))
    assert answer.status == 403
    assert f"only Tessera may write {key}" in answer.message


CHANGES: dict[str, Callable[[Client, str, str], Any]] = {
    "merge patch": lambda api, path, key: api.patch(path, annotated({key: "x"}), MERGE),
    "strategic patch": lambda api, path, key: api.patch(path, annotated({key: "x"}), STRATEGIC),
    "json patch": lambda api, path, key: api.patch(
        path, [{"op": "add", "path": f"/metadata/annotations/{key.replace('/', '~1')}", "value": "x"}], JSON_PATCH
    ),
    "apply": lambda api, path, key: api.patch(
        path, {"apiVersion": "v1", "kind": "Pod", **annotated({key: "x"})}, APPLY, fieldManager="t", force="true"
    ),
    "update": lambda api, path, key: put(api, path, key),
    "status patch": lambda api, path, key: api.patch(f"{path}/status", annotated({key: "x"}), STRATEGIC),
    "status update": lambda api, path, key: put(api, f"{path}/status", key),
}


async def put(api: Client, path: str, key: str) -> Answer:
    now = (await api.get(path)).body
    now["metadata"]["annotations"][key] = "x"
    return await api.put(path, now)


@pytest.mark.parametrize("way", CHANGES)
async def test_a_tenant_can_neither_add_nor_change_an_allocation(
    tenant: Client, installed: ChartInstall, way: str
) -> None:
    path = await fresh(tenant, "victim", annotations={"mine": "1"})
    async with speaking(installed, installed.plane.kubeconfig_of_account(SCHEDULER)) as scheduler:
        assert (await scheduler.patch(path, annotated({ALLOCATED: "granted"}))).status == 200
    before = await metadata_of(tenant, path)
    for key in (ALLOCATED, "tessera.io/c0.memory-limit-0", "hami.io/bind-phase"):
        answer = await CHANGES[way](tenant, path, key)
        assert answer.status == 403, answer.body
        assert f"only Tessera may write {key}" in answer.message
    assert (await metadata_of(tenant, path))["annotations"] == before["annotations"]
    harmless = await CHANGES[way](tenant, path, "mine")
    assert harmless.status == 200, harmless.body


async def test_a_tenant_can_neither_remove_an_allocation_nor_touch_the_label(
    tenant: Client, installed: ChartInstall
) -> None:
    path = await fresh(tenant, "victim", annotations={"mine": "1"})
    labels = {"hami.io/vgpu-node": "n1", "tessera.io/fence": "2"}
    granted = {"metadata": {"annotations": {ALLOCATED: "granted"}, "labels": labels}}
    async with speaking(installed, installed.plane.kubeconfig_of_account(SCHEDULER)) as scheduler:
        assert (await scheduler.patch(path, granted)).status == 200
    for change in (
        annotated({ALLOCATED: None}),
        {"metadata": {"annotations": None}},
        {"metadata": {"labels": {"hami.io/vgpu-node": "n2"}}},
        {"metadata": {"labels": {"tessera.io/fence": None}}},
        {"metadata": {"labels": None}},
    ):
        assert (await tenant.patch(path, change)).status == 403, change
    found = await metadata_of(tenant, path)
    assert found["annotations"] == {"mine": "1", ALLOCATED: "granted"}
    assert found["labels"] == labels


async def test_debugging_a_pod_is_possible_and_changes_no_allocation(tenant: Client) -> None:
    path = await fresh(tenant, "debugged")
    debugger = {"ephemeralContainers": [{"name": "debug", "image": "i"}]}
    assert (await tenant.patch(f"{path}/ephemeralcontainers", {"spec": debugger}, STRATEGIC)).status == 200
    again = {"ephemeralContainers": [{"name": "more", "image": "i"}]}
    answer = await tenant.patch(
        f"{path}/ephemeralcontainers", {"spec": again, **annotated({ALLOCATED: "x"})}, STRATEGIC
    )
    assert ALLOCATED not in (await metadata_of(tenant, path)).get("annotations", {}), answer.body


async def test_a_binding_carries_allocations_from_the_scheduler_only(tenant: Client, installed: ChartInstall) -> None:
    target = {"target": {"kind": "Node", "name": "n1"}}
    path = await fresh(tenant, "bound")
    forged = {"metadata": {"name": "bound", "annotations": {ALLOCATED: "x"}}, **target}
    answer = await tenant.post(f"{path}/binding", forged)
    assert answer.status == 403, answer.body
    async with speaking(installed, installed.plane.kubeconfig_of_account(SCHEDULER)) as scheduler:
        assert (await scheduler.post(f"{path}/binding", forged)).status == 201
    assert (await metadata_of(tenant, path))["annotations"] == {ALLOCATED: "x"}
    other = await fresh(tenant, "plainly-bound")
    assert (await tenant.post(f"{other}/binding", {"metadata": {"name": "plainly-bound"}, **target})).status == 201


# -- nodes and agents


async def made_node(api: Client, name: str) -> str:
    await api.post(NODES.path(), {"metadata": {"name": name}})
    return NODES.path(name=name)


async def test_only_the_agent_of_a_node_writes_how_it_hands_over(tenant: Client, installed: ChartInstall) -> None:
    node = await made_node(tenant, "n1")
    agent = {"tessera.io/agent": "env,hami-core"}
    assert (await tenant.patch(node, annotated(agent))).status == 403
    assert (await tenant.patch(f"{node}/status", annotated(agent))).status == 403
    assert (await tenant.patch(node, annotated({"hami.io/device-cordon": "GPU-1"}))).status == 200
    kubeconfig = installed.agent_on("n1")
    async with speaking(installed, kubeconfig) as own:
        assert (await own.patch(node, annotated(agent))).status == 200
    assert (await tenant.patch(node, annotated({"tessera.io/agent": None}))).status == 403
    assert (await tenant.patch(node, annotated({"example.com/rack": "7"}))).status == 200


async def test_an_agent_changes_its_own_node_and_the_pods_on_it(tenant: Client, installed: ChartInstall) -> None:
    nodes = [await made_node(tenant, name) for name in ("n1", "n2")]
    pods = []
    for name in ("n1", "n2"):
        pods.append(await fresh(tenant, f"on-{name}"))
        binding = {"metadata": {"name": f"on-{name}"}, "target": {"kind": "Node", "name": name}}
        assert (await tenant.post(f"{pods[-1]}/binding", binding)).status == 201
    async with speaking(installed, installed.agent_on("n1")) as agent:
        registration = annotated({"hami.io/node-nvidia-register": "[]"})
        assert [(await agent.patch(path, registration)).status for path in nodes] == [200, 403]
        success = annotated({"hami.io/bind-phase": "success"})
        assert [(await agent.patch(path, success)).status for path in pods] == [200, 403]
    # A token of the same account that belongs to no pod, and so to no node.
    async with speaking(installed, installed.plane.kubeconfig_of_account(AGENT)) as astray:
        assert (await astray.patch(pods[0], success)).status == 403


async def test_an_agent_publishes_devices_of_its_own_node(tenant: Client, installed: ChartInstall) -> None:
    path = "/apis/resource.k8s.io/v1/resourceslices"

    def published(node: str) -> Json:
        pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": DRA_DRIVER, "nodeName": node, "pool": pool, "devices": [{"name": "gpu-0"}]}
        return {"metadata": {"name": f"of-{node}"}, "spec": spec}

    for name in ("n1", "n2"):
        await made_node(tenant, name)
    async with speaking(installed, installed.agent_on("n1")) as agent:
        assert [(await agent.post(path, published(node))).status for node in ("n1", "n2")] == [201, 403]
    async with speaking(installed, installed.agent_on("n2")) as other:
        mine = (await other.get(path)).body["items"][0]
        assert (await other.put(f"{path}/of-n1", mine)).status == 403
        assert (await other.delete(f"{path}/of-n1")).status == 403
    async with speaking(installed, installed.agent_on("n1")) as agent:
        assert (await agent.delete(f"{path}/of-n1")).status == 200


@pytest.fixture(scope="module")
def guarded_devices(installed: ChartInstall, helm: Path) -> None:
    """The policies about claims are there too."""
    names = ("tessera-managed-devices", "tessera-reserved-claim-annotations")
    rendered = chart.objects(helm, settings=BOTH_WORLDS)
    policies = [each for each in rendered if each["metadata"]["name"] in names]
    assert {each["kind"] for each in policies} == {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}
    assert len(policies) == 4
    rights = [each for each in rendered if (each["kind"], each["metadata"]["name"]) == ("ClusterRole", SCHEDULER_ROLE)]
    assert len(rights) == 1
    apply(installed.plane, "managed-devices", [*policies, *rights])


@pytest.mark.usefixtures("guarded_devices")
async def test_no_claim_tolerates_the_taint_of_devices_that_tessera_allocates(tenant: Client) -> None:
    exists, forbidden, allowed = {"operator": "Exists"}, 403, 201
    managed = {"key": MANAGED, **exists}

    def requests(tolerations: list[Json], **more: Any) -> list[Json]:
        asked = {"deviceClassName": DRA_DRIVER, "tolerations": tolerations, **more}
        return [{"name": "plain", "exactly": {"deviceClassName": DRA_DRIVER}}, {"name": "gpu", "exactly": asked}]

    def alternatives(tolerations: list[Json]) -> list[Json]:
        asked = {"name": "a", "deviceClassName": DRA_DRIVER, "tolerations": tolerations}
        return [{"name": "gpu", "firstAvailable": [asked]}]

    async def create(asked: list[Json]) -> set[int]:
        metadata, spec = {"generateName": "c-"}, {"devices": {"requests": asked}}
        path = f"/apis/resource.k8s.io/v1/namespaces/{OPEN}"
        answers = [
            await tenant.post(f"{path}/resourceclaims", {"metadata": metadata, "spec": spec}, dryRun="All"),
            await tenant.post(
                f"{path}/resourceclaimtemplates", {"metadata": metadata, "spec": {"spec": spec}}, dryRun="All"
            ),
        ]
        return {each.status for each in answers}

    async def is_known() -> bool:
        return await create(requests([managed])) == {forbidden}

    await until(is_known, what="the apiserver to know the policy")
    assert await create(requests([{"key": MANAGED, "operator": "Equal", "value": "tessera"}])) == {forbidden}
    assert await create(requests([exists])) == {forbidden}
    assert await create(alternatives([managed])) == {forbidden}
    assert await create(alternatives([exists])) == {forbidden}
    assert await create(requests([{"key": "example.com/busy", **exists}])) == {allowed}
    assert await create(alternatives([{"key": "example.com/busy", **exists}])) == {allowed}
    assert await create(requests([])) == {allowed}


@pytest.mark.usefixtures("guarded_devices")
async def test_a_tenant_can_neither_forge_nor_remove_what_tessera_writes_on_a_claim(
    tenant: Client, installed: ChartInstall
) -> None:
    path, fence = f"/apis/resource.k8s.io/v1/namespaces/{OPEN}", "tessera.io/fence"
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": DRA_DRIVER}}]}}
    forged = {"generateName": "c-", "annotations": {fence: "1"}}

    async def is_known() -> bool:
        answer = await tenant.post(f"{path}/resourceclaims", {"metadata": forged, "spec": spec}, dryRun="All")
        return answer.status == 403

    await until(is_known, what="the apiserver to know the policy")
    for metadata, of_claims in ((forged, {}), ({"generateName": "c-"}, {"metadata": {"annotations": {fence: "1"}}})):
        template = {"metadata": metadata, "spec": {"spec": spec, **of_claims}}
        assert (await tenant.post(f"{path}/resourceclaimtemplates", template, dryRun="All")).status == 403
    mine = {"example.com/note": "x", "tessera.io/gang": "g"}
    made = await tenant.post(f"{path}/resourceclaims", {"metadata": {"name": "c", "annotations": mine}, "spec": spec})
    assert made.status == 201, made.body
    claim = f"{path}/resourceclaims/c"
    async with speaking(installed, installed.plane.kubeconfig_of_account(SCHEDULER)) as scheduler:
        written = await scheduler.patch(claim, annotated({fence: "2"}))
        assert written.status == 200, written.body
    for change in (annotated({fence: "3"}), annotated({fence: None}), {"metadata": {"annotations": None}}):
        refused = await tenant.patch(claim, change)
        assert refused.status == 403, change
        assert f"only Tessera may write {fence}" in refused.message
        # The status has no metadata of its own: it is refused, or changes nothing there.
        assert (await tenant.patch(f"{claim}/status", change)).status in (200, 403)
    assert (await metadata_of(tenant, claim))["annotations"] == {**mine, fence: "2"}
    assert (await tenant.patch(claim, annotated({"example.com/note": "y"}))).status == 200
    assert (await tenant.delete(claim)).status == 200


# -- all of it together


async def test_the_installed_scheduler_serves_pods_with_the_rights_and_settings_of_the_chart(
    tenant: Client, installed: ChartInstall
) -> None:
    plane = installed.plane
    tessera, kube_scheduler, probes = installed.programs()
    asked = [gpus(f"p{number}", gpu=1, mem=1000 * (number + 1), cores=10) for number in range(3)]
    async with KubeClient(load_access(kubeconfig=str(plane.kubeconfig()), environ={})) as api:
        await make_namespace(api, "serving")
        fleet = SimulatedFleet(api, [SimulatedNode("gpu-1", gpu_cards("gpu-1", 2))])
        await fleet.register()
        background = [asyncio.create_task(fleet.run())]
        try:
            tessera.start()
            kube_scheduler.start()

            async def answers() -> bool:
                assert tessera.is_running, tessera.words()
                assert kube_scheduler.is_running, kube_scheduler.words()
                return (await tenant.post(PODS.path("serving"), asked[0], dryRun="All")).status == 201

            await until(answers, what="the webhook to answer with a certificate of its own")
            # As kubelet asks: without a name, and without a look at the certificate.
            async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=False)) as kubelet:
                for url, path in probes.items():
                    async with kubelet.get(url + path) as answer:
                        assert answer.status == 200, (url, await answer.text())
            for manifest in asked:
                await tenant.made(PODS.path("serving"), manifest)

            async def all_run() -> bool:
                found = (await tenant.get(PODS.path("serving"))).body["items"]
                return [each["status"].get("phase") for each in found] == ["Running"] * len(asked)

            await until(all_run, what="pods to run")
            path = PODS.path("serving", "p1")
            granted = (await metadata_of(tenant, path))["annotations"]
            assert granted["tessera.io/c0.memory-limit-0"] == "2000m"
            # Bound and running: no way is open any more.
            for way, change in CHANGES.items():
                for key in ("tessera.io/c0.memory-limit-0", "tessera.io/c0.visible-devices", ALLOCATED):
                    wider = await change(tenant, path, key)
                    assert wider.status == 403, (way, wider.body)
            assert (await metadata_of(tenant, path))["annotations"] == granted
        finally:
            tessera.stop()
            kube_scheduler.stop()
            await end_tasks(background)
    asked_for = [each for each in plane.audited() if "tessera" in each.agent]
    allowed = {(each.verb, each.resource) for each in asked_for if each.allowed}
    assert {(each.verb, each.resource) for each in asked_for} == allowed
    assert ("create", "pods/binding") in allowed
    assert plane.kubectl("get", "lease", "hami-scheduler", f"--namespace={ACCOUNTS}", "--output=name")
