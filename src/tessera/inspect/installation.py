"""What a cluster shows of Tessera's (or HAMi's) installation: webhook, ConfigMaps, Deployment, as far as may be read.

The webhook configuration names the Service, and with it namespace and name of everything else; where it cannot be read,
the names that the charts give are looked for. A refusal is remembered in `unseen`, never raised.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any, TypeVar

from tessera.inspect.scheduler_settings import deciding_flags
from tessera.inspect.state import CHART_DEFAULTS, Json, Setup
from tessera.kube.client import KubeClient
from tessera.kube.errors import ApiError
from tessera.kube.resources import CONFIG_MAPS, DEPLOYMENTS, MUTATING_WEBHOOKS, Resource

T = TypeVar("T")

WEBHOOK = "vgpu.hami.io"
"""name of the webhook inside its configuration, in both charts"""
CONFIGURATIONS = ("tessera-webhook", "hami-webhook")
SCHEDULERS = ("tessera-scheduler", "hami-scheduler")
"""names that the charts give to scheduler, Service and ConfigMap, releases named otherwise aside"""
DEVICE_CONFIG = "device-config.yaml"
FORBIDDEN, UNAUTHORIZED, NOT_FOUND = 403, 401, 404


@dataclass(frozen=True, slots=True)
class Installation:
    """What was found; None and empty = not there or not visible."""

    namespace: str = ""
    name: str = ""
    """of the Service, and so of Deployment and ConfigMap"""
    webhooks: tuple[Json, ...] = ()
    """MutatingWebhookConfigurations that are ours or HAMi's"""
    webhooks_seen: bool = False
    device_config: str | None = None
    device_config_from: str = ""
    scheduler_config: Json | None = None
    """the ConfigMap of the kube-scheduler beside the extender"""
    deployment: Json | None = None
    unseen: tuple[str, ...] = ()

    @property
    def setup(self) -> Setup:
        arguments = scheduler_arguments(self.deployment) if self.deployment is not None else None
        return Setup(
            device_config=self.device_config,
            device_config_from=self.device_config_from or CHART_DEFAULTS,
            flags=deciding_flags(arguments) if arguments is not None else None,
            flags_from=f"Deployment {self.namespace}/{self.name}" if arguments is not None else "",
        )


class _Looking:
    """Requests whose refusal is an answer too."""

    def __init__(self, client: KubeClient) -> None:
        self.client = client
        self.unseen: list[str] = []

    async def ask(self, what: str, request: Awaitable[T]) -> T | None:
        """None where it is not there, or must not be seen."""
        try:
            return await request
        except ApiError as error:
            if error.status in (FORBIDDEN, UNAUTHORIZED):
                self.unseen.append(f"{what} (no right to read it)")
            elif error.status != NOT_FOUND:
                self.unseen.append(f"{what} ({error})")
            return None

    async def named(self, resource: Resource, names: tuple[str, ...], what: str) -> Json | None:
        """The first object of one of these names in any namespace."""
        for name in names:
            listing = await self.ask(
                what, self.client.list(resource.path(), dict[str, Any], field_selector=f"metadata.name={name}")
            )
            if listing is None:
                return None
            if listing.items:
                return listing.items[0]
        return None


async def find_installation(client: KubeClient) -> Installation:
    """Raises KubeError only where the apiserver cannot be talked to at all."""
    looking = _Looking(client)
    listing = await looking.ask("the webhook configuration", client.list(MUTATING_WEBHOOKS.path(), dict[str, Any]))
    webhooks = tuple(each for each in listing.items if is_ours(each)) if listing is not None else ()
    namespace, name = _service(webhooks)
    names = (name, *SCHEDULERS) if name and name not in SCHEDULERS else SCHEDULERS
    device_names = tuple(f"{each}-device" for each in names)
    device = await _read(looking, CONFIG_MAPS, namespace, device_names, "the device ConfigMap")
    if device is not None and not namespace:
        namespace, name = device["metadata"]["namespace"], device["metadata"]["name"].removesuffix("-device")
    config = await _read(looking, CONFIG_MAPS, namespace, names, "the ConfigMap of kube-scheduler")
    deployment = await _read(looking, DEPLOYMENTS, namespace, names, "the scheduler's Deployment")
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
        unseen=tuple(dict.fromkeys(looking.unseen)),
    )


def is_ours(configuration: Json) -> bool:
    names = [webhook.get("name") for webhook in configuration.get("webhooks") or ()]
    return configuration["metadata"]["name"] in CONFIGURATIONS or WEBHOOK in names


def scheduler_arguments(deployment: Json) -> list[str] | None:
    """The command line of the container that runs the scheduler; None where none looks like it."""
    spec = deployment.get("spec", {}).get("template", {}).get("spec", {})
    for container in spec.get("containers") or ():
        words = [*(container.get("command") or ()), *(container.get("args") or ())]
        # kube-scheduler is there too, and has flags of the same names.
        is_kube_scheduler = any("kube-scheduler" in word for word in words[:1]) or "kube-scheduler" in container["name"]
        if not is_kube_scheduler and "kube-scheduler" not in container.get("image", ""):
            return words
    return None


async def _read(
    looking: _Looking, resource: Resource, namespace: str, names: tuple[str, ...], what: str
) -> Json | None:
    if not namespace:
        return await looking.named(resource, names, what)
    for name in names:
        found = await looking.ask(what, looking.client.get(resource.path(namespace, name), dict[str, Any]))
        if found is not None:
            return found
    return None


def _service(webhooks: tuple[Json, ...]) -> tuple[str, str]:
    """Namespace and name of the Service that the first of them calls."""
    for configuration in webhooks:
        for webhook in configuration.get("webhooks") or ():
            service = (webhook.get("clientConfig") or {}).get("service")
            if service:
                return service.get("namespace", ""), service.get("name", "")
    return "", ""
