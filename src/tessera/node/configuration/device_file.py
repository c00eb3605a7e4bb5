"""device-config.yaml as the agent reads it: NVIDIA's section of HAMi's part, and what NVIDIA's own plugin put there.

A mistake in another vendor's section does not stop this agent. A file that is named but cannot be used is a problem; no
file at all is only a warning.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tessera.node.configuration.plugin_section import PluginSection, read_plugin_section
from tessera.services.settings_table import ReadFile, Sources
from tessera.vendors.nvidia import mig
from tessera.vendors.nvidia.section import NvidiaSection
from tessera.vendors.registry import schemas
from tessera.wire.device_config import SectionSchema, load_device_config
from tessera.wire.documents import ConfigError

SECTION = "nvidia"

NO_FILE = "no --config-file: every setting has its default, as far as flags and the node configuration do not say"


@dataclass(frozen=True, slots=True)
class DeviceFile:
    nvidia: NvidiaSection = field(default_factory=NvidiaSection)
    plugin: PluginSection = field(default_factory=lambda: PluginSection({}))
    warnings: tuple[str, ...] = ()


def read_device_file(sources: Sources, *, file: str, read_file: ReadFile) -> DeviceFile:
    """What the file says; nothing where it cannot be used, which `sources` then holds."""
    if not file:
        return DeviceFile(warnings=(NO_FILE,))
    text = sources.read_file("config-file", file, read_file)
    if text is None:
        return DeviceFile()
    try:
        found = load_device_config(text, file=file, schemas=_schemas())
        plugin = read_plugin_section(text, file=file)
    except ConfigError as error:
        sources.problems.extend(str(error).splitlines())
        return DeviceFile()
    section: NvidiaSection = found.get(SECTION, NvidiaSection())
    try:
        mig.validate(section.mig_profile_allowlist)
    except ValueError as error:
        sources.problems.append(f"{file}: {SECTION}: {error}")
    return DeviceFile(section, plugin, plugin.warnings)


def _schemas() -> dict[str, Any]:
    return {name: schema if name == SECTION else SectionSchema(Any) for name, schema in schemas().items()}
