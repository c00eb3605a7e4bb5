"""From flags, environment and files to a `Configuration`, and from this to text.

    how cards are shared       node JSON > YAML `nvidia:` > flag > variable > default
    everything else            flag > variable > YAML `flags:` > default

Pure: files come through `read_file`. Everything that is wrong with flags, variables and the YAML file comes in one
`SettingsError`, and nothing is started. No YAML file at all, and what has no effect here, is a warning; a mistake in
another vendor's section does not stop this agent. `flags` in it says what command-line flags say, so each value is kept
as text under the name of its flag, with its place.

A broken node JSON must neither stop an agent whose cards are in use nor silently change how they are shared. So the
last good text is kept in the state folder and stays in force; a node that never had one falls back to the other
sources.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import yaml

from tessera.core.model.devices import MIG
from tessera.host.atomic_file import replace_file
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
from tessera.services import settings_table
from tessera.services.common_settings import PRINT_CONFIG, read_log_options
from tessera.services.settings_table import FileText, Flags, ReadFile, Sources, row_of
from tessera.vendors.nvidia.backend import NvidiaSection, validate_mig_allowlist
from tessera.vendors.registry import schemas
from tessera.wire.config_file import ConfigError, ConfigFile, spoken
from tessera.wire.device_config import FOREIGN_KEYS, SectionSchema, read_sections
from tessera.wire.errors import quoted
from tessera.wire.golang import format_bool
from tessera.wire.node_config import NodeOverride, NodeSettings, effective, load_node_config, override_for

SECTION = "nvidia"
NO_FILE = "no --config-file: every setting has its default, as far as flags and the node configuration do not say"
VERSIONS = ("", "v1")

FLAG_OF_KEY = {
    f"flags.{key}".lower(): flag
    for key, flag in {
        "migStrategy": "mig-strategy",
        "failOnInitError": "fail-on-init-error",
        "nvidiaDriverRoot": "nvidia-driver-root",
        "nvidiaDevRoot": "dev-root",
        "gdrcopyEnabled": "gdrcopy-enabled",
        "gdsEnabled": "gds-enabled",
        "mofedEnabled": "mofed-enabled",
        "deviceDiscoveryStrategy": "device-discovery-strategy",
        "plugin.passDeviceSpecs": "pass-device-specs",
        "plugin.deviceListStrategy": "device-list-strategy",
        "plugin.deviceIDStrategy": "device-id-strategy",
        "plugin.cdiAnnotationPrefix": "cdi-annotation-prefix",
        "plugin.nvidiaCTKPath": "nvidia-cdi-hook-path",
        "plugin.containerDriverRoot": "driver-root-ctr-path",
        "plugin.kubeletSocket": "kubelet-socket",
    }.items()
}
"""paths in lower case, because their case does not matter to Go"""
_TABLES = frozenset({"flags", "flags.plugin", "sharing"})

_ADVICE = {
    "sharing.mps": "set operatingmode to mps in the node configuration instead",
    "sharing.timeslicing": "cards are shared by deviceSplitCount instead",
    "resources": "all cards are one resource, named by resourceCountName",
    "imex": "channels are not handed out",
}

LAST_GOOD = "node-config.json"
"""in the state folder"""
NO_ENTRIES = "{}"
"""stands for a missing file"""

_HEAD = "# The effective configuration of this node's agent.\n"


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


@dataclass(frozen=True, slots=True)
class DeviceFile:
    nvidia: NvidiaSection = field(default_factory=NvidiaSection)
    flags: Mapping[str, FileText] = field(default_factory=dict)
    """by flag"""
    warnings: tuple[str, ...] = ()


def read_device_file(sources: Sources, *, file: str, read_file: ReadFile) -> DeviceFile:
    """What the file says; nothing where it cannot be used, which `sources` then holds."""
    if not file:
        return DeviceFile(warnings=(NO_FILE,))
    found = sources.load_file("config-file", file, read_file, partial(_load_device_file, file=file))
    if found is None:
        return DeviceFile()
    try:
        validate_mig_allowlist(found.nvidia.mig_profile_allowlist)
    except ValueError as error:
        sources.problems.append(f"{file}: {SECTION}: {error}")
    return found


def _load_device_file(text: str, *, file: str) -> DeviceFile:
    """Raises ConfigError."""
    read = ConfigFile(text, file=file)
    known = {name: schema if name == SECTION else SectionSchema(Any) for name, schema in schemas().items()}
    section = read_sections(read, known).get(SECTION, NvidiaSection())
    flags, warnings = _read_plugin_part(read)
    read.check()
    return DeviceFile(section, flags, tuple(warnings))


def _read_plugin_part(read: ConfigFile) -> tuple[dict[str, FileText], list[str]]:
    """Flags and warnings."""
    flags: dict[str, FileText] = {}
    warnings: list[str] = []
    for path, value in _entries(read.value):
        lower, place = path.lower(), f"{read.file}:{read.line(path)}: {path}"
        top, text = lower.partition(".")[0], _text(value)
        if lower == "version" and value not in VERSIONS:
            read.add(f"expected v1, found {spoken(value)}", path=path)
        elif lower in FLAG_OF_KEY and text is None:
            read.add(f"expected a value, found {spoken(value)}", path=path)
        elif lower in FLAG_OF_KEY and text is not None:
            flags[FLAG_OF_KEY[lower]] = FileText(text, place)
        elif top in FOREIGN_KEYS - {"version", "scheduler"}:
            advice = _ADVICE.get(lower, "it is not known here" if top == "sharing" else "")
            warnings.append(f"{place}: has no effect{advice and f'; {advice}'}")
    return flags, warnings


def _entries(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Keys that have a value, those of `_TABLES` one by one; what should be a table and is none says nothing."""
    for key, member in value.items() if isinstance(value, dict) else ():
        path = f"{prefix}{key}"
        if path.lower() in _TABLES:
            yield from _entries(member, f"{path}.")
        elif member is not None:
            yield path, member


def _text(value: Any) -> str | None:
    """As it would stand behind a flag; a list joined by commas."""
    match value:
        case None | dict():
            return None
        case list():
            parts = [_text(member) for member in value]
            return None if any(part is None or "," in part for part in parts) else ",".join(filter(None, parts))
        case bool():
            return format_bool(value)
    return str(value)


@dataclass(frozen=True, slots=True)
class NodeFile:
    """What was found."""

    override: NodeOverride
    good: str | None
    """text of the file where it is good; None where it is broken"""
    faults: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def read_node_file(*, file: str, named: bool, node: str, last_good: Path, read_file: ReadFile) -> NodeFile:
    """`named`: a flag names this file, so it should be there."""
    try:
        text = read_file(file)
        return NodeFile(override_for(load_node_config(text, file=file), node), text)
    except FileNotFoundError:
        missing = (f"--node-config-file: {file} does not exist: the node has no settings of its own",)
        return NodeFile(NodeOverride(name=node), NO_ENTRIES, warnings=missing if named else ())
    except OSError as error:
        problem = f"cannot read {file}: {error.strerror or error}"
    except UnicodeError:
        problem = f"cannot read {file}: it is not UTF-8 text"
    except ConfigError as error:
        problem = str(error)
    return _read_last_good(problem, node=node, last_good=last_good, read_file=read_file)


def save_last_good(text: str, folder: Path) -> None:
    """Remember a good text. Blocks; raises OSError."""
    replace_file(folder / LAST_GOOD, text.encode(), durable=True)


def _read_last_good(problem: str, *, node: str, last_good: Path, read_file: ReadFile) -> NodeFile:
    try:
        override = override_for(load_node_config(read_file(str(last_good)), file=str(last_good)), node)
    except (OSError, UnicodeError, ConfigError):
        faults = (problem, "the node configuration is broken and no earlier one is known: the node has no own settings")
        return NodeFile(NodeOverride(name=node), None, faults)
    return NodeFile(override, None, (problem, "the node configuration is broken: the last good one stays in force"))


def print_configuration(configuration: Configuration) -> str:
    """The effective configuration as YAML."""
    settings = configuration.settings
    parts = {
        "nodeconfig": [{"name": settings.node_name, **describe_node(settings)}],
        "device-plugin": describe(configuration),
        "migProfileAllowlist": [
            {"models": list(each.models), "profiles": list(each.profiles)} for each in settings.mig_allowances
        ],
    }
    return _HEAD + yaml.safe_dump(parts, sort_keys=False, width=120, allow_unicode=True)


def changes(configuration: Configuration, since: Configuration | None = None) -> dict[str, Any]:
    """What differs from an earlier configuration, or else from the defaults."""
    before = since or Configuration(settings=AgentSettings(node_name=""))
    known = describe(before) | describe_node(before.settings)
    now = describe(configuration) | describe_node(configuration.settings)
    return {name: value for name, value in now.items() if known.get(name) != value}


def describe_node(settings: AgentSettings) -> dict[str, Any]:
    """What one entry of the node JSON would say, apart from the name."""
    keys = {each.name: each.encode_name for each in msgspec.structs.fields(NodeOverride)}
    values = {each.name: getattr(settings.node, each.name) for each in fields(settings.node)}
    text = msgspec.json.encode({keys[name]: values[name] for name in keys if name in values})
    return msgspec.json.decode(text, type=dict[str, Any])


def describe(configuration: Configuration) -> dict[str, Any]:
    """Everything that the node JSON cannot say, by flag or variable."""
    health = configuration.settings.health
    return settings_table.describe(configuration) | {
        DISABLE: _xids(not health.health_checks or health.every_xid_is_ignored, health.ignored_xids),
        ENABLE: _xids(health.every_xid_is_fatal, health.fatal_xids),
    }


def _xids(all_of_them: bool, xids: frozenset[int]) -> str:
    return ",".join([*(["all"] if all_of_them else []), *map(str, sorted(xids))])
