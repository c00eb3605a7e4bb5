"""One cluster of one test on a real control plane: stock kube-scheduler, `tessera scheduler`, simulated GPU nodes.

Pods are created by a tenant, in a namespace of the test's own. Only the nodes are simulated: they play kubelet and its
plugin against the real apiserver. A scheduler that asks for anything beyond rbac.yaml fails its test.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

from tessera.core.ledger.audit import audit
from tessera.kube.access import load_access
from tessera.kube.client import KubeClient
from tessera.kube.errors import KubeError
from tessera.kube.reflector import Reflector
from tessera.kube.resources import MUTATING_WEBHOOKS, NAMESPACES, NODES, PODS, SERVICE_ACCOUNTS
from tessera_lab.sandbox.api.kinds import Json
from tessera_lab.sandbox.nodes.node import SimulatedFleet, SimulatedNode
from tessera_lab.sandbox.objects import JSON_ACCESSOR, condition_of, node_of, phase_of
from tests.contract.client import Answer, Client, client, read_kubeconfig
from tests.e2e.cluster_check import replayed, use_of, wrong_slices
from tests.e2e.control_plane import Audited, ControlPlane
from tests.e2e.replica import WAIT_S, Certificates, FromFiles, Replica, SelfMade, until
from tests.support.product import gpu_pod

T = TypeVar("T")


class Mirror:
    """The pods of one namespace, as a watch shows them."""

    def __init__(self) -> None:
        self.pods: dict[str, Json] = {}
        self.changed = asyncio.Event()

    def put(self, key: str, obj: Json) -> None:
        self.pods[obj["metadata"]["name"]] = obj
        self.changed.set()

    def drop(self, key: str) -> None:
        self.pods.pop(key.partition("/")[2], None)
        self.changed.set()

    def synced(self) -> None:
        """Nothing waits for the first list."""


class Cluster:
    """A running cluster with Tessera in it."""

    def __init__(
        self,
        plane: ControlPlane,
        *,
        api: KubeClient,
        tenant: Client,
        fleet: SimulatedFleet,
        namespace: str,
        replica: Replica,
    ) -> None:
        self.plane = plane
        self.api = api
        """an administrator"""
        self.tenant = tenant
        self.fleet = fleet
        self.namespace = namespace
        self.replica = replica
        self.background: list[asyncio.Task[None]] = []
        self._mirror = Mirror()
        self._audited_before = len(plane.audited())

    # -- pods

    @property
    def pods(self) -> list[Json]:
        return list(self._mirror.pods.values())

    def pod(self, name: str) -> Json:
        return self._mirror.pods[name]

    async def post(self, manifest: Json, **query: str) -> Answer:
        """Creates the pod as a tenant; returns the response."""
        body = {**manifest, "metadata": {**manifest["metadata"], "namespace": self.namespace}}
        return await self.tenant.post(PODS.path(self.namespace), body, **query)

    async def create(self, *manifests: Json) -> None:
        """Creates pods, and waits until the watch shows them."""
        for manifest in manifests:
            answer = await self.post(manifest)
            assert answer.status == 201, answer.body
        names = {manifest["metadata"]["name"] for manifest in manifests}
        await self.wait_for(lambda: names <= self._mirror.pods.keys(), what="pods to be there")

    async def run(self, *manifests: Json) -> None:
        """Creates pods one after the other; each runs before the next is created."""
        for manifest in manifests:
            await self.create(manifest)
            await self.running(manifest["metadata"]["name"])

    async def running(self, *names: str, within_s: float = WAIT_S) -> None:
        """Waits until all these pods run."""
        waited = set(names)

        def all_run() -> bool:
            waited.difference_update(
                [name for name in waited if phase_of(self._mirror.pods.get(name, {})) == "Running"]
            )
            return not waited

        try:
            await self.wait_for(all_run, what="pods to run", within_s=within_s)
        except TimeoutError as error:
            raise TimeoutError(
                "; ".join(f"{name} {_state(self._mirror.pods.get(name))}" for name in sorted(waited))
            ) from error

    async def refused(self, name: str) -> str:
        """Waits until kube-scheduler has reported why the pod has no node; returns the message."""

        def reason() -> str:
            found = condition_of(self._mirror.pods.get(name, {}), "PodScheduled") or {}
            return str(found.get("message", "")) if found.get("status") == "False" else ""

        return await self.wait_for(reason, what=f"the refusal of {name}")

    async def delete(self, *names: str) -> None:
        """Deletes pods as a tenant; the nodes end them."""
        for name in names:
            answer = await self.tenant.delete(PODS.path(self.namespace, name))
            assert answer.status == 200, answer.body

    async def gone(self, *names: str) -> None:
        await self.wait_for(lambda: not self._mirror.pods.keys() & set(names), what=f"the end of {', '.join(names)}")

    async def wait_for(self, look: Callable[[], T], *, what: str, within_s: float = WAIT_S) -> T:
        """Calls `look` after every change of a pod, until it returns a true value; returns that."""
        try:
            async with asyncio.timeout(within_s):
                while True:
                    self._mirror.changed.clear()
                    if answer := look():
                        return answer
                    changed = asyncio.create_task(self._mirror.changed.wait())
                    done, _ = await asyncio.wait([changed, *self.background], return_when=asyncio.FIRST_COMPLETED)
                    for broken in done - {changed}:
                        broken.result()
        except TimeoutError as error:
            raise TimeoutError(f"waited {within_s:g} s for {what}") from error

    # -- checks

    async def at_rest(self) -> None:
        """Waits until the scheduler's metrics equal a replay of the API's objects."""
        shown: object = None
        known: object = None

        async def rests() -> bool:
            nonlocal shown, known
            ledger, scrape = await replayed(self.api), await self.replica.scrape()
            assert audit(ledger) == []
            open_ = [scrape.value(f"tessera_{what}") for what in ("reservations", "pods_awaiting_turn")]
            shown, known = use_of(ledger), (scrape.use if not any(open_) else open_)
            return shown == known

        try:
            await until(rests, what="rest")
        except TimeoutError as error:
            raise AssertionError(f"the scheduler knows {known}, the API shows {shown}") from error

    def wrong_slices(self) -> list[str]:
        return list(wrong_slices(self.pods, self.fleet.nodes))

    async def events(self, name: str) -> list[Json]:
        found = await self.tenant.get(
            f"/api/v1/namespaces/{self.namespace}/events", fieldSelector=f"involvedObject.name={name}"
        )
        events: list[Json] = found.body["items"]
        return events

    def requests(self) -> list[Audited]:
        """The scheduler's requests since this cluster began."""
        return list(self.plane.audited())[self._audited_before :]

    def missing_rights(self) -> set[tuple[str, str]]:
        """Verbs and resources that were always refused.

        kube-apiserver forbids everything in its first moments, before it knows the roles."""
        asked = self.requests()
        allowed = {(each.verb, each.resource) for each in asked if each.allowed}
        return {(each.verb, each.resource) for each in asked} - allowed

    # -- start

    async def nodes_are_open(self) -> bool:
        """The controller manager has seen them all Ready."""
        nodes = (await self.api.list(NODES.path(), dict[str, Any])).items
        taints = [taint["key"] for node in nodes for taint in node["spec"].get("taints", ())]
        return not any(key.startswith("node.kubernetes.io/") for key in taints)

    async def cards_are_known(self) -> bool:
        cards = sum(len(node.cards) for node in self.fleet.nodes.values())
        return len((await self.replica.scrape()).use) == cards

    async def webhook_is_asked(self) -> bool:
        """kube-apiserver learns of a new configuration through an informer."""
        answer = await self.post(gpu_pod("probe", gpu=1), dryRun="All")
        assert answer.status in (201, 500), answer.body
        return answer.status == 201 and bool(answer.body["spec"]["schedulerName"] == "hami-scheduler")

    async def watch_pods(self) -> None:
        """Runs until cancelled."""
        await Reflector(
            self.api,
            PODS.path(self.namespace),
            dict[str, Any],
            self._mirror,
            accessor=JSON_ACCESSOR,
        ).run()


# -- putting it together


@asynccontextmanager
async def cluster(
    plane: ControlPlane,
    nodes: Sequence[SimulatedNode],
    *flags: str,
    scheduling: bool = True,
    certificates: Certificates | None = None,
    host: str = "",
) -> AsyncIterator[Cluster]:
    """A cluster with these nodes, ready for pods; `flags` are the scheduler's.

    Without `scheduling`, kube-scheduler is not started. `host` is for several replicas with leader election."""
    label = uuid.uuid4().hex[:6]
    namespace = f"e2e-{label}"
    certificates = certificates or FromFiles(plane.folder / f"webhook-{label}.pem")
    replica = Replica(plane, *flags, label=label, certificates=certificates, host=host)
    configuration = certificates.configuration if isinstance(certificates, SelfMade) else namespace
    webhook = webhook_configuration(configuration, namespace, certificates.client_config(replica.webhook_port))
    access = load_access(kubeconfig=str(plane.kubeconfig()), environ={})
    try:
        async with KubeClient(access) as api, client(read_kubeconfig(plane.kubeconfig("tenant"))) as tenant:
            fleet = SimulatedFleet(api, nodes)
            found = Cluster(plane, api=api, tenant=tenant, fleet=fleet, namespace=namespace, replica=replica)
            await make_namespace(api, namespace)
            await api.create(MUTATING_WEBHOOKS.path(), webhook)
            try:
                replica.tessera.start()
                if scheduling:
                    replica.kube_scheduler.start()
                await fleet.register()
                found.background = [asyncio.create_task(work) for work in (fleet.run(), found.watch_pods())]
                await replica.ready()
                await until(found.nodes_are_open, what="nodes without taints")
                await until(found.cards_are_known, what="the scheduler to know all cards")
                await until(found.webhook_is_asked, what="the webhook to be asked")
                yield found
                assert found.missing_rights() == set(), "rbac.yaml is not enough"
            finally:
                replica.kill()
                await end_tasks(found.background)
                await clean_up(api, namespace, fleet.nodes)
                await api.delete(MUTATING_WEBHOOKS.path(name=configuration))
    finally:
        replica.kill()


def webhook_configuration(name: str, namespace: str, client_config: Json) -> Json:
    """A webhook configuration for pods of this namespace."""
    webhook = {
        "name": "vgpu.hami.io",
        "clientConfig": client_config,
        "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "admissionReviewVersions": ["v1", "v1beta1"],
        "sideEffects": "None",
        "failurePolicy": "Fail",
        # The longest that is allowed: a pod must not be refused because the machine is busy.
        "timeoutSeconds": 30,
    }
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": name},
        "webhooks": [webhook],
    }


async def make_namespace(api: KubeClient, name: str) -> None:
    await api.create(NAMESPACES.path(), {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    # The controller manager creates it too, but perhaps after the first pod needs it.
    with suppress(KubeError):
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
        await api.create(SERVICE_ACCOUNTS.path(name), account)


async def end_tasks(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def clean_up(api: KubeClient, namespace: str, nodes: Iterable[str]) -> None:
    """Removes the pods, nodes and namespace of this test."""
    # First the namespace: nothing can be created in it from then on, so that no controller recreates its pods.
    await api.delete(NAMESPACES.path(name=namespace))

    async def no_pods() -> bool:
        await api.delete(PODS.path(namespace), grace_s=0)
        return not (await api.list(PODS.path(namespace), dict[str, Any])).items

    await until(no_pods, what=f"the end of the pods of {namespace}")
    for name in nodes:
        await api.delete(NODES.path(name=name))


def _state(thing: Json | None) -> str:
    """Describes a pod that does not run."""
    if thing is None:
        return "is not there"
    refusal = condition_of(thing, "PodScheduled") or {}
    texts = (phase_of(thing), node_of(thing), thing["status"].get("message", ""), refusal.get("message", ""))
    return " / ".join(filter(None, texts))
