"""Everything that is configured about one agent, checked and merged. Where it comes from is in `configuration`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from tessera.wire.node_config import NodeSettings


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


@dataclass(frozen=True, slots=True)
class MigAllowance:
    """Profiles that cards of some models may be cut into."""

    models: tuple[str, ...]
    """a model is meant where one of these is part of its name"""
    profiles: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Paths:
    """Where things are on this machine. All of them may be moved, for tests and for unusual nodes."""

    plugins: Path = Path("/var/lib/kubelet/device-plugins")
    """kubelet's folder of plugin sockets"""
    kubelet_socket: Path | None = Path("/var/lib/kubelet/device-plugins/kubelet.sock")
    """None = do not register with kubelet"""
    pod_resources: Path | None = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
    """None = do not verify handovers"""
    hook: Path = Path("/usr/local")
    """everything that containers get from the host is below `<hook>/vgpu`"""
    lock: Path = Path("/tmp/vgpulock")
    state: Path = Path("/var/lib/tessera")
    """what must outlive a restart of the agent"""
    cdi: Path = Path("/var/run/cdi")
    mps: Path = Path("/run/tessera/mps")
    dev_root: Path = Path("/")
    """the host's root as far as device nodes are concerned"""
    driver_root: Path = Path("/")
    """the host's folder that holds the driver's files"""
    driver_root_here: Path = Path("/driver-root")
    """where the agent sees the driver's folder"""
    caps: Path = Path("/proc/driver/nvidia-caps/mig-minors")
    cdi_hook: Path = Path("/usr/bin/nvidia-ctk")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """One agent on one node."""

    node_name: str
    node: NodeSettings = field(default_factory=NodeSettings)
    resource: str = "nvidia.com/gpu"
    """as kubelet counts it"""
    strategies: frozenset[DeviceListStrategy] = frozenset({DeviceListStrategy.ENVVAR})
    id_strategy: DeviceIdStrategy = DeviceIdStrategy.UUID
    pass_device_specs: bool = False
    cdi_annotation_prefix: str = "cdi.k8s.io/"
    gdrcopy: bool = False
    gds: bool = False
    mofed: bool = False
    mig_allowances: tuple[MigAllowance, ...] = ()
    """in order; the first whose models fit decides. Empty = every profile of every card"""
    disable_core_limit: bool = False
    topology_scores: bool = False
    text_registration: bool = False
    """the form that schedulers up to v2.7 read, with their handshake"""
    fail_on_init_error: bool = True
    ignored_xids: frozenset[int] = frozenset()
    """beyond those that say nothing about the card"""
    fatal_xids: frozenset[int] = frozenset()
    """win over ignored ones"""
    every_xid_is_fatal: bool = False
    every_xid_is_ignored: bool = False
    """except fatal ones"""
    health_checks: bool = True
    register_every_s: float = 30.0
    library_version: str = ""
    """of the enforcing library: `libvgpu.so.<version>` is mounted where it exists"""
    paths: Paths = field(default_factory=Paths)
    environ: Mapping[str, str] = field(default_factory=dict)

    @property
    def travels(self) -> bool:
        """Whether slices may reach containers through the pod's own environment, whatever Allocate answers."""
        return (
            self.node.mode == "hami-core"
            and self.strategies == {DeviceListStrategy.ENVVAR}
            and self.id_strategy is DeviceIdStrategy.UUID
            and not self.pass_device_specs
        )
