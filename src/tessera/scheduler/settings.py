"""What the scheduler service is told: one frozen value, made from flags, environment and files by `options`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from tessera.services.addresses import Address
from tessera.vendors.base import Switches
from tessera.vendors.pod_reader import PolicyDefaults


class NodeLockMode(Enum):
    """Whether the node-lock annotation is used."""

    AUTO = "auto"
    """on nodes whose plugin needs it"""
    ALWAYS = "always"
    NEVER = "never"


class PrivilegedMode(Enum):
    """What the webhook does with privileged containers that ask for devices."""

    IGNORE = "ignore"
    """leave them alone, with a warning"""
    DENY = "deny"


@dataclass(frozen=True, slots=True)
class Listeners:
    """Addresses of the service. `single` is HAMi's one listener for everything but metrics."""

    extender: Address | None = Address("127.0.0.1", 8080)
    webhook: Address | None = Address("", 9443)
    metrics: Address | None = Address("", 9395)
    single: Address | None = None
    client_ca: str = ""
    """PEM file: callers of filter and bind from other machines must present a certificate of this authority"""
    extender_tls: bool = False


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """A serving certificate from files, read again when they change."""

    certificate: str
    key: str


@dataclass(frozen=True, slots=True)
class SelfManaged:
    """Own authority and serving certificate, kept in a Secret, and the webhook configuration kept right."""

    namespace: str
    secret: str
    service: str
    webhook_configuration: str


@dataclass(frozen=True, slots=True)
class Leadership:
    """The Lease of the kube-scheduler beside this process; None in `Settings` = always leader."""

    namespace: str
    name: str
    identity: str
    """this host's name, the part of the holder before `_`"""


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything the service needs to know."""

    scheduler_name: str = "hami-scheduler"
    force_overwrite_default_scheduler: bool = True
    policies: PolicyDefaults = PolicyDefaults()
    switches: Switches = field(default_factory=Switches)
    device_sections: Mapping[str, Any] | None = None
    """decoded device-config.yaml; None = the chart's values"""
    device_config_file: str = ""
    node_selector: Mapping[str, str] = field(default_factory=dict)
    listeners: Listeners = Listeners()
    tls: TlsFiles | SelfManaged | None = None
    leadership: Leadership | None = None
    kubeconfig: str | None = None
    context: str | None = None
    kube_qps: float | None = None
    """requests a second to the apiserver; None = no limit of our own"""
    kube_burst: int | None = None
    kube_timeout: float = 30.0
    """seconds"""
    reservation_seconds: float = 300.0
    """how long a filter's decision is kept for its bind"""
    node_lock: NodeLockMode = NodeLockMode.AUTO
    node_lock_seconds: float = 300.0
    """age at which another pod's lock is taken as forgotten"""
    turn_seconds: float = 20.0
    """longest wait inside bind; must stay below the extender's HTTP timeout (30 s in the chart)"""
    privileged: PrivilegedMode = PrivilegedMode.IGNORE
    injects_identity: bool = True
    """the webhook makes slices travel with their pods; off while another extender still binds them"""
    hook_path: str = "/usr/local"
    """where node agents put their files into containers"""
    allow_disable_control: bool = False
    """tenants may switch the enforcement inside their containers off"""
    legacy_metrics: bool = False
    trusted_users: frozenset[str] = frozenset()
    """users whose pods may carry reserved annotations"""
    grace_seconds: float = 20.0
    """for running binds and events after SIGTERM"""
