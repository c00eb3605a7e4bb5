"""From flags, environment and files to a `Configuration`: reads the table and applies the rules between settings.

    how cards are shared       node JSON > YAML `nvidia:` > flag > variable > default
    everything else            flag > variable > YAML `flags:` > default

Pure: files come through `read_file`. Everything that is wrong with flags, variables and the YAML file comes in one
`SettingsError`, and nothing is started. A broken node JSON is a fault to report, not a reason to end (`node_file`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

from tessera.core.devices import MIG
from tessera.node.configuration.device_file import DeviceFile, read_device_file
from tessera.node.configuration.node_file import LAST_GOOD, read_node_file
from tessera.node.health.xids import DISABLE, ENABLE, HealthRules, read_rules
from tessera.node.settings import (
    CONFIG_FILE,
    DISCOVERY,
    IGNORED,
    NODE_CONFIG_FILE,
    AgentSettings,
    Configuration,
    DeviceListStrategy,
    DraAllocator,
    InventoryKind,
    Paths,
    SharingFlags,
)
from tessera.services.common_settings import PRINT_CONFIG
from tessera.services.logs import read_log_options
from tessera.services.settings_table import Flags, ReadFile, Sources, row_of
from tessera.vendors.nvidia.section import NvidiaSection
from tessera.wire.node_config import NodeOverride, NodeSettings, effective
from tessera.wire.quotes import quoted


def build_configuration(flags: Flags, environ: Mapping[str, str], read_file: ReadFile) -> Configuration:
    """What the agent is told. Raises SettingsError with all problems."""
    sources = Sources(flags, environ)
    file = sources.read(CONFIG_FILE)
    device_file = read_device_file(sources, file=file, read_file=read_file)
    sources.from_file = device_file.flags
    paths = _read_paths(sources)
    node_path = sources.read(NODE_CONFIG_FILE)
    settings = sources.load(AgentSettings, paths=paths)
    node_file = read_node_file(
        file=node_path,
        named=NODE_CONFIG_FILE.flag in sources,
        node=settings.node_name,
        last_good=paths.state / LAST_GOOD,
        read_file=read_file,
    )
    health = read_rules(disable=environ.get(DISABLE, ""), enable=environ.get(ENABLE, ""))
    settings = _complete(settings, sources, device_file, node_file.override, health)
    _check_dra(sources, settings)
    inventory, simulated = _read_inventory(sources)
    settings = replace(settings, has_real_cards=inventory is not InventoryKind.SIMULATED)
    configuration = sources.load(
        Configuration,
        settings=settings,
        inventory=inventory,
        simulated=simulated,
        files=tuple(name for name in (file, node_path) if name),
        node_config=node_file.good,
        faults=node_file.faults,
        warnings=(*device_file.warnings, *node_file.warnings, *_find_surprises(sources, settings, health)),
    )
    # Problems with these count as well, though they set nothing here.
    sources.read(PRINT_CONFIG)
    read_log_options(sources)
    sources.check()
    return configuration


def _complete(
    settings: AgentSettings, sources: Sources, file: DeviceFile, override: NodeOverride, health: HealthRules
) -> AgentSettings:
    """The settings with what files and health rules add; section `nvidia` wins over flags."""
    section = file.nvidia
    disable = section.disable_core_limit
    return replace(
        settings,
        node=_node_settings(sources.load(SharingFlags), section, override),
        resource=section.resource_count_name or settings.resource,
        disable_core_limit=settings.disable_core_limit if disable is None else disable,
        mig_allowances=tuple(section.mig_profile_allowlist),
        environ=dict(sources.environ),
        health=health,
    )


def _node_settings(flags: SharingFlags, section: NvidiaSection, override: NodeOverride) -> NodeSettings:
    written = {
        "split_count": section.device_split_count,
        "memory_scaling": section.device_memory_scaling,
        "core_scaling": section.device_core_scaling,
        "preconfigured_memory": section.pre_configured_device_memory,
        "log_level": section.lib_cuda_log_level,
        "numa_topology": section.enable_numa_topology,
    }
    return effective(asdict(flags) | {name: value for name, value in written.items() if value is not None}, override)


def _read_paths(sources: Sources) -> Paths:
    """Two paths follow others where no source names them."""
    paths = sources.load(Paths)
    if not sources.says(row_of(Paths, "kubelet_socket")):
        paths = replace(paths, kubelet_socket=paths.plugins / "kubelet.sock")
    if not sources.says(row_of(Paths, "dev_root")) or not paths.dev_root:
        paths = replace(paths, dev_root=paths.driver_root)
    return paths


def _check_dra(sources: Sources, settings: AgentSettings) -> None:
    if settings.dra_allocator is DraAllocator.TESSERA and not settings.dra:
        sources.blame("dra-allocator", "needs --dra, which publishes the cards to claims")
    if settings.dra and settings.node.serves_instances:
        sources.blame("dra", "does not serve MIG instances that exist: leave out --mig-strategy, or use mode mig")
    if settings.dra and DeviceListStrategy.CDI_ANNOTATIONS in settings.strategies:
        sources.blame("dra", "cannot set annotations: write cdi-cri instead of cdi-annotations")


def _read_inventory(sources: Sources) -> tuple[InventoryKind, Path | None]:
    simulated: Path | None = sources.read(row_of(Configuration, "simulated"))
    discovery: InventoryKind = sources.read(DISCOVERY)
    kind: InventoryKind = sources.read(row_of(Configuration, "inventory"))
    if "inventory" not in sources:
        kind = InventoryKind.SIMULATED if simulated else discovery
    if (kind is InventoryKind.SIMULATED) is not (simulated is not None):
        sources.blame("simulate", "goes with --inventory simulated, and the other way round")
    return kind, simulated


def _find_surprises(sources: Sources, settings: AgentSettings, health: HealthRules) -> list[str]:
    """What is accepted, but has another effect than a reader may expect."""
    said: list[str] = []
    node = settings.node
    if node.mig_strategy != "none" and MIG in node.modes:
        said.append(
            f"MIG strategy {node.mig_strategy} has no effect: in operating mode mig all instances are the agent's"
        )
    if MIG in node.modes and settings.text_registration:
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
    said.extend(f"--{each.flag} has no effect" for each in IGNORED if sources.read(each) not in ("", "false"))
    if health.unread:
        said.append(f"{DISABLE}, {ENABLE}: {', '.join(map(quoted, health.unread))} is neither a number nor all")
    return said
