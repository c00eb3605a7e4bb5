"""Ways round the webhook, tried on a real apiserver with the chart's policies.

First no webhook is registered, so that the policies stand alone; then the chart's webhook runs.
The tenant may do everything that RBAC can allow, so that only admission can stop it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tessera.kube.resources import PODS
from tessera.vendors.base import Switches
from tessera.vendors.nvidia.downward_api import PROTECTED
from tessera.vendors.registry import build_vendors
from tessera_lab.sandbox.api.kinds import Json
from tests.contract.client import STRATEGIC, Answer, Client, client, read_kubeconfig
from tests.e2e.chart_install import PLAIN_VENDORS, TRUSTED, ChartInstall, apply, install
from tests.e2e.control_plane import ControlPlane
from tests.e2e.replica import until
from tests.support.product import container, gpu_pod, pod
from tools import chart

GUARDED, EXEMPT, IGNORED, HIDING = "guarded", "exempt", "ignored", "kube-system"
"""namespaces; an administrator labelled the second and the third, and the chart knows the last one"""
LABELS: dict[str, dict[str, str]] = {
    GUARDED: {},
    EXEMPT: {"tessera.io/guard": "ignore"},
    IGNORED: {"hami.io/webhook": "ignore"},
}
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
WEBHOOK = "MutatingWebhookConfiguration"
OURS = "hami-scheduler"
CONFIG_MAP: Json = {"configMapRef": {"name": "m", "optional": True}}


def literal(name: str, value: str) -> Json:
    return {"name": name, "value": value}


def field(name: str, path: str) -> Json:
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


def slice_of(annotation: str, name: str = VISIBLE) -> Json:
    return field(name, f"metadata.annotations['tessera.io/{annotation}']")


def named(manifest: Json, *, labels: dict[str, str] | None = None) -> Json:
    return manifest | {"metadata": {"name": "p", "labels": labels or {}}}


def plain(*env: Json, **fields: Any) -> Json:
    """A pod that asks for no devices."""
    return named(pod("p", container("main") | {"env": list(env), **fields}))


def device(*env: Json, labels: dict[str, str] | None = None, **fields: Any) -> Json:
    """A pod that asks for a slice, as a tenant writes it for our scheduler."""
    manifest = gpu_pod("p", gpu=1, mem=1000)
    manifest["spec"]["containers"][0] |= {"env": list(env), **fields}
    manifest["spec"]["schedulerName"] = OURS
    return named(manifest, labels=labels)


@pytest.fixture(scope="module")
def guarded(own_plane: ControlPlane, helm: Path) -> ChartInstall:
    """The policies alone: as if the webhook were never called."""
    return install(own_plane, helm, settings=PLAIN_VENDORS, without=WEBHOOK)


@pytest.fixture
async def tenant(guarded: ChartInstall) -> AsyncIterator[Client]:
    async with client(read_kubeconfig(guarded.plane.kubeconfig("tenant"))) as found:
        for name, labels in LABELS.items():
            made = await found.post("/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
            assert made.status in (201, 409), made.body
        for name in (*LABELS, HIDING):
            account = await found.post(f"/api/v1/namespaces/{name}/serviceaccounts", {"metadata": {"name": "default"}})
            assert account.status in (201, 409), account.body

        async def are_known() -> bool:
            steering = await found.post(PODS.path(GUARDED), plain(literal("CUDA_REDIRECT", "x")), dryRun="All")
            bound = plain()
            bound["spec"] |= {"nodeName": "x", "containers": device()["spec"]["containers"]}
            asking = await found.post(PODS.path(GUARDED), bound, dryRun="All")
            hidden = await found.post(PODS.path(GUARDED), plain(envFrom=[CONFIG_MAP]), dryRun="All")
            return (steering.status, asking.status) == (403, 403) and VISIBLE in str(hidden.body)

        await until(are_known, what="the apiserver to know the chart's policies")
        yield found


async def created(tenant: Client, manifest: Json, namespace: str = GUARDED) -> Answer:
    return await tenant.post(PODS.path(namespace), manifest, dryRun="All")


async def env_of(tenant: Client, manifest: Json, namespace: str = GUARDED) -> dict[str, Any]:
    """The variables of the first container as stored."""
    answer = await created(tenant, manifest, namespace)
    assert answer.status == 201, answer.body
    entries = answer.body["spec"]["containers"][0].get("env", [])
    assert len({entry["name"] for entry in entries}) == len(entries)
    return {entry["name"]: entry.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", entry.get("value", ""))
            for entry in entries}  # fmt: skip


# -- no webhook: what the policies refuse by themselves

STEERING: dict[str, Json] = {
    "all cards": literal(VISIBLE, "all"),
    "a card": literal(VISIBLE, "GPU-1"),
    "expanded": literal(VISIBLE, "$(ELSEWHERE)"),
    "own annotation": field(VISIBLE, "metadata.annotations['mine']"),
    "from a secret": {"name": VISIBLE, "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
    "limit": literal("CUDA_DEVICE_MEMORY_LIMIT_0", "999999m"),
    "limit of all": literal("CUDA_DEVICE_MEMORY_LIMIT", "0"),
    "limit from cores": slice_of("c0.core-limit", "CUDA_DEVICE_MEMORY_LIMIT_0"),
    "cores": literal("CUDA_DEVICE_SM_LIMIT_3", "100"),
    "region": literal("CUDA_DEVICE_MEMORY_SHARED_CACHE", "/tmp/mine"),
    "switched off": literal("CUDA_DISABLE_CONTROL", "true"),
    "library": literal("CUDA_REDIRECT", "/tmp/mine.so"),
    "policy": literal("GPU_CORE_UTILIZATION_POLICY", "DISABLE"),
    "mps": literal("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "100"),
    "uid": literal("TESSERA_POD_UID", "other"),
}
HARMLESS: dict[str, Json] = {
    "none": literal(VISIBLE, "none"),
    "void": literal(VISIBLE, "void"),
    "empty": {"name": VISIBLE},
    "another name": literal("NVIDIA_VISIBLE_DEVICES_X", "all"),
    "lower case, which nothing reads": literal("nvidia_visible_devices", "all"),
    "on": literal("CUDA_DISABLE_CONTROL", "false"),
    "stricter": literal("GPU_CORE_UTILIZATION_POLICY", "force"),
    "of CUDA": literal("CUDA_VISIBLE_DEVICES", "0"),
}


@pytest.mark.parametrize("way", STEERING)
async def test_a_variable_that_steers_devices_is_refused_in_every_kind_of_container(tenant: Client, way: str) -> None:
    entry = STEERING[way]
    steering = container("bad") | {"env": [literal("A", "1"), entry]}
    for manifest in (
        pod("p", container("main"), steering),
        pod("p", container("main"), initContainers=[steering]),
        pod("p", container("main"), initContainers=[steering | {"restartPolicy": "Always"}]),
        pod("p", container("main"), steering, schedulerName="volcano"),
        pod("p", container("main") | {"env": [literal(VISIBLE, "none")]}, steering, schedulerName=OURS),
    ):
        for labels in ({}, {"hami.io/webhook": "ignore"}):
            answer = await created(tenant, named(manifest, labels=labels))
            assert answer.status == 403, answer.body
            assert f"container bad sets {entry['name']}: only the slice" in answer.message


async def test_the_last_of_two_variables_counts_and_so_does_the_first(tenant: Client) -> None:
    for entries in (
        [literal(VISIBLE, "none"), literal(VISIBLE, "all")],
        [literal(VISIBLE, "all"), literal(VISIBLE, "none")],
    ):
        assert (await created(tenant, plain(*entries))).status == 403


@pytest.mark.parametrize("way", HARMLESS)
async def test_other_values_are_a_tenants_own_choice(tenant: Client, way: str) -> None:
    answer = await created(tenant, plain(HARMLESS[way]))
    assert answer.status == 201, answer.body


@pytest.mark.parametrize("namespace", [EXEMPT, IGNORED, HIDING])
@pytest.mark.parametrize("way", ["all cards", "limit", "switched off"])
async def test_exempt_namespaces_are_left_alone(tenant: Client, namespace: str, way: str) -> None:
    for manifest in (plain(STEERING[way]), device(STEERING[way]), plain(envFrom=[CONFIG_MAP])):
        answer = await created(tenant, manifest, namespace)
        assert answer.status == 201, answer.body
        before = manifest["spec"]["containers"][0].get("env", [])
        assert answer.body["spec"]["containers"][0].get("env", []) == before


async def test_a_privileged_container_is_not_the_policies_business(tenant: Client) -> None:
    answer = await created(tenant, plain(literal(VISIBLE, "all"), securityContext={"privileged": True}))
    assert answer.status == 422, answer.body  # this control plane lets none in; the policies come after that check


async def test_an_editor_of_a_namespace_cannot_exempt_it(tenant: Client, guarded: ChartInstall) -> None:
    """The roles that `edit` aggregates, as there is no controller here that fills it."""
    bindings = [
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": role, "namespace": GUARDED},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": f"system:{role}"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "editor"}],
        }
        for role in ("aggregate-to-edit", "aggregate-to-view")
    ]
    apply(guarded.plane, "editor", bindings)
    async with client(read_kubeconfig(guarded.plane.kubeconfig("editor"))) as editor:

        async def may_create() -> bool:
            return (await created(editor, plain())).status == 201

        await until(may_create, what="the editor's rights")
        for labels in ({"tessera.io/guard": "ignore"}, {"hami.io/webhook": "ignore"}):
            answer = await editor.patch(f"/api/v1/namespaces/{GUARDED}", {"metadata": {"labels": labels}})
            assert answer.status == 403, answer.body
        assert (await created(editor, plain(literal(VISIBLE, "all")))).status == 403


async def test_the_expressions_have_no_faulty_types(tenant: Client) -> None:
    """As the controller manager sees them, some time after they were installed."""

    async def checked() -> list[Json] | None:
        found: list[Json] = (
            await tenant.get("/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies")
        ).body["items"]
        return found if all("observedGeneration" in each.get("status", {}) for each in found) else None

    policies = await until(checked, what="the types to be checked")
    assert policies
    for policy in policies:
        assert policy["status"].get("typeChecking", {}).get("expressionWarnings", []) == [], policy["metadata"]["name"]


# -- ephemeral containers


async def running(tenant: Client, name: str) -> str:
    path = PODS.path(GUARDED, name)
    await tenant.delete(path, gracePeriodSeconds="0")
    await tenant.made(PODS.path(GUARDED), plain() | {"metadata": {"name": name}})
    return f"{path}/ephemeralcontainers"


@pytest.mark.parametrize("way", [*STEERING, "slice"])
async def test_a_debugging_container_cannot_take_cards(tenant: Client, way: str) -> None:
    path = await running(tenant, "debugged")
    entry = STEERING.get(way, slice_of("c0.visible-devices"))
    debugger = {"name": "debug", "image": "i", "env": [entry]}
    answer = await tenant.patch(path, {"spec": {"ephemeralContainers": [debugger]}}, STRATEGIC)
    assert answer.status == 403, answer.body
    assert f"container debug sets {entry['name']}" in answer.message


async def test_what_a_config_map_brings_into_a_debugging_container_is_overridden(tenant: Client) -> None:
    path = await running(tenant, "debugged")
    for name, fields, env in (
        ("quiet", {}, None),
        ("prefixed", {"envFrom": [CONFIG_MAP | {"prefix": "APP_"}]}, None),
        ("open", {"envFrom": [CONFIG_MAP]}, [literal(VISIBLE, "none")]),
    ):
        debugger = {"name": name, "image": "i", **fields}
        answer = await tenant.patch(path, {"spec": {"ephemeralContainers": [debugger]}}, STRATEGIC)
        assert answer.status == 200, answer.body
        (found,) = [each for each in answer.body["spec"]["ephemeralContainers"] if each["name"] == name]
        assert found.get("env") == env


# -- envFrom


@pytest.mark.parametrize(
    ("source", "hidden"),
    [
        (CONFIG_MAP, True),
        ({"secretRef": {"name": "s", "optional": True}}, True),
        (CONFIG_MAP | {"prefix": "NVIDIA_"}, True),
        (CONFIG_MAP | {"prefix": "APP_"}, False),
    ],
    ids=["ConfigMap", "Secret", "prefix of it", "another prefix"],
)
async def test_what_env_from_may_bring_into_a_plain_container_is_overridden(
    tenant: Client, source: Json, hidden: bool
) -> None:
    found = await env_of(tenant, plain(literal("A", "1"), envFrom=[source]))
    assert found == ({"A": "1", VISIBLE: "none"} if hidden else {"A": "1"})
    init = container("first") | {"envFrom": [source]}
    answer = await created(tenant, named(pod("p", container("main"), initContainers=[init])))
    first, main = answer.body["spec"]["initContainers"][0], answer.body["spec"]["containers"][0]
    assert (first.get("env") == [literal(VISIBLE, "none")]) is hidden
    assert "env" not in main


async def test_env_from_is_refused_where_only_allocate_can_name_the_devices(tenant: Client) -> None:
    static = {"name": "main", "image": "i", "resources": {"limits": {"nvidia.com/mig-1g.10gb": "1"}}}
    answer = await created(tenant, named(pod("p", static | {"envFrom": [CONFIG_MAP]})))
    assert answer.status == 403, answer.body
    assert "container main: envFrom may set NVIDIA_VISIBLE_DEVICES or limits" in answer.message
    assert (
        await created(tenant, named(pod("p", static | {"envFrom": [CONFIG_MAP | {"prefix": "APP_"}]})))
    ).status == 201


async def test_a_container_with_a_slice_must_override_what_env_from_may_bring(tenant: Client) -> None:
    """The variables of the slice alone are not enough."""
    answer = await created(tenant, device(slice_of("c0.visible-devices"), envFrom=[CONFIG_MAP]))
    assert answer.status == 403, answer.body
    assert "envFrom may set" in answer.message


# -- pods that did not pass the webhook


@pytest.mark.parametrize("resource", sorted(vendor.names.count for vendor in build_vendors(None, Switches()).values()))
@pytest.mark.parametrize("labels", [{}, {"hami.io/webhook": "ignore"}], ids=["plain", "ignored"])
async def test_a_device_pod_that_the_webhook_did_not_see_is_refused(
    tenant: Client, resource: str, labels: dict[str, str]
) -> None:
    asking = {"name": "main", "image": "i", "resources": {"limits": {resource: "1"}}}
    for manifest in (pod("p", asking), pod("p", container("main"), initContainers=[asking | {"name": "first"}])):
        answer = await created(tenant, named(manifest, labels=labels))
        assert answer.status == 403, answer.body
        assert "the webhook tessera-webhook has not completed it" in answer.message
        assert (await created(tenant, named(manifest, labels=labels), EXEMPT)).status == 201
    none = {"name": "main", "image": "i", "resources": {"limits": {resource: "0"}}}
    assert (await created(tenant, named(pod("p", none)))).status == 201


async def test_naming_the_scheduler_is_not_passing_the_webhook(tenant: Client) -> None:
    answer = await created(tenant, device(labels={"hami.io/webhook": "ignore"}))
    assert answer.status == 403, answer.body
    assert "has not completed it" in answer.message
    imitated = await created(tenant, device(slice_of("c0.visible-devices")))
    assert imitated.status == 201, imitated.body  # it is what the webhook would have made of it


@pytest.mark.parametrize("scheduler", [OURS, "volcano", ""])
async def test_a_device_pod_cannot_choose_its_node(tenant: Client, scheduler: str) -> None:
    manifest = device(slice_of("c0.visible-devices"))
    manifest["spec"] |= {"nodeName": "n1", "schedulerName": scheduler}
    answer = await created(tenant, manifest)
    assert answer.status == 403, answer.body
    assert "must not choose its node" in answer.message


async def test_a_large_pod_is_within_the_cost_that_the_apiserver_allows(tenant: Client) -> None:
    env = [literal(f"VARIABLE_{number}", "value") for number in range(200)]
    manifest = pod("p", *(container(f"c{number}") | {"env": env, "envFrom": [CONFIG_MAP]} for number in range(10)))
    answer = await created(tenant, named(manifest))
    assert answer.status == 201, answer.body


# -- with the webhook, as the chart starts it


@pytest.fixture(scope="module")
def served(guarded: ChartInstall) -> Iterator[ChartInstall]:
    apply(guarded.plane, "webhook", [guarded.object(WEBHOOK, "tessera-webhook")])
    tessera, _, _ = guarded.programs()
    tessera.start()
    yield guarded
    tessera.stop()


@pytest.fixture
async def user(tenant: Client, served: ChartInstall) -> Client:
    async def answers() -> bool:
        return (await created(tenant, named(gpu_pod("p", gpu=1)))).status == 201

    await until(answers, what="the webhook to answer")
    return tenant


SLICE = "metadata.annotations['tessera.io/c0.visible-devices']"


@pytest.mark.parametrize("labels", [{}, {"hami.io/webhook": "ignore"}], ids=["plain", "ignored"])
async def test_the_label_of_a_pod_keeps_no_variable(user: Client, labels: dict[str, str]) -> None:
    entries = [literal(VISIBLE, "all"), literal("CUDA_DEVICE_MEMORY_LIMIT_0", "999999m"),
               literal("CUDA_DISABLE_CONTROL", "true")]  # fmt: skip
    found = await env_of(user, device(*entries, labels=labels))
    assert found[VISIBLE] == SLICE
    assert found["CUDA_DEVICE_MEMORY_LIMIT_0"] == "metadata.annotations['tessera.io/c0.memory-limit-0']"
    assert "CUDA_DISABLE_CONTROL" not in found


async def test_an_administrator_lets_pods_opt_out_by_their_label(user: Client) -> None:
    """A pod without the label is served as everywhere."""
    entries = [literal(VISIBLE, "all")]
    assert await env_of(user, device(*entries, labels={"hami.io/webhook": "ignore"}), EXEMPT) == {VISIBLE: "all"}
    assert (await env_of(user, device(*entries), EXEMPT))[VISIBLE] == SLICE
    for namespace in (IGNORED, HIDING):
        labels = {"hami.io/webhook": "ignore"}
        assert await env_of(user, device(*entries, labels=labels), namespace) == {VISIBLE: "all"}


async def test_env_from_loosens_no_limit_of_a_slice(user: Client) -> None:
    found = await env_of(user, device(literal("A", "1"), envFrom=[CONFIG_MAP]))
    assert found[VISIBLE] == SLICE
    assert {*PROTECTED.switches} <= {*found}
    assert (found["CUDA_REDIRECT"], found["CUDA_DISABLE_CONTROL"]) == ("/usr/local/vgpu/libvgpu.so", "false")
    assert found["CUDA_DEVICE_SM_LIMIT_0"] == found["CUDA_DEVICE_SM_LIMIT"]


async def test_a_pod_of_another_scheduler_keeps_no_cards(user: Client) -> None:
    manifest = device(literal(VISIBLE, "all"), literal("CUDA_REDIRECT", "/x"))
    manifest["spec"]["schedulerName"] = "volcano"
    assert await env_of(user, manifest) == {}
    side = container("side") | {"env": [literal(VISIBLE, "all")]}
    manifest["spec"]["containers"].append(side)
    answer = await created(user, manifest)
    assert answer.body["spec"]["containers"][1]["env"] == [literal(VISIBLE, "none")]


async def test_whole_cards_may_run_without_the_library(user: Client) -> None:
    manifest = gpu_pod("p", gpu=1)
    manifest["spec"]["containers"][0]["env"] = [literal("CUDA_DISABLE_CONTROL", "true")]
    assert (await env_of(user, named(manifest)))["CUDA_DISABLE_CONTROL"] == "true"


@pytest.mark.parametrize("resource", sorted(vendor.names.count for vendor in build_vendors(None, Switches()).values()))
async def test_what_the_webhook_completes_passes_the_policies(user: Client, resource: str) -> None:
    asking = {"name": "main", "image": "i", "resources": {"limits": {resource: "1"}}, "envFrom": [CONFIG_MAP]}
    answer = await created(user, named(pod("p", asking)))
    assert answer.status == 201, answer.body
    assert answer.body["spec"]["schedulerName"] == OURS


async def test_pods_for_mig_instances_pass_the_policies(user: Client) -> None:
    manifest = device()
    manifest["metadata"]["annotations"] = {"nvidia.com/vgpu-mode": "mig"}
    assert VISIBLE not in await env_of(user, manifest)
    manifest["spec"]["containers"][0]["envFrom"] = [CONFIG_MAP]
    answer = await created(user, manifest)
    assert answer.status == 403, answer.body
    assert "give envFrom a prefix" in answer.message


async def test_many_pods_of_controllers_are_served(user: Client) -> None:
    """Positions of init containers and sidecars, as templates have them."""
    side = container("side", gpu=1, mem=100) | {"restartPolicy": "Always", "env": [literal(VISIBLE, "all")]}
    manifest = named(pod("p", container("main", gpu=1, mem=100) | {"envFrom": [CONFIG_MAP]}, initContainers=[side]))
    answers = await asyncio.gather(*(created(user, manifest) for _ in range(8)))
    assert {answer.status for answer in answers} == {201}
    spec = answers[0].body["spec"]
    assert SLICE in str(spec["initContainers"][0]["env"])
    assert "tessera.io/c1.visible-devices" in str(spec["containers"][0]["env"])


# -- overwriteEnv, while no webhook answers


@pytest.fixture(scope="module")
def hiding(guarded: ChartInstall, helm: Path) -> ChartInstall:
    """The policies of other values in place of the first ones."""
    settings = f"scheduler.overwriteEnv=true,devices.ascend.enabled=true,annotationGuard.trustedUsers={{{TRUSTED}}}"
    rendered = chart.objects(helm, settings=settings)
    apply(guarded.plane, "hiding", [each for each in rendered if each["kind"].endswith("AdmissionPolicy")])
    return guarded


@pytest.fixture
async def bystander(tenant: Client, hiding: ChartInstall) -> Client:
    async def are_hidden() -> bool:
        return VISIBLE in await env_of(tenant, plain())

    await until(are_hidden, what="the apiserver to know the other policies")
    return tenant


@pytest.mark.parametrize("scheduler", ["default-scheduler", "volcano"])
@pytest.mark.parametrize(
    ("env", "stored"),
    [
        ([], "none"),
        ([literal(VISIBLE, "all")], "none"),
        ([literal(VISIBLE, "void")], "void"),
    ],
)
async def test_cards_are_hidden_without_the_webhook(
    bystander: Client, scheduler: str, env: list[Json], stored: str
) -> None:
    for labels in ({}, {"hami.io/webhook": "ignore"}):
        manifest = named(pod("p", container("main") | {"env": env}, schedulerName=scheduler), labels=labels)
        assert (await env_of(bystander, manifest))[VISIBLE] == stored


async def test_cards_are_hidden_from_debugging_containers(bystander: Client) -> None:
    path = await running(bystander, "hidden")
    change = {"spec": {"ephemeralContainers": [{"name": "debug", "image": "i"}]}}
    answer = await bystander.patch(path, change, STRATEGIC)
    assert literal(VISIBLE, "none") in answer.body["spec"]["ephemeralContainers"][0]["env"], answer.body


async def test_instances_and_exempt_namespaces_keep_theirs(bystander: Client) -> None:
    static = {"name": "main", "image": "i", "resources": {"limits": {"nvidia.com/mig-1g.10gb": "1"}}}
    assert await env_of(bystander, named(pod("p", static))) == {}
    assert await env_of(bystander, plain(), HIDING) == {}


async def test_chips_of_another_maker_are_protected_too(bystander: Client) -> None:
    answer = await created(bystander, plain(literal("ASCEND_VISIBLE_DEVICES", "0")))
    assert answer.status == 403, answer.body
    assert "ASCEND_VISIBLE_DEVICES" in await env_of(bystander, plain(envFrom=[CONFIG_MAP]))
