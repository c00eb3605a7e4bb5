"""From flags, environment and files to a `Configuration`: the one place that knows what the agent is told and how.

    how cards are shared       node JSON > YAML `nvidia:` > flag > variable > default
    everything else            flag > variable > YAML `flags:` > default

Pure: files come through `read_file`. Everything that is wrong with flags, variables and the YAML file comes in one
`OptionsError`, and nothing is started. A broken node JSON is a fault to report, not a reason to end (`node_file`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tessera.core.devices import MIG
from tessera.node.configuration import values
from tessera.node.configuration.agent import Configuration, InventoryKind
from tessera.node.configuration.device_file import ReadFile, read_device_file
from tessera.node.configuration.flags import FLAGS, Group
from tessera.node.configuration.node_file import DEFAULT_FILE, LAST_GOOD, read_node_file
from tessera.node.configuration.sources import Told
from tessera.node.health.xids import DISABLE, ENABLE, HealthRules, read_rules
from tessera.node.settings import AgentSettings, DeviceIdStrategy, MigAllowance, Paths
from tessera.services import flag_values as read
from tessera.services.logs import LogFormat, LogLevel, LogOptions
from tessera.services.option_sources import Flags, Given, OptionsError
from tessera.vendors.nvidia.section import NvidiaSection
from tessera.wire.node_config import GlobalNodeSettings, NodeOverride, NodeSettings, effective
from tessera.wire.quotes import quoted

__all__ = ["Flags", "OptionsError", "ReadFile", "build_configuration", "flags_of", "log_options", "wants_print"]

DEBUG_VERBOSITY = 5
"""HAMi's chart runs at 4, so that it must not mean debug"""
TEGRA = "tegra"
TOPOLOGY = "enable-topology-score"

_PATHS = Paths()
_USUAL = AgentSettings(node_name="")


def build_configuration(flags: Flags, environ: Mapping[str, str], read_file: ReadFile) -> Configuration:
    """What the agent is told. Raises OptionsError with all problems."""
    given = Given(flags, environ)
    nothing = Told(given, {})
    file = nothing.read("config-file", read.text_of, "")
    device_file = read_device_file(given, file=file, read_file=read_file)
    told = Told(given, device_file.plugin.flags)
    node_name = told.read("node-name", read.dns_name_of, "")
    if "node-name" not in told:
        given.blame("node-name", "is needed; a DaemonSet sets NODE_NAME from spec.nodeName")
    paths = _paths(told)
    node_path = told.read("node-config-file", read.some_text, DEFAULT_FILE)
    node_file = read_node_file(
        file=node_path,
        named="node-config-file" in given,
        node=node_name,
        last_good=paths.state / LAST_GOOD,
        read_file=read_file,
    )
    settings = _settings(told, node_name, device_file.nvidia, node_file.override, paths)
    inventory, simulated = _inventory(told)
    configuration = Configuration(
        settings=settings,
        inventory=inventory,
        simulated=simulated,
        metrics=told.read("metrics-bind-address", read.address_of, Configuration(settings=_USUAL).metrics),
        kubeconfig=_home(told.read("kubeconfig", read.text_of, ""), environ) or None,
        context=told.read("context", read.text_of, "") or None,
        files=tuple(name for name in (file, node_path) if name),
        node_config=node_file.good,
        faults=node_file.faults,
        warnings=(*device_file.warnings, *node_file.warnings, *_surprises(told, settings)),
    )
    given.read("print-config", read.switch_of, False)
    _log_options(given)
    given.check()
    return configuration


def log_options(flags: Flags) -> LogOptions:
    """How to log. `build_configuration` has said what is wrong with these flags; here that counts as not given."""
    return _log_options(Given(flags, {}))


def wants_print(flags: Flags) -> bool:
    """Whether the configuration is only to be printed."""
    return Given(flags, {}).read("print-config", read.switch_of, False)


def flags_of(group: Group, flags: Flags) -> list[str]:
    """The flags of a group that were given."""
    return [f"--{flag.name}" for flag in FLAGS if flag.group is group and flag.name in flags]


def _settings(
    told: Told, node_name: str, section: NvidiaSection, override: NodeOverride, paths: Paths
) -> AgentSettings:
    switch = read.switch_of
    resource = told.read("resource-name", read.resource_of, "")
    disable = told.read("disable-core-limit", switch, False)
    health = _health(told.given.environ)
    return AgentSettings(
        node_name=node_name,
        node=_node_settings(told, section, override),
        resource=section.resource_count_name or resource or _USUAL.resource,
        strategies=told.read("device-list-strategy", values.strategies_of, _USUAL.strategies),
        id_strategy=told.read("device-id-strategy", read.one_of(DeviceIdStrategy), _USUAL.id_strategy),
        pass_device_specs=told.read("pass-device-specs", switch, False),
        cdi_annotation_prefix=told.read("cdi-annotation-prefix", values.prefix_of, _USUAL.cdi_annotation_prefix),
        gdrcopy=told.read("gdrcopy-enabled", switch, False),
        gds=told.read("gds-enabled", switch, False),
        mofed=told.read("mofed-enabled", switch, False),
        mig_allowances=tuple(MigAllowance(each.models, each.profiles) for each in section.mig_profile_allowlist),
        disable_core_limit=disable if section.disable_core_limit is None else section.disable_core_limit,
        topology_scores=_topology(told.given),
        text_registration=told.read("text-registration", switch, False),
        fail_on_init_error=told.read("fail-on-init-error", switch, True),
        library_version=told.read("library-version", values.version_of, ""),
        paths=paths,
        environ=dict(told.given.environ),
        ignored_xids=health.ignored_xids,
        fatal_xids=health.fatal_xids,
        every_xid_is_fatal=health.every_xid_is_fatal,
        every_xid_is_ignored=health.every_xid_is_ignored,
        health_checks=health.health_checks,
    )


def _node_settings(told: Told, section: NvidiaSection, override: NodeOverride) -> NodeSettings:
    split = told.read("device-split-count", read.amount_of, None)
    memory = told.read("device-memory-scaling", values.scaling_of, None)
    cores = told.read("device-cores-scaling", values.scaling_of, None)
    everywhere = GlobalNodeSettings(
        split_count=split if section.device_split_count is None else section.device_split_count,
        memory_scaling=memory if section.device_memory_scaling is None else section.device_memory_scaling,
        core_scaling=cores if section.device_core_scaling is None else section.device_core_scaling,
        preconfigured_memory=section.pre_configured_device_memory,
        log_level=section.lib_cuda_log_level,
        numa_topology=section.enable_numa_topology,
        mig_strategy=told.read("mig-strategy", values.mig_strategy_of, None),
    )
    return effective(everywhere, override)


def _paths(told: Told) -> Paths:
    folder = values.folder_of
    plugins = told.read("plugin-dir", folder, _PATHS.plugins)
    driver = told.read("nvidia-driver-root", folder, _PATHS.driver_root)
    return Paths(
        plugins=plugins,
        kubelet_socket=told.read("kubelet-socket", values.maybe(folder), plugins / "kubelet.sock"),
        pod_resources=told.read("pod-resources-socket", values.maybe(folder), _PATHS.pod_resources),
        hook=told.read("hook-path", folder, _PATHS.hook),
        lock=told.read("lock-dir", folder, _PATHS.lock),
        state=told.read("state-dir", folder, _PATHS.state),
        cdi=told.read("cdi-dir", folder, _PATHS.cdi),
        mps=told.read("mps-dir", folder, _PATHS.mps),
        dev_root=told.read("dev-root", values.maybe(folder), None) or driver,
        driver_root=driver,
        driver_root_here=told.read("driver-root-ctr-path", folder, _PATHS.driver_root_here),
        cdi_hook=told.read("nvidia-cdi-hook-path", folder, _PATHS.cdi_hook),
    )


def _inventory(told: Told) -> tuple[InventoryKind, Path | None]:
    simulated = told.read("simulate", values.file_of, None)
    discovery = told.read("device-discovery-strategy", _discovery_of, InventoryKind.AUTO)
    usual = InventoryKind.SIMULATED if simulated else discovery
    kind = told.read("inventory", read.one_of(InventoryKind), usual)
    if (kind is InventoryKind.SIMULATED) is not (simulated is not None):
        told.given.blame("simulate", "goes with --inventory simulated, and the other way round")
    return kind, simulated


def _discovery_of(text: str) -> InventoryKind:
    if text == TEGRA:
        raise ValueError("integrated Tegra GPUs are not served; leave it out, or write nvml")
    if text not in ("auto", "nvml"):
        raise ValueError(f"expected auto or nvml, found {quoted(text)}")
    return InventoryKind(text)


def _topology(given: Given) -> bool:
    """HAMi's variable is on for the word `true` and for nothing else, and never wrong."""
    if TOPOLOGY in given:
        return given.read(TOPOLOGY, read.switch_of, False)
    return given.environ.get("ENABLE_TOPOLOGY_SCORE") == "true"


def _health(environ: Mapping[str, str]) -> HealthRules:
    return read_rules(disable=environ.get(DISABLE, ""), enable=environ.get(ENABLE, ""))


def _surprises(told: Told, settings: AgentSettings) -> list[str]:
    """What is accepted, but not what somebody may expect of it."""
    said: list[str] = []
    node = settings.node
    if node.mig_strategy != "none" and node.mode == "mig":
        said.append(
            f"MIG strategy {node.mig_strategy} has no effect: in operating mode mig all instances are the agent's"
        )
    if node.mode == MIG and settings.text_registration:
        said.append(
            "--text-registration has no MIG profiles: schedulers that read it place nothing on this node's cards"
        )
    for what, value in {
        "device split count": node.split_count,
        "device memory scaling": node.memory_scaling,
        "device core scaling": node.core_scaling,
    }.items():
        if not value:
            said.append(f"the {what} is 0: the node offers nothing that can be asked for")
    for name in ("imex-channel-ids", "imex-required"):
        if told.read(name, read.text_of, "") not in ("", "false"):
            said.append(f"--{name} has no effect")
    unread = _health(told.given.environ).unread
    if unread:
        said.append(f"{DISABLE}, {ENABLE}: {', '.join(map(quoted, unread))} is neither a number nor all")
    return said


def _log_options(given: Given) -> LogOptions:
    verbosity = given.read("v", lambda text: read.whole_of(text.removeprefix("=")), 0)
    level = LogLevel.DEBUG if verbosity >= DEBUG_VERBOSITY else LogLevel.INFO
    return LogOptions(
        format=given.read("log-format", read.one_of(LogFormat), None),
        level=given.read("log-level", read.one_of(LogLevel), level),
    )


def _home(path: str, environ: Mapping[str, str]) -> str:
    """`--kubeconfig=~/file` reaches us as it is written: no shell looks behind the equals sign."""
    home = environ.get("HOME", "")
    return f"{home}{path[1:]}" if home and (path == "~" or path.startswith("~/")) else path
