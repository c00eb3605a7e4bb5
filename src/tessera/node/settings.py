"""Every setting of `tessera device-plugin`: flag, type, default, variables and help, and the values made from them.

`configuration` reads the table and applies the rules between settings. Nothing heavy is imported here, so that
`--help` stays quick. What the monitor has as well is in `services.common_settings`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tessera.node.health.xids import HealthRules
from tessera.services.common_settings import (
    LOG_SETTINGS,
    PRINT_CONFIG,
    ClusterAccess,
    ListenerLimits,
    NodeServiceSettings,
)
from tessera.services.settings_table import Group, Setting, nested, rows_of, setting, shared
from tessera.services.value_types import (
    ABSOLUTE_FILE,
    ADDRESS,
    AMOUNT,
    ANY_SWITCH,
    DIRECTORY,
    FILE,
    RESOURCE,
    SWITCH,
    Address,
    FlagKind,
    ValueType,
    choice,
    matching,
    one_of,
    optional,
    parse_number,
    parse_text,
)
from tessera.wire.errors import quoted
from tessera.wire.keys import DRA_DRIVER

if TYPE_CHECKING:
    from tessera.vendors.nvidia.backend import MigAllowance
    from tessera.wire.node_config import NodeSettings

MAX_SCALING = 1000.0
"""times; more is a slip of the pen, and would not fit where registered sizes go"""
RESOURCE_NAME = "nvidia.com/gpu"

_VERSION = re.compile(r"([A-Za-z0-9][A-Za-z0-9._+-]{0,63})?\Z", re.ASCII)
"""part of a file name, so nothing that leads out of a folder; or empty"""
_PREFIX = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9._-]{0,63}\Z", re.ASCII)
"""the beginning of an annotation's key, up to the slash or a little further"""


class DeviceListStrategy(Enum):
    """How a container is told which cards it gets."""

    ENVVAR = "envvar"
    VOLUME_MOUNTS = "volume-mounts"
    CDI_ANNOTATIONS = "cdi-annotations"
    CDI_CRI = "cdi-cri"

    @property
    def is_cdi(self) -> bool:
        return self in (DeviceListStrategy.CDI_ANNOTATIONS, DeviceListStrategy.CDI_CRI)


class DeviceIdStrategy(Enum):
    """By what name a container is told its cards."""

    UUID = "uuid"
    INDEX = "index"


class InventoryKind(Enum):
    """Where the agent finds its cards."""

    AUTO = "auto"
    NVML = "nvml"
    SIMULATED = "simulated"
    NULL = "null"


class DraAllocator(Enum):
    """Which scheduler allocates ResourceClaims on this node's cards."""

    KUBE_SCHEDULER = "kube-scheduler"
    """any stock one; the cards are for claims only"""
    TESSERA = "tessera"
    """Tessera's, which places pods without claims on the same cards"""


# -- types


def _parse_strategies(text: str) -> frozenset[DeviceListStrategy]:
    """A comma list; empty parts say nothing."""
    parse = choice(DeviceListStrategy).parse
    found = frozenset(parse(word) for word in (part.strip() for part in text.split(",")) if word)
    if not found:
        raise ValueError("expected at least one strategy, found nothing")
    return found


def _parse_scaling(text: str) -> float:
    value = parse_number(text)
    if not 0 <= value <= MAX_SCALING:
        raise ValueError(f"expected a number from 0 to {MAX_SCALING:g}, found {quoted(text)}")
    return value


def _parse_discovery(text: str) -> InventoryKind:
    if text == "tegra":
        raise ValueError("integrated Tegra GPUs are not served; leave it out, or write nvml")
    if text not in ("auto", "nvml"):
        raise ValueError(f"expected auto or nvml, found {quoted(text)}")
    return InventoryKind(text)


STRATEGIES: ValueType[frozenset[DeviceListStrategy]] = ValueType(
    "STRATEGY,...", _parse_strategies, lambda found: ",".join(sorted(each.value for each in found)), FlagKind.LIST
)
ONLY_ENVVAR = frozenset({DeviceListStrategy.ENVVAR})
ID_STRATEGY = choice(DeviceIdStrategy)
SCALING = ValueType("NUMBER", _parse_scaling)
PREFIX = ValueType("PREFIX", matching(_PREFIX, "a domain and a slash such as cdi.k8s.io/", str))
VERSION = ValueType("VERSION", matching(_VERSION, "a version such as v2.10.0", str))
DISCOVERED = ValueType("auto|nvml", _parse_discovery)
MIG_STRATEGY = one_of({word: word for word in ("none", "single", "mixed")})
SOME_RESOURCE = ValueType("RESOURCE", lambda text: RESOURCE.parse(text) or RESOURCE_NAME)
SOME_FILE = ValueType("FILE", parse_text)
MAYBE_DIRECTORY: ValueType[Any] = optional(DIRECTORY)
MAYBE_FILE = optional(ABSOLUTE_FILE)
RELATIVE_FILE = ValueType("FILE", lambda text: Path(parse_text(text)))


KUBELET = Path("/var/lib/kubelet")

# fmt: off
# Rows of the table: field, heading, flag, type and default; then the help; then what is special.


@dataclass(frozen=True, slots=True, kw_only=True)
class Paths:
    """Where things are on this machine. All of them may be moved, for tests and for unusual nodes."""

    plugins: Path = setting(Group.KUBELET, "plugin-dir", DIRECTORY, KUBELET / "device-plugins",
        "kubelet's folder of plugin sockets.")
    kubelet_socket: Path | None = setting(Group.KUBELET, "kubelet-socket", MAYBE_FILE,
        KUBELET / "device-plugins/kubelet.sock",
        "Where to register; empty: nowhere.", default_text="kubelet.sock in --plugin-dir", env=("KUBELET_SOCKET",))
    pod_resources: Path | None = setting(Group.KUBELET, "pod-resources-socket", MAYBE_FILE,
        KUBELET / "pod-resources/kubelet.sock", "To verify which container got which devices; empty: do not.")
    registry: Path = setting(Group.KUBELET, "plugin-registry-dir", DIRECTORY, KUBELET / "plugins_registry",
        "kubelet's folder of plugin registrations, for --dra.")
    dra: Path = setting(Group.KUBELET, "dra-plugin-dir", DIRECTORY, KUBELET / "plugins" / DRA_DRIVER,
        "Where the socket is that kubelet calls for ResourceClaims, for --dra.")
    hook: Path = setting(Group.FOLDERS, "hook-path", DIRECTORY, Path("/usr/local"),
        "Everything that containers get from the host is below DIRECTORY/vgpu.", env=("HOOK_PATH",))
    state: Path = setting(Group.FOLDERS, "state-dir", DIRECTORY, Path("/var/lib/tessera"),
        "What must outlive a restart.")
    cdi: Path = setting(Group.FOLDERS, "cdi-dir", DIRECTORY, Path("/var/run/cdi"), "Where CDI specifications go.")
    mps: Path = setting(Group.FOLDERS, "mps-dir", DIRECTORY, Path("/run/tessera/mps"), "Pipes of MPS daemons.")
    lock: Path = setting(Group.FOLDERS, "lock-dir", DIRECTORY, Path("/tmp/vgpulock"),
        "The enforcing library's lock folder.")
    driver_root: Path = setting(Group.CARDS, "nvidia-driver-root", DIRECTORY, Path("/"),
        "The host's folder that holds the driver's files.", env=("NVIDIA_DRIVER_ROOT",))
    driver_root_here: Path = shared(NodeServiceSettings, "driver_root_here")
    dev_root: Path = setting(Group.CARDS, "dev-root", MAYBE_DIRECTORY, Path("/"),
        "The host's folder that holds dev/.", default_text="the driver root", aliases=("nvidia-dev-root",),
        env=("NVIDIA_DEV_ROOT",))
    cdi_hook: Path = setting(Group.CONTAINERS, "nvidia-cdi-hook-path", ABSOLUTE_FILE, Path("/usr/bin/nvidia-ctk"),
        "The host's nvidia-ctk, for CDI.", aliases=("nvidia-ctk-path",),
        env=("NVIDIA_CDI_HOOK_PATH", "NVIDIA_CTK_PATH"))
    caps: Path = Path("/proc/driver/nvidia-caps/mig-minors")


def _default_node_settings() -> NodeSettings:
    from tessera.wire.node_config import NodeSettings

    return NodeSettings()


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """One agent on one node."""

    node_name: str = shared(NodeServiceSettings, "node_name")
    node: NodeSettings = field(default_factory=_default_node_settings)
    dra: bool = setting(Group.KUBELET, "dra", SWITCH, False,
        "Serve ResourceClaims (DRA, Kubernetes 1.34 and later): the node's cards are published as ResourceSlices.")
    dra_allocator: DraAllocator = setting(Group.KUBELET, "dra-allocator", choice(DraAllocator),
        DraAllocator.KUBE_SCHEDULER,
        "Which scheduler allocates these claims, with --dra. kube-scheduler: the cards are not registered for pods "
        "that ask for nvidia.com/gpu. tessera: such pods and claims share the cards, and a taint keeps other "
        "schedulers away; needs `tessera scheduler --dra`.")
    fail_on_init_error: bool = setting(Group.CARDS, "fail-on-init-error", SWITCH, True,
        "Not ready (/readyz) until the cards were read once; false: ready without cards. The agent never ends over it "
        "and tries again by itself.",
        env=("FAIL_ON_INIT_ERROR",))
    topology_scores: bool = setting(Group.CARDS, "enable-topology-score", SWITCH, False,
        "Register how well pairs of cards are connected.", env=("ENABLE_TOPOLOGY_SCORE",),
        # HAMi's variable is on for this word alone, and never wrong.
        parse_env=lambda text: text == "true")
    text_registration: bool = setting(Group.CARDS, "text-registration", SWITCH, False,
        "Register in the form, and with the handshake, that HAMi's schedulers up to v2.7 read.")
    strategies: frozenset[DeviceListStrategy] = setting(Group.CONTAINERS, "device-list-strategy", STRATEGIES,
        ONLY_ENVVAR,
        "How a container is told its cards: envvar, volume-mounts, cdi-annotations, cdi-cri; a list.",
        env=("DEVICE_LIST_STRATEGY",))
    id_strategy: DeviceIdStrategy = setting(Group.CONTAINERS, "device-id-strategy", ID_STRATEGY, DeviceIdStrategy.UUID,
        "By what name it is told them.", env=("DEVICE_ID_STRATEGY",))
    pass_device_specs: bool = setting(Group.CONTAINERS, "pass-device-specs", SWITCH, False,
        "Hand out device nodes as well.", env=("PASS_DEVICE_SPECS",))
    cdi_annotation_prefix: str = setting(Group.CONTAINERS, "cdi-annotation-prefix", PREFIX, "cdi.k8s.io/",
        "Of the annotations that name CDI devices.", env=("CDI_ANNOTATION_PREFIX",))
    gdrcopy: bool = setting(Group.CONTAINERS, "gdrcopy-enabled", SWITCH, False,
        "Ask for GDRCopy.", env=("GDRCOPY_ENABLED",))
    gds: bool = setting(Group.CONTAINERS, "gds-enabled", SWITCH, False,
        "Ask for GPUDirect Storage.", env=("GDS_ENABLED",))
    mofed: bool = setting(Group.CONTAINERS, "mofed-enabled", SWITCH, False,
        "Ask for Mellanox devices.", env=("MOFED_ENABLED",))
    library_version: str = setting(Group.CONTAINERS, "library-version", VERSION, "",
        "Mount libvgpu.so.VERSION where it exists.", default_text="libvgpu.so")
    external_mps_daemons: bool = setting(Group.CARDS, "external-mps-daemons", SWITCH, False,
        "Let `tessera mps-daemons` start MPS daemons, so that they outlive the agent's container.")
    disable_core_limit: bool = setting(Group.LOWEST, "disable-core-limit", SWITCH, False,
        "Limit memory only.", env=("DISABLE_CORE_LIMIT",))
    resource: str = setting(Group.LOWEST, "resource-name", SOME_RESOURCE, RESOURCE_NAME,
        "Resource that kubelet counts.")
    mig_allowances: tuple[MigAllowance, ...] = ()
    """in order; the first whose models fit decides. Empty = every profile of every card"""
    health: HealthRules = HealthRules()
    register_every_s: float = 30.0
    paths: Paths = nested(Paths)
    environ: Mapping[str, str] = field(default_factory=dict)
    has_real_cards: bool = True
    """false with --simulate: nothing runs on the cards, so nothing has to be limited"""

    @property
    def serves_pods(self) -> bool:
        """Whether pods that ask for the resource get slices of the cards: registration and device plugin."""
        return not self.dra or self.dra_allocator is DraAllocator.TESSERA

    @property
    def serves_both(self) -> bool:
        """Whether such pods and ResourceClaims share the cards."""
        return self.dra and self.serves_pods

    @property
    def uses_downward_api(self) -> bool:
        """Whether containers may get their slices through the downward API, whatever Allocate answers."""
        return (
            self.node.modes == {"hami-core"}
            and self.strategies == {DeviceListStrategy.ENVVAR}
            and self.id_strategy is DeviceIdStrategy.UUID
            and not self.pass_device_specs
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration(ClusterAccess):
    """One reading of flags, environment and files: the agent's settings, and what only its process needs."""

    settings: AgentSettings = nested(AgentSettings)
    inventory: InventoryKind = setting(Group.CARDS, "inventory", choice(InventoryKind), InventoryKind.AUTO,
        "Where cards are found; auto: NVML where its library is there, else no cards.")
    simulated: Path | None = setting(Group.CARDS, "simulate", RELATIVE_FILE, None,
        "Serve the cards that this file describes instead of real ones.")
    metrics: Address | None = setting(Group.OPERATION, "metrics-bind-address", ADDRESS, Address("", 9395),
        "Metrics, /healthz and /readyz; 'none' switches it off.", aliases=("metrics-bind",))
    limits: ListenerLimits = nested(ListenerLimits)
    files: tuple[str, ...] = ()
    """read again when they change"""
    node_config: str | None = None
    """text of the node configuration where it is good: worth keeping for the day when it is not"""
    faults: tuple[str, ...] = ()
    """what is wrong and was worked round; the agent serves all the same"""
    warnings: tuple[str, ...] = ()
    """what has no effect, or another one than a reader may expect"""


CONFIG_FILE = Setting("config-file", FILE, "", Group.FILES,
    "device-config.yaml: sections nvidia and flags.", default_text="none, and the default of every setting",
    env=("CONFIG_FILE",))
NODE_CONFIG_FILE = Setting("node-config-file", SOME_FILE, "/config/config.json", Group.FILES,
    "config.json with settings of single nodes; goes over everything else.")
DISCOVERY = Setting("device-discovery-strategy", DISCOVERED, InventoryKind.AUTO, Group.CARDS,
    "NVIDIA's name for --inventory, which wins.", env=("DEVICE_DISCOVERY_STRATEGY",))


@dataclass(frozen=True, slots=True)
class SharingFlags:
    """The lowest source of `AgentSettings.node`; None where flags and variables do not say."""

    mig_strategy: str | None = setting(Group.CARDS, "mig-strategy", MIG_STRATEGY, None,
        "Hand out MIG instances that exist, as nvidia.com/gpu or as nvidia.com/mig-*.", default_text="none",
        env=("MIG_STRATEGY",))
    split_count: int | None = setting(Group.LOWEST, "device-split-count", AMOUNT, None,
        "Pods that may share a card.", default_text="10", env=("DEVICE_SPLIT_COUNT",))
    memory_scaling: float | None = setting(Group.LOWEST, "device-memory-scaling", SCALING, None,
        "Memory registered per memory that a card has.", default_text="1", env=("DEVICE_MEMORY_SCALING",))
    core_scaling: float | None = setting(Group.LOWEST, "device-cores-scaling", SCALING, None,
        "The same for cores.", default_text="1", env=("DEVICE_CORES_SCALING",))


IGNORED = (
    Setting("imex-channel-ids", ValueType("NUMBER,...", str, kind=FlagKind.LIST), "", Group.IGNORED,
        "No effect: channels never reach a container in HAMi either.", env=("IMEX_CHANNEL_IDS",)),
    Setting("imex-required", ANY_SWITCH, "", Group.IGNORED, "No effect.", env=("IMEX_REQUIRED",)),
)

# fmt: on
TABLE: tuple[Setting, ...] = (
    *rows_of(Configuration, SharingFlags),
    CONFIG_FILE,
    NODE_CONFIG_FILE,
    DISCOVERY,
    *LOG_SETTINGS,
    PRINT_CONFIG,
    *IGNORED,
)
"""every flag of `tessera device-plugin`"""
