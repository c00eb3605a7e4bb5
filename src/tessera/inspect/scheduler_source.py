"""The journal of a running scheduler, read over HTTP: through the apiserver's proxy, or from an address.

The journal names the pods of all tenants, so a scheduler shows it to its own machine, and beside its dashboard to users
whom the apiserver allows it. Without a dashboard the apiserver's proxy cannot reach it, and the error says which
port-forward does: to the replica that decides, which the Lease names. The user's token is sent to a pod only if the
webhook configuration, which no tenant can write, names its namespace. A
journal that is followed goes on after its process or the connection has ended: from the next record if it is the same
process, else with the state that the new one begins with.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from tessera.inspect.installation import SCHEDULERS, Installation, find_installation, scheduler_arguments
from tessera.inspect.state import InspectionError, Json
from tessera.kube.backoff import Backoff
from tessera.kube.client import KubeClient
from tessera.kube.errors import ApiError, KubeError, is_forbidden, is_not_found
from tessera.kube.leases import Lease, holder_host
from tessera.kube.resources import LEASES, PODS, SERVICES
from tessera.scheduler.access_review import OWN_HEADER
from tessera.wire import moves
from tessera.wire.errors import WireError
from tessera.wire.journal import Record, Start, decode_record

ROUTE = "/journal"
NAMESPACE = "tessera-system"
"""of the documented installation, where the cluster does not say another one"""
SELECTOR = "app.kubernetes.io/component=tessera-scheduler"
MONITOR = "monitor"
"""name of the port in the chart's Service"""
PORT = 8080
"""where the chart's scheduler answers filter, bind and this"""
READ_S = 600.0
"""for a journal that is read once"""
FOLLOW_S = 3600.0
"""for one request of a journal that is followed"""
NEW_LINE = "\n"
RETRY = Backoff(initial=0.5, cap=5.0)
"""in seconds; a person watches"""


@dataclass(frozen=True, slots=True)
class SchedulerAddress:
    """Where a scheduler serves its journal, or takes requests for moves."""

    name: str
    """for people"""
    path: str
    """below the server that the client is connected to"""
    help: str
    """what to do if it cannot be read"""
    is_assumed: bool = False
    """whether nothing in the cluster says that it is there"""
    token_header: str = ""
    """where it takes the user's token; empty if it needs none"""


FindAddress = Callable[[], Awaitable[SchedulerAddress]]
"""again after each loss: another replica may decide by then"""


class SchedulerSource:
    """A `JournalSource`."""

    def __init__(self, client: KubeClient, find: FindAddress, *, on_note: Callable[[str], None] = lambda _note: None):
        """`on_note` is called with each note at once, for journals that are followed."""
        self._client = client
        self._find = find
        self._on_note = on_note
        self._notes: list[str] = []
        self._name = "the running scheduler"
        self._position: tuple[str, int] | None = None
        """process and number of the last record"""

    @property
    def name(self) -> str:
        return self._name

    @property
    def notes(self) -> Sequence[str]:
        return self._notes

    async def records(self, *, follow: bool = False) -> AsyncGenerator[Record, None]:
        failures = 0
        while True:
            failures += 1
            try:
                async with aclosing(self._read(follow=follow)) as records:
                    async for record in records:
                        failures = 0
                        yield record
            except (KubeError, InspectionError) as error:
                # What never worked is a mistake of the caller; what worked comes back.
                if not follow or self._position is None:
                    raise
                if failures < 2:
                    self._note(f"the journal ended: {str(error).partition(NEW_LINE)[0]}. Trying again")
            if not follow:
                return
            await asyncio.sleep(RETRY.delay(failures))

    async def _read(self, *, follow: bool) -> AsyncGenerator[Record, None]:
        """One request."""
        address = await self._find()
        self._name = address.name
        query = {"follow": "true"} if follow else {}
        if self._position is not None:
            process, sequence = self._position
            query |= {"process": process, "since": str(sequence), "snapshot": "false"}
        lines = self._client.stream_lines(
            address.path,
            query=query,
            duration=FOLLOW_S if follow else READ_S,
            token_header=address.token_header,
        )
        try:
            async with aclosing(lines):
                async for line in lines:
                    if line.strip():
                        yield self._decode(line)
        except ApiError as error:
            raise InspectionError(_refusal(error, address)) from error
        except KubeError as error:
            raise InspectionError(f"cannot read the journal of {address.name}: {error}\n{address.help}") from error

    def _decode(self, line: bytes) -> Record:
        try:
            record = decode_record(line)
        except WireError as error:
            raise InspectionError(f"{self._name}: {error}") from error
        process = self._position[0] if self._position is not None else ""
        if isinstance(record, Start):
            if process and process != record.identity:
                self._note(f"another process of the scheduler from here on: {record.identity}")
            elif process:
                self._note("records are missing here; what follows begins with the state after them")
            process = record.identity
        self._position = process, record.sequence
        return record

    def _note(self, text: str) -> None:
        self._notes.append(text)
        self._on_note(text)


def _refusal(error: ApiError, address: SchedulerAddress) -> str:
    if is_not_found(error) and error.reason and address.is_assumed:
        # The apiserver's own answer: the scheduler's has no reason.
        return f"no scheduler of Tessera was found in this cluster: {error.message}\n{address.help}"
    if is_not_found(error):
        return (
            f"{address.name} has no journal ({error.message.strip() or error}): it is not the scheduler of Tessera, is"
            f" older than this command, or its journal is off.\n{address.help}"
        )
    what = "you may not read the journal of" if is_forbidden(error) else "cannot read the journal of"
    return f"{what} {address.name}: {error.message.strip() or error}\n{address.help}"


# -- where it is served


@dataclass(frozen=True, slots=True)
class Served:
    """What a scheduler serves beside its dashboard, for users whom the apiserver allows it."""

    route: str
    verb: str
    """on pods/proxy"""
    right: str
    """that it needs beside that"""
    without_dashboard: str
    """what a scheduler without a dashboard does"""
    repeat: str = ""
    """what else helps to repeat the command"""


JOURNAL = Served(
    ROUTE,
    "get",
    f"on the path {ROUTE}",
    "shows its journal to its own machine only",
    " (in other commands --journal-url)",
)
MOVES = Served(
    moves.PATH,
    "create",
    "`create` on pods/eviction in all namespaces",
    "takes requests for moves of its own machine only",
    ' --token "$(kubectl create token NAME)"',
)


def at_url(url: str, served: Served = JOURNAL) -> FindAddress:
    """The address of a scheduler on this machine, or at the end of a port-forward; the client is connected to it."""

    async def find() -> SchedulerAddress:
        return SchedulerAddress(
            url,
            served.route,
            f"--url is the address at which the scheduler answers filter and bind, such as http://127.0.0.1:{PORT}",
        )

    return find


def behind_apiserver(client: KubeClient, served: Served = JOURNAL) -> FindAddress:
    """The replica that decides in this cluster, through the apiserver's proxy."""

    async def find() -> SchedulerAddress:
        installation = await find_installation(client)
        namespace, service = installation.namespace or NAMESPACE, installation.name or SCHEDULERS[0]
        port = _port(installation, "--extender-bind", "--http_bind") or PORT
        pods = await _running(client, namespace)
        if not pods:
            path = SERVICES.path(namespace, f"{service}:{MONITOR}", "proxy") + served.route
            advice = _advice(served, namespace, f"deploy/{service}", port)
            return SchedulerAddress(f"Service {namespace}/{service}", path, advice, is_assumed=True)
        name = str((await _leader(client, namespace, pods))["metadata"]["name"])
        text, advice = f"pod {namespace}/{name}", _advice(served, namespace, f"pod/{name}", port)
        dashboard = _port(installation, "--dashboard-bind")
        if dashboard and installation.is_vouched_for:
            path = PODS.path(namespace, f"https:{name}:{dashboard}", "proxy") + served.route
            rights = (
                f"It needs a kubeconfig with a token, `{served.verb}` on pods/proxy in {namespace} and {served.right}."
            )
            return SchedulerAddress(text, path, f"{rights} Otherwise:\n{advice}", token_header=OWN_HEADER.decode())
        return SchedulerAddress(text, PODS.path(namespace, f"{name}:{port}", "proxy") + served.route, advice)

    return find


def _advice(served: Served, namespace: str, target: str, port: int) -> str:
    return (
        f"A scheduler without a dashboard {served.without_dashboard}. Run\n"
        f"  kubectl --namespace {namespace} port-forward {target} {port}\n"
        f"and repeat the command with --url http://127.0.0.1:{port}{served.repeat}"
    )


def _port(installation: Installation, *flags: str) -> int:
    """Of a listener of the scheduler, by the flags in its Deployment; 0 if they do not say."""
    words = scheduler_arguments(installation.deployment) if installation.deployment is not None else None
    for word in words or ():
        flag, _, value = word.partition("=")
        port = value.rpartition(":")[2]
        if flag in flags and port.isdecimal():
            return int(port)
    return 0


async def _running(client: KubeClient, namespace: str) -> list[Json]:
    """The scheduler's pods, in the order of their names; none if they may not be listed."""
    try:
        listing = await client.list(PODS.path(namespace), dict[str, Any], label_selector=SELECTOR)
    except ApiError:
        return []
    running = [pod for pod in listing.items if (pod.get("status") or {}).get("phase") == "Running"]
    return sorted(running, key=lambda pod: str(pod["metadata"]["name"]))


async def _leader(client: KubeClient, namespace: str, pods: Sequence[Json]) -> Json:
    """The pod whose kube-scheduler has a Lease of this namespace; the first one if that cannot be known."""
    try:
        leases = (await client.list(LEASES.path(namespace), Lease)).items if len(pods) > 1 else []
    except ApiError:
        leases = []
    holders = {holder_host(lease.spec.holder_identity or "") for lease in leases}
    return next((pod for pod in pods if pod["metadata"]["name"] in holders), pods[0])
