"""Every setting of `tessera scheduler`: flag, type, default, variables and help, and the value made from them.

`configuration` reads the table and applies the rules between settings. Nothing here touches a file, and nothing
heavy is imported, so that `--help` stays quick.

The last of them are HAMi's flags that override keys of device-config.yaml, and those that are accepted without effect.
A v2.4.0 Deployment has no file: its flags are laid over the chart's values. Later Deployments have both; a flag that is
given wins, because it was written on purpose.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from tessera.services.common_settings import LOG_SETTINGS, PRINT_CONFIG, ClusterAccess, ListenerLimits
from tessera.services.settings_table import Group, Setting, nested, rows_of, setting
from tessera.services.value_types import (
    ADDRESS,
    AMOUNT,
    ANY_SWITCH,
    BYTES,
    COUNT,
    DNS_NAME,
    DURATION,
    FILE,
    LABELS,
    NAME,
    REQUIRED_ADDRESS,
    RESOURCE,
    SECONDS,
    SPAN,
    SWITCH,
    TEXT,
    Address,
    FlagKind,
    ValueType,
    choice,
    optional,
    parse_between,
    parse_directory,
    parse_number,
    parse_text,
    parse_whole,
)
from tessera.wire.errors import quoted

if TYPE_CHECKING:
    from tessera.vendors.base import Switches
    from tessera.vendors.pod_reader import PolicyDefaults

KUBE_TIMEOUT_S = 30.0


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


def _parse_policies(text: str, *, for_nodes: bool) -> str:
    from tessera.core.policies import POLICIES
    from tessera.wire.config_file import nearest

    known = [name for name, policy in POLICIES.items() if policy.nodes or not for_nodes]
    for word in [text] if for_nodes else text.split(","):
        if text and word.strip() not in known:
            hint = nearest(word.strip(), known, what="policies")
            raise ValueError(f"unknown policy {quoted(word.strip())}{hint}")
    return text


def _above_zero(value: Any) -> Any:
    """A limit; 0 and less is none."""
    return value if value > 0 else None


# A chart value that was emptied means the default, as it does in HAMi.
NODE_POLICY = ValueType("POLICY", lambda text: _parse_policies(text, for_nodes=True) or "binpack")
DEVICE_POLICY = ValueType("POLICY,...", lambda text: _parse_policies(text, for_nodes=False) or "spread")
QPS: ValueType[float | None] = ValueType("NUMBER", lambda text: _above_zero(parse_number(text)), lambda qps: qps or 0)
BURST: ValueType[int | None] = ValueType("NUMBER", lambda text: _above_zero(parse_whole(text)), lambda most: most or 0)
TIMEOUT = ValueType("SECONDS", lambda text: _above_zero(SECONDS.parse(text)) or KUBE_TIMEOUT_S, SECONDS.show)
PERCENT = ValueType("PERCENT", parse_between(1, 100))
HOOK_PATH = ValueType("DIRECTORY", parse_directory)
SCHEDULER_NAME = ValueType("NAME", parse_text)
USERS: ValueType[frozenset[str]] = ValueType("USER", lambda text: frozenset({parse_text(text)}), sorted, FlagKind.SET)


# fmt: off
# Rows of the table: field, heading, flag, type and default; then the help; then what is special.


@dataclass(frozen=True, slots=True)
class Listeners:
    """Addresses of the service. `single` is HAMi's one listener for everything but metrics."""

    extender: Address | None = setting(Group.LISTENERS, "extender-bind", ADDRESS, Address("127.0.0.1", 8080),
        "Filter and bind, for the kube-scheduler on this machine.")
    webhook: Address | None = setting(Group.LISTENERS, "webhook-bind", ADDRESS, Address("", 9443),
        "The admission webhook, over TLS.", default_text=":9443 where there is a certificate")
    metrics: Address | None = setting(Group.LISTENERS, "metrics-bind-address", ADDRESS, Address("", 9395),
        "Metrics, /healthz and /readyz. Like the others, 'none' switches it off.", aliases=("metrics-bind",))
    dashboard: Address | None = setting(Group.LISTENERS, "dashboard-bind", ADDRESS, None,
        "The dashboard, over TLS and read-only, for callers whom the apiserver allows `get` on the path /dashboard.",
        default_text="none")
    single: Address | None = setting(Group.LISTENERS, "http_bind", REQUIRED_ADDRESS, None,
        "HAMi's one listener for webhook, filter and bind, instead of the first two; TLS with a certificate.",
        aliases=("http-bind",))
    client_ca: str = setting(Group.LISTENERS, "client-ca-file", FILE, "",
        "PEM file of the authority whose client certificates let other machines call filter and bind.",
        default_text="no other machine may")
    extender_tls: bool = setting(Group.LISTENERS, "extender-tls", SWITCH, False, "Serve filter and bind over TLS.")
    limits: ListenerLimits = nested(ListenerLimits)


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


Tls = TlsFiles | SelfManaged | None


@dataclass(frozen=True, slots=True)
class CertificateFlags:
    """What `Settings.tls` is made from."""

    cert_file: str = setting(Group.CERTIFICATES, "cert_file", FILE, "",
        "Serving certificate, read again when it changes.", aliases=("cert-file",))
    key_file: str = setting(Group.CERTIFICATES, "key_file", FILE, "", "Its private key.", aliases=("key-file",))
    secret: str | None = setting(Group.CERTIFICATES, "tls-secret", ValueType("NAMESPACE/NAME", str), None,
        "Make and renew own certificates, kept in this Secret.",
        default_text="tessera-scheduler-tls where POD_NAMESPACE is set and neither files nor --http_bind are given")
    service: str = setting(Group.CERTIFICATES, "webhook-service", DNS_NAME, "tessera-scheduler",
        "Service in the Secret's namespace that own certificates are for.")
    webhook_configuration: str = setting(Group.CERTIFICATES, "webhook-configuration", DNS_NAME, "tessera-webhook",
        "MutatingWebhookConfiguration whose caBundle is kept right.")


@dataclass(frozen=True, slots=True)
class Leadership:
    """The Lease of the kube-scheduler beside this process; None in `Settings` = always leader."""

    namespace: str
    name: str
    identity: str
    """this host's name, the part of the holder before `_`"""


@dataclass(frozen=True, slots=True)
class LeaderElectionFlags:
    """What `Settings.leadership` is made from."""

    is_wanted: bool = setting(Group.LEADER, "leader-elect", SWITCH, False,
        "Decide only while the kube-scheduler beside this process holds its Lease.")
    name: str = setting(Group.LEADER, "leader-elect-resource-name", NAME, "", "That Lease.")
    namespace: str = setting(Group.LEADER, "leader-elect-resource-namespace", NAME, "",
        "Its namespace.", default_text="POD_NAMESPACE")


@dataclass(frozen=True, slots=True)
class JournalSettings:
    """How much of the decision journal is kept."""

    memory_bytes: int = setting(Group.OPERATION, "journal-memory", BYTES, 64 << 20,
        "Memory for the decision journal; the oldest records leave.")
    file: str = setting(Group.OPERATION, "journal-file", FILE, "",
        "Also write the decision journal to this file, as JSON lines.", default_text="only in memory")
    file_bytes: int = setting(Group.OPERATION, "journal-file-size", BYTES, 100 << 20,
        "Size at which the file is renamed to FILE.1, FILE.1 to FILE.2 and so on, and a new one begins.")
    files: int = setting(Group.OPERATION, "journal-files", COUNT, 4,
        "Files that are kept, the one that is written included.")


@dataclass(frozen=True, slots=True)
class DefragSettings:
    """Pods that are moved on a schedule, for pods and gangs that wait."""

    enabled: bool = setting(Group.PLACEMENT, "defrag", SWITCH, False,
        "Move pods so that pods and gangs fit that wait for devices.")
    interval_s: float = setting(Group.PLACEMENT, "defrag-interval", SPAN, 300.0,
        "Time between two rounds in which moves are planned.")
    evictions_per_hour: int = setting(Group.PLACEMENT, "defrag-evictions-per-hour", COUNT, 10,
        "Evict at most this many pods in any hour to move them, restarts included.")
    patience_s: float = setting(Group.PLACEMENT, "defrag-patience", DURATION, 120.0,
        "How long a pod waits before others are moved for it.")
    max_moves: int = setting(Group.PLACEMENT, "defrag-max-moves", COUNT, 5,
        "Move at most this many pods for one pod or gang that waits.")
    step_timeout_s: float = setting(Group.PLACEMENT, "defrag-step-timeout", SPAN, 600.0,
        "Time for one move; its target is held as long.")
    dry_run: bool = setting(Group.PLACEMENT, "defrag-dry-run", SWITCH, False,
        "Only log the plans.")
    lease_namespace: str | None = setting(Group.PLACEMENT, "defrag-lease-namespace", optional(DNS_NAME), None,
        "Namespace of the Lease tessera-defrag, which has the record of evictions.", env=("POD_NAMESPACE",),
        default_text="that of the context")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(ClusterAccess):
    """Everything that the service needs to know."""

    kube_qps: float | None = setting(Group.CLUSTER, "kube-qps", QPS, None,
        "Requests per second to the apiserver.", default_text="no limit")
    kube_burst: int | None = setting(Group.CLUSTER, "kube-burst", BURST, None,
        "Requests above that at once.", default_text="10 with --kube-qps")
    kube_timeout: float = setting(Group.CLUSTER, "kube-timeout", TIMEOUT, KUBE_TIMEOUT_S, "Time for one request.")
    listeners: Listeners = nested(Listeners)
    tls: Tls = None
    scheduler_name: str = setting(Group.ADMISSION, "scheduler-name", SCHEDULER_NAME, "hami-scheduler",
        "schedulerName of device pods.")
    force_overwrite_default_scheduler: bool = setting(Group.ADMISSION, "force-overwrite-default-scheduler", SWITCH,
        True,
        "Take device pods that name the default-scheduler.")
    privileged: PrivilegedMode = setting(Group.ADMISSION, "privileged", choice(PrivilegedMode), PrivilegedMode.IGNORE,
        "Privileged containers that ask for devices.")
    injects_downward_api: bool = setting(Group.ADMISSION, "inject-identity", SWITCH, True,
        "Containers get their slices from their own pod's annotations (downward API); false while another extender "
        "still binds pods.")
    hook_path: str = setting(Group.ADMISSION, "hook-path", HOOK_PATH, "/usr/local",
        "Where node agents put files into containers.")
    allow_disable_control: bool = setting(Group.ADMISSION, "allow-disable-control", SWITCH, False,
        "Let tenants switch enforcement inside their containers off.")
    dra_convert: bool = setting(Group.ADMISSION, "dra-convert", SWITCH, False,
        "Turn requests for NVIDIA cards into ResourceClaims; with --dra.")
    trusted_users: frozenset[str] = setting(Group.ADMISSION, "trusted-user", USERS, frozenset(),
        "User whose pods may carry reserved annotations; may be repeated.")
    node_policy: str = setting(Group.PLACEMENT, "node-scheduler-policy", NODE_POLICY, "binpack",
        "Which node, where the pod does not say.")
    device_policy: str = setting(Group.PLACEMENT, "gpu-scheduler-policy", DEVICE_POLICY, "spread",
        "Which card, where the pod does not say.")
    node_selector: Mapping[str, str] = setting(Group.PLACEMENT, "node-label-selector", LABELS, {},
        "Only nodes with these labels.", default_text="all")
    reservation_s: float = setting(Group.PLACEMENT, "reservation-timeout", SPAN, 300.0,
        "How long a decision waits for its bind.")
    preemption: bool = setting(Group.PLACEMENT, "preemption", SWITCH, True,
        "Evict pods of lower priority for a pod that fits on no node.")
    preemption_delay_s: float = setting(Group.PLACEMENT, "preemption-delay", DURATION, 0.0,
        "Time after a pod's first refusal before pods are evicted for it, so that an autoscaler may add a node first.")
    nomination_s: float = setting(Group.PLACEMENT, "nomination-timeout", SPAN, 300.0,
        "How long devices are held for a pod after the grace of the pods that were evicted for it.")
    defrag: DefragSettings = nested(DefragSettings)
    turn_s: float = setting(Group.PLACEMENT, "turn-timeout", DURATION, 20.0,
        "How long a bind waits for its turn on the node; below the extender's httpTimeout (30s in the chart).")
    gang_s: float = setting(Group.PLACEMENT, "gang-timeout", SPAN, 20.0,
        "How long a gang's plan waits for the next member, each time; not the time for the whole gang.")
    gang_starving_s: float = setting(Group.PLACEMENT, "gang-starvation-timeout", DURATION, 300.0,
        "How long a gang waits before what becomes free is held for it; 0: it never is.")
    gang_hold_percent: int = setting(Group.PLACEMENT, "gang-hold-share", PERCENT, 10,
        "Per cent of all cards that gangs of one namespace may hold without being bound, on average over hours.")
    node_lock: NodeLockMode = setting(Group.PLACEMENT, "node-lock", choice(NodeLockMode), NodeLockMode.AUTO,
        "Use of the node-lock annotation; auto: on nodes whose plugin needs it.")
    node_lock_s: float = setting(Group.PLACEMENT, "node-lock-timeout", SPAN, 300.0,
        "Age at which another pod's lock counts as forgotten.", env=("HAMI_NODELOCK_EXPIRE",))
    dra: bool = setting(Group.DEVICES, "dra", SWITCH, False,
        "Place pods with ResourceClaims too, on cards whose agents leave them to Tessera (--dra-allocator=tessera); "
        "from Kubernetes 1.34 on.")
    device_config_file: str = setting(Group.DEVICES, "device-config-file", FILE, "",
        "device-config.yaml with one section per vendor.", default_text="all vendors, with the chart's names")
    device_sections: Mapping[str, Any] | None = None
    """decoded device-config.yaml; None = the chart's values"""
    enable_ascend: bool = setting(Group.DEVICES, "enable-ascend", SWITCH, False,
        "Serve Ascend NPUs.", default_text="false, or true with an --ascend... flag")
    enable_iluvatar: bool = setting(Group.DEVICES, "enable-iluvatar", SWITCH, False,
        "Serve Iluvatar chips of section iluvatars.")
    leadership: Leadership | None = None
    journal: JournalSettings = nested(JournalSettings)
    legacy_metrics: bool = setting(Group.OPERATION, "legacy-metrics", SWITCH, False,
        "Publish HAMi's metrics under their old names too.")
    hami_events: bool = setting(Group.OPERATION, "hami-events", SWITCH, False,
        "Tell refusals in HAMi's coded texts, several events for each pod, instead of one sentence.")
    shutdown_delay_s: float = setting(Group.OPERATION, "shutdown-delay-duration", DURATION, 0.0,
        "Time after SIGTERM in which everything is still served, so that apiservers turn to another replica.")
    grace_s: float = setting(Group.OPERATION, "grace-period", DURATION, 20.0,
        "Time for running binds and events after that.")

    @property
    def policies(self) -> PolicyDefaults:
        from tessera.vendors.pod_reader import PolicyDefaults

        return PolicyDefaults(node=self.node_policy, device=self.device_policy)

    @property
    def switches(self) -> Switches:
        from tessera.vendors.base import Switches

        return Switches(ascend=self.enable_ascend, iluvatar=self.enable_iluvatar)


# fmt: on


@dataclass(frozen=True, slots=True)
class Override:
    """One flag that overrides one key."""

    flag: str
    section: str
    key: str
    """as the file spells it"""
    type: ValueType[Any] = RESOURCE
    chips: tuple[str, ...] = ()
    """where the section is a list of chips: names of the chip that is meant; the first one found counts"""

    @property
    def setting(self) -> Setting:
        target = f"{self.key} of {self.chips[0]} in {self.section}" if self.chips else f"{self.section}.{self.key}"
        return Setting(self.flag, self.type, None, Group.OVERRIDES, f"Overrides {target}.")


def _names(section: str, stem: str, **keys: str) -> tuple[Override, ...]:
    return tuple(Override(f"{stem}-{ending}", section, key) for ending, key in keys.items())


_COUNT_MEMORY_CORES = {"name": "resourceCountName", "memory": "resourceMemoryName", "cores": "resourceCoreName"}

ASCEND_910 = ("Ascend910B3", "Ascend910B", "Ascend910")
"""v2.4.0 knew one kind of 910, with 64 GiB; files call it by these words"""
ASCEND_310P = ("Ascend310P",)

OVERRIDES: tuple[Override, ...] = (
    Override("resource-name", "nvidia", "resourceCountName"),
    Override("resource-mem", "nvidia", "resourceMemoryName"),
    Override("resource-mem-percentage", "nvidia", "resourceMemoryPercentageName"),
    Override("resource-cores", "nvidia", "resourceCoreName"),
    Override("resource-priority", "nvidia", "resourcePriorityName"),
    Override("default-mem", "nvidia", "defaultMemory", AMOUNT),
    Override("default-cores", "nvidia", "defaultCores", AMOUNT),
    Override("default-gpu", "nvidia", "defaultGPUNum", AMOUNT),
    Override("overwrite-env", "nvidia", "overwriteEnv", SWITCH),
    *_names("cambricon", "cambricon-mlu", **_COUNT_MEMORY_CORES),
    *_names("hygon", "dcu", **_COUNT_MEMORY_CORES),
    *_names("iluvatar", "iluvatar", **_COUNT_MEMORY_CORES),
    *_names("mthreads", "mthreads", **_COUNT_MEMORY_CORES),
    Override("metax-name", "metax", "resourceCountName"),
    Override("metax-vcount", "metax", "resourceVCountName"),
    Override("metax-vmemory", "metax", "resourceVMemoryName"),
    Override("metax-vcore", "metax", "resourceVCoreName"),
    Override("sgpu-topology-aware", "metax", "sgpuTopologyAware", SWITCH),
    Override("enflame-gcu-resource-name", "enflame", "resourceNameGCU"),
    # HAMi v2.10 reads the older flag as another name of the newer one, which wins: it comes later here.
    Override("enflame-vgcu-resource-name", "enflame", "resourceNameDRSGCU"),
    Override("enflame-drs-gcu-resource-name", "enflame", "resourceNameDRSGCU"),
    Override("enflame-gcu-memory-resource-name", "enflame", "resourceNameGCUMemory"),
    Override("enflame-gcu-core-resource-name", "enflame", "resourceNameGCUCore"),
    Override("enflame-vgcu-legacy-resource-name", "enflame", "resourceNameVGCU"),
    Override("enflame-vgcu-percentage-resource-name", "enflame", "resourceNameVGCUPercentage"),
    Override("kunlun-name", "kunlun", "resourceCountName"),
    Override("kunlun-vcount", "kunlun", "resourceVCountName"),
    Override("kunlun-vmemory", "kunlun", "resourceVMemoryName"),
    Override("ascend-name", "vnpus", "resourceName", chips=ASCEND_910),
    Override("ascend-memory", "vnpus", "resourceMemoryName", chips=ASCEND_910),
    Override("ascend310p-name", "vnpus", "resourceName", chips=ASCEND_310P),
    Override("ascend310p-memory", "vnpus", "resourceMemoryName", chips=ASCEND_310P),
)

ASCEND_SECTION = "vnpus"

PRESETS = {
    "iluvatar": {
        "resourceCountName": "iluvatar.ai/vgpu",
        "resourceMemoryName": "iluvatar.ai/vcuda-memory",
        "resourceCoreName": "iluvatar.ai/vcuda-core",
    }
}
"""v2.4's own values of a section that neither file nor chart has; v2.4.0 Deployments give only some of them"""

_KLOG_TEXTS = "log_backtrace_at log_dir log_file log_file_max_size stderrthreshold alsologtostderrthreshold"
_KLOG_SWITCHES = (
    "logtostderr alsologtostderr add_dir_header one_output skip_headers skip_log_headers "
    "legacy_stderr_threshold_behavior"
)


def _ignored(flag: str, type: ValueType[str], help: str) -> Setting:
    return Setting(flag, type, "", Group.IGNORED, help)


def _klog(flag: str, type: ValueType[str]) -> Setting:
    aliases = (flag.replace("_", "-"),) if "_" in flag else ()
    return Setting(flag, type, "", Group.IGNORED, "No effect: logs go to stderr.", aliases=aliases, hidden=True)


IGNORED: tuple[Setting, ...] = (
    _ignored("debug", ANY_SWITCH, "No effect, as in HAMi."),
    _ignored("profiling", ANY_SWITCH, "No effect: there are no Go profiles here."),
    Setting("node-lock-retry-timeout", DURATION, 0.0, Group.IGNORED, "No effect: bind waits instead (--turn-timeout)."),
    _ignored("vmodule", TEXT, "No effect, nor have klog's other flags (--logtostderr, ...): logs go to stderr."),
    *(_klog(flag, TEXT) for flag in _KLOG_TEXTS.split()),
    *(_klog(flag, ANY_SWITCH) for flag in _KLOG_SWITCHES.split()),
)

TABLE: tuple[Setting, ...] = (
    *rows_of(Settings, CertificateFlags, LeaderElectionFlags),
    *LOG_SETTINGS,
    PRINT_CONFIG,
    *(override.setting for override in OVERRIDES),
    *IGNORED,
)
"""every flag of `tessera scheduler`"""
