"""Finds the installation of Tessera or HAMi in a cluster: webhook, ConfigMaps and Deployment, as far as readable.

The webhook configuration names the Service, and with it the namespace and name of everything else. If it cannot be
read, the names of the charts are tried. What is forbidden is listed in `unseen`, never raised. The scheduler's
`Settings` are built with its own parser; flags that do not affect placement (addresses, certificates, leases) are left
out, as they could only fail here. If the flags are unknown, every vendor is switched on, and claims are read: what is
not there changes nothing.

A scheduler shows its journal, which names the pods of all tenants, to its own machine, and beside its dashboard to
users whom the apiserver allows it. Without a dashboard the apiserver's proxy cannot reach it, and the error says which
port-forward does: to the replica that decides, which the Lease names. The user's token is sent to a pod only if the
webhook configuration, which no tenant can write, names its namespace.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from tessera.inspect.state import CHART_DEFAULTS, InspectionError, Json, Setup
from tessera.kube.client import KubeClient
from tessera.kube.errors import FORBIDDEN, UNAUTHORIZED, ApiError, is_not_found
from tessera.kube.leases import Lease, holder_host
from tessera.kube.resources import CONFIG_MAPS, DEPLOYMENTS, LEASES, MUTATING_WEBHOOKS, PODS, SERVICES, Resource
from tessera.scheduler.access_review import OWN_HEADER
from tessera.scheduler.configuration import build_settings
from tessera.scheduler.settings import TABLE, Settings
from tessera.services.settings_table import Group, SettingsError
from tessera.services.value_types import FlagKind
from tessera.wire import moves

T = TypeVar("T")

WEBHOOK_NAME = "vgpu.hami.io"
"""name of the webhook in its configuration, in both charts"""
CONFIGURATIONS = ("tessera-webhook", "hami-webhook")
SCHEDULERS = ("tessera-scheduler", "hami-scheduler")
"""names of scheduler, Service and ConfigMap in the charts, with default release names"""
DEVICE_CONFIG = "device-config.yaml"

DEVICE_CONFIG_FLAG = "device-config-file"

_ADMISSION = ("scheduler-name", "force-overwrite-default-scheduler", "privileged", "inject-identity", "dra-convert")
_PLACEMENT = (Group.PLACEMENT, Group.DEVICES, Group.OVERRIDES)
PLACEMENT_FLAGS = frozenset(row.flag for row in TABLE if row.group in _PLACEMENT or row.flag in _ADMISSION)
"""flags that affect placement or admission, by first name"""

_NAMES = {name: row for row in TABLE for name in row.names}

ASSUMED_FLAGS = {"enable-ascend": "true", "enable-iluvatar": "true", "dra": "true"}
"""what is assumed if the flags are unknown"""


@dataclass(frozen=True, slots=True)
class Installation:
    """What was found. None and empty mean absent or not readable."""

    namespace: str = ""
    name: str = ""
    """of the Service, and so of the Deployment and the ConfigMap"""
    webhooks: tuple[Json, ...] = ()
    """MutatingWebhookConfigurations of Tessera or HAMi"""
    webhooks_seen: bool = False
    device_config: str | None = None
    device_config_from: str = ""
    scheduler_config: Json | None = None
    """the ConfigMap of the kube-scheduler that calls the extender"""
    deployment: Json | None = None
    unseen: tuple[str, ...] = ()

    @property
    def is_vouched_for(self) -> bool:
        """Whether a webhook configuration, which only administrators write, names this namespace."""
        return bool(self.namespace) and _service(self.webhooks)[0] == self.namespace

    @property
    def setup(self) -> Setup:
        arguments = scheduler_arguments(self.deployment) if self.deployment is not None else None
        return Setup(
            device_config=self.device_config,
            device_config_from=self.device_config_from or CHART_DEFAULTS,
            flags=select_placement_flags(arguments) if arguments is not None else None,
            flags_from=f"Deployment {self.namespace}/{self.name}" if arguments is not None else "",
        )


class _InstallationReader:
    """Reads objects that may be absent or forbidden."""

    def __init__(self, client: KubeClient) -> None:
        self.client = client
        self.unseen: list[str] = []

    async def read(self, what: str, request: Awaitable[T]) -> T | None:
        """None if the object is absent or forbidden."""
        try:
            return await request
        except ApiError as error:
            if error.status in (FORBIDDEN, UNAUTHORIZED):
                self.unseen.append(f"{what} (you may not read it)")
            elif not is_not_found(error):
                self.unseen.append(f"{what} ({error})")
            return None

    async def find(self, resource: Resource, namespace: str, names: tuple[str, ...], what: str) -> Json | None:
        """The first object with one of these names in the namespace or, if that is unknown, in any."""
        for name in names:
            if namespace:
                found = await self.read(what, self.client.get(resource.path(namespace, name), dict[str, Any]))
            else:
                request = self.client.list(resource.path(), dict[str, Any], field_selector=f"metadata.name={name}")
                listing = await self.read(what, request)
                found = listing.items[0] if listing is not None and listing.items else None
            if found is not None:
                return found
        return None


async def find_installation(client: KubeClient) -> Installation:
    """Raises KubeError only if the apiserver cannot be reached."""
    reader = _InstallationReader(client)
    listing = await reader.read("the webhook configuration", client.list(MUTATING_WEBHOOKS.path(), dict[str, Any]))
    webhooks = tuple(each for each in listing.items if is_ours(each)) if listing is not None else ()
    namespace, name = _service(webhooks)
    names = (name, *SCHEDULERS) if name and name not in SCHEDULERS else SCHEDULERS
    device_names = tuple(f"{each}-device" for each in names)
    device = await reader.find(CONFIG_MAPS, namespace, device_names, "the device ConfigMap")
    if device is not None and not namespace:
        namespace, name = device["metadata"]["namespace"], device["metadata"]["name"].removesuffix("-device")
    config = await reader.find(CONFIG_MAPS, namespace, names, "kube-scheduler's ConfigMap")
    deployment = await reader.find(DEPLOYMENTS, namespace, names, "the scheduler's Deployment")
    if deployment is not None:
        namespace, name = deployment["metadata"]["namespace"], deployment["metadata"]["name"]
    text = (device.get("data") or {}).get(DEVICE_CONFIG) if device is not None else None
    where = f"ConfigMap {device['metadata']['namespace']}/{device['metadata']['name']}" if device is not None else ""
    return Installation(
        namespace=namespace,
        name=name,
        webhooks=webhooks,
        webhooks_seen=listing is not None,
        device_config=text,
        device_config_from=where if text is not None else "",
        scheduler_config=config,
        deployment=deployment,
        unseen=tuple(dict.fromkeys(reader.unseen)),
    )


def is_ours(configuration: Json) -> bool:
    names = [webhook.get("name") for webhook in configuration.get("webhooks") or ()]
    return configuration["metadata"]["name"] in CONFIGURATIONS or WEBHOOK_NAME in names


def scheduler_arguments(deployment: Json) -> list[str] | None:
    """The command line of the container that runs the scheduler; None if there is none."""
    spec = deployment.get("spec", {}).get("template", {}).get("spec", {})
    for container in spec.get("containers") or ():
        words = [*(container.get("command") or ()), *(container.get("args") or ())]
        # kube-scheduler runs in the same pod, and has flags of the same names.
        is_kube_scheduler = any("kube-scheduler" in word for word in words[:1]) or "kube-scheduler" in container["name"]
        if not is_kube_scheduler and "kube-scheduler" not in container.get("image", ""):
            return words
    return None


def _service(webhooks: tuple[Json, ...]) -> tuple[str, str]:
    """Namespace and name of the Service that the first configuration calls."""
    for configuration in webhooks:
        for webhook in configuration.get("webhooks") or ():
            service = (webhook.get("clientConfig") or {}).get("service")
            if service:
                return service.get("namespace", ""), service.get("name", "")
    return "", ""


def build_offline_settings(setup: Setup) -> Settings:
    """Raises InspectionError if the scheduler itself would not start with this setup."""
    flags = dict(ASSUMED_FLAGS if setup.flags is None else setup.flags)
    flags.pop(DEVICE_CONFIG_FLAG, None)
    if setup.device_config is not None:
        flags[DEVICE_CONFIG_FLAG] = setup.device_config_from
    try:
        return build_settings(flags, {}, lambda _path: setup.device_config or "")
    except SettingsError as error:
        raise InspectionError(
            f"the scheduler's configuration is invalid: {error}\nUse another one with --device-config-file FILE"
        ) from error


def select_placement_flags(arguments: Sequence[str]) -> dict[str, str | tuple[str, ...]]:
    """The flags of a command line that affect placement, by first name. All others are ignored."""
    found: dict[str, str | tuple[str, ...]] = {}
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.lstrip("-").partition("=")
        flag = _NAMES.get(name) if word.startswith("-") else None
        if flag is None:
            continue
        if not equals:
            value = "true" if flag.type.kind is FlagKind.SWITCH else (rest.pop(0) if rest else "")
        if flag.flag in PLACEMENT_FLAGS:
            before = found.get(flag.flag, ())
            repeats = flag.type.kind in (FlagKind.LIST, FlagKind.SET) and not isinstance(before, str)
            found[flag.flag] = (*before, value) if repeats else value
    return found


def parse_scheduler_flags(texts: Sequence[str]) -> dict[str, str | tuple[str, ...]]:
    """Parses `--scheduler-flag NAME=VALUE`. Raises InspectionError for a flag that does not affect placement."""
    for text in texts:
        name = text.lstrip("-").partition("=")[0]
        flag = _NAMES.get(name)
        if flag is None or flag.flag not in PLACEMENT_FLAGS:
            raise InspectionError(f"--scheduler-flag {text}: the scheduler has no flag {name} that affects placement")
    return select_placement_flags([f"--{text.lstrip('-')}" for text in texts])


# -- where its scheduler can be asked

ROUTE = "/journal"
NAMESPACE = "tessera-system"
"""of the documented installation, where the cluster does not say another one"""
SELECTOR = "app.kubernetes.io/component=tessera-scheduler"
MONITOR = "monitor"
"""name of the port in the chart's Service"""
PORT = 8080
"""where the chart's scheduler answers filter, bind and this"""


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
