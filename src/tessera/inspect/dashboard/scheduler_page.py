"""The page of a running scheduler, from its own engine. Read-only: nothing here calls what changes the ledger.

`run` is what `tessera scheduler --dashboard-bind` runs. Reservations, pods in handover and pods that wait are shown as
the scheduler itself knows them. What is used of cards is unknown here, because the scheduler reads no monitors. A
replica that does not decide knows no waiting pods, and says so.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable
from dataclasses import replace
from typing import Any

import msgspec

from tessera.http11.router import Route
from tessera.inspect import sanitize
from tessera.inspect.dashboard.journal import FollowedJournal, RunningReader
from tessera.inspect.dashboard.pods import NO_ORIGIN, PodOrigin, WaitingPod, pod_origin
from tessera.inspect.dashboard.server import SECURITY_HEADERS, PageServer
from tessera.inspect.dashboard.source import PageSource, PodAnswer
from tessera.inspect.dashboard.state import LiveState
from tessera.inspect.dashboard.steps import Allowance, finish_in_steps, pause_for
from tessera.inspect.explanation import bad_pod_text, explain_in_steps
from tessera.inspect.offline_cluster import InspectedCluster, OfflineCluster
from tessera.inspect.state import ClusterState, InspectionError, Json
from tessera.kube.errors import KubeError
from tessera.kube.resources import NODES, PODS, RESOURCE_CLAIM_TEMPLATES
from tessera.scheduler import process
from tessera.scheduler.access_review import AccessReview, get_on_path
from tessera.scheduler.engine_view import GangView
from tessera.scheduler.http_api import journal_routes
from tessera.scheduler.observer import RefusedEvent
from tessera.scheduler.process import Reload, ServedPage
from tessera.scheduler.queue.unschedulable_pods import MAX_WORK
from tessera.scheduler.service import Service
from tessera.scheduler.settings import Settings
from tessera.wire.objects import Pod
from tessera.wire.resource_api import ResourceClaimTemplate

PATH, JOURNAL_PATH = "/dashboard", "/journal"
"""that a ClusterRole allows `get` on (`nonResourceURLs`)"""
BACKGROUND_SHARE = 0.02
"""of the event loop, for finding out why pods wait"""
QUESTION_SHARE = 0.2
"""of the event loop, while a question is answered"""
NODES_S = 60.0
"""that labels and taints of nodes, and templates of claims, are good for: what would be placed is a guess anyway"""
MAX_EXPLAIN_S = 4.0
"""of processor time for one pod"""
NOT_ASKED = "kube-scheduler has not asked about it"
MAX_REFUSED = 16_384
"""pods whose refusals are counted; without a viewer, nothing tells which of them wait no more"""


def run(settings: Settings, reload: Reload | None = None) -> int:
    """Run the scheduler with its page until told to stop; the exit code."""
    return process.run(settings, reload, SchedulerPage())


class Refusals:
    """Whose the pods that wait are, since when they do, and how often they were refused: by uid, since this process
    began."""

    def __init__(self) -> None:
        self._pods: dict[str, tuple[PodOrigin, int]] = {}

    def add(self, uid: str, pod: Pod | None, now: float) -> None:
        # To the end: of too many, the pod that was refused longest ago is forgotten.
        known = self._pods.pop(uid, None)
        origin, number = known or (_waiting_origin(pod, now), 0)
        self._pods[uid] = origin, number + 1
        if len(self._pods) > MAX_REFUSED:
            del self._pods[next(iter(self._pods))]

    def get(self, uid: str) -> tuple[PodOrigin, int | None]:
        return self._pods.get(uid, (NO_ORIGIN, None))


def _waiting_origin(pod: Pod | None, now: float) -> PodOrigin:
    origin = NO_ORIGIN if pod is None else pod_origin(pod)
    return origin._replace(since=now if origin.created is None else origin.created)


class SchedulerPage(ServedPage):
    """Listens to the scheduler, and serves what it knows."""

    headers = SECURITY_HEADERS

    def __init__(self) -> None:
        self.origins: dict[str, PodOrigin] = {}
        """of the pods that the API shows on a node with devices"""
        self.refusals = Refusals()
        self._server: PageServer | None = None

    def routes(self, service: Service) -> list[Route]:
        state = LiveState(EngineSource(service, self), share=QUESTION_SHARE, background_share=BACKGROUND_SHARE)
        self._server = PageServer(state, AccessReview(service.client, get_on_path(PATH)))
        journal = journal_routes(service.journal, AccessReview(service.client, get_on_path(JOURNAL_PATH)).refuse)
        return [*self._server.routes(), *journal]

    async def close(self) -> None:
        if self._server is not None:
            await self._server.close()

    # -- told by the scheduler

    def on_pod(self, uid: str, pod: Pod | None) -> None:
        if pod is None:
            self.origins.pop(uid, None)
        else:
            self.origins[uid] = pod_origin(pod)

    def on_refused(self, event: RefusedEvent) -> None:
        self.refusals.add(event.request.uid, event.pod, time.time())


class SchedulerCluster(InspectedCluster):
    """The cluster as a running scheduler knows it."""

    def __init__(self, service: Service) -> None:
        super().__init__(service.view, ClusterState(service.settings.scheduler_name, time.time()), service.settings)

    def candidates_in_steps(self, document: Json) -> Generator[None, None, tuple[list[str], dict[str, str]]]:
        """The nodes that kube-scheduler has asked about; all of them before it does."""
        every, named = self.ledger.node_names(), self.view.candidates_of(document["metadata"]["uid"])
        yield
        names = every if named is None else sorted(named.names)
        return list(names), dict.fromkeys(sorted({*every} - {*names}), NOT_ASKED)


class EngineSource(PageSource):
    """The engine of the scheduler, as a source of the page."""

    kind = "scheduler"
    is_live = True

    def __init__(self, service: Service, page: SchedulerPage) -> None:
        self._pause = pause_for(QUESTION_SHARE)
        journal = service.journal
        past = FollowedJournal(lambda: RunningReader(journal, self._pause), begin=lambda: journal.begin)
        super().__init__(SchedulerCluster(service), past)
        self._service = service
        self._page = page
        self._nodes: dict[str, Json] = {}
        self._templates: dict[str, ResourceClaimTemplate] = {}
        self._nodes_at = float("-inf")

    @property
    def problem(self) -> str:
        is_idle = not self._service.is_leader
        idle = "this replica does not decide: reservations and the pods that wait are known to another one"
        return self._service.unsynced() or (idle if is_idle else "")

    def origin(self, uid: str) -> PodOrigin:
        return self._page.origins.get(uid) or self._page.refusals.get(uid)[0]

    def waiting(self) -> Iterable[WaitingPod]:
        refusals = self._page.refusals
        for request, candidates in self.view.refused():
            origin, attempts = refusals.get(request.uid)
            pod = WaitingPod(request.uid, request.namespace, request.name, request, candidates)
            yield replace(pod, origin=origin, attempts=attempts)
        for found, problem in self.view.awaiting_claims():
            metadata, (origin, attempts) = found.metadata, refusals.get(found.metadata.uid)
            pod = WaitingPod(metadata.uid, metadata.namespace, metadata.name, None, problem=bad_pod_text(problem))
            yield replace(pod, origin=origin if attempts else _waiting_origin(found, time.time()), attempts=attempts)

    def gang_since(self, gang: GangView) -> float | None:
        # Another process may have decided before this one met the gang.
        return super().gang_since(gang) or gang.since

    async def explain(self, namespace: str, name: str) -> PodAnswer | None:
        try:
            document = await self._service.client.find(PODS.path(namespace, name), dict[str, Any])
        except KubeError as error:
            raise InspectionError(f"the pod cannot be read now: {error}") from error
        if document is None:
            return None
        cluster, key = SchedulerCluster(self._service), f"{namespace}/{name}"
        pod = cluster.pods[key] = msgspec.convert(document, Pod)
        cluster.documents[key] = document
        pause = Allowance(self._pause, MAX_EXPLAIN_S, "use `tessera explain`")
        found = await finish_in_steps(explain_in_steps(cluster, key, work=MAX_WORK), pause)
        state = self.view.state_of(pod.metadata.uid)
        return PodAnswer(found, state.name.lower() if state is not None else "")

    async def fork(self) -> OfflineCluster:
        now = time.time()
        if now - self._nodes_at > NODES_S:
            self._nodes, self._nodes_at = await self._list_nodes(), now
            self._templates = await self._list_templates() if self._service.settings.dra else {}
        fork = OfflineCluster(ClusterState("the scheduler", now), settings=self._service.settings)
        fork.fork_from(self.view, self._nodes, self._templates)
        return fork

    async def _list_templates(self) -> dict[str, ResourceClaimTemplate]:
        """By namespace and name. None where they may not be listed: then a manifest has to bring its own."""
        try:
            found = (await self._service.client.list(RESOURCE_CLAIM_TEMPLATES.path(), ResourceClaimTemplate)).items
        except KubeError:
            return {}
        return {f"{each.metadata.namespace}/{each.metadata.name}": each for each in found}

    async def _list_nodes(self) -> dict[str, Json]:
        """What kube-scheduler looks at before it asks Tessera; the informer keeps only what Tessera looks at."""
        found: dict[str, Json] = {}
        try:
            async for page in self._service.client.pages(NODES.path(), dict[str, Any]):
                found = {} if page.is_first else found
                for document in page.items:
                    node = sanitize.sanitize_node(document, frozenset())
                    found[node["metadata"]["name"]] = node
        except KubeError as error:
            raise InspectionError(f"the nodes cannot be listed now: {error}") from error
        return found
