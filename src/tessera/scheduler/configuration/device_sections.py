"""The effective device configuration: file or chart, overridden by HAMi's flags, checked by building the vendors.

Problems are noted in the `Sources` that are passed in; they name the file and line, or the flags. Reading is left to
`read_file`, so that nothing here touches the disk.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tessera.scheduler.configuration.legacy_flags import ASCEND_SECTION, OVERRIDES, PRESETS, Override
from tessera.scheduler.settings import Settings
from tessera.services.settings_table import ReadFile, Sources
from tessera.vendors.base import Switches
from tessera.vendors.registry import build_vendors, families, schemas
from tessera.wire.config_file import ConfigError
from tessera.wire.device_config import empty_section, load_device_config

Sections = Mapping[str, Any]
Scalar = str | int | bool


def chart_sections() -> dict[str, Any]:
    """What the chart ships."""
    return {family.section: family.chart for family in families()}


def names_ascend(sources: Sources) -> bool:
    """Whether a v2.4.0 flag names Ascend chips, which that version always served."""
    return any(override.flag in sources for override in OVERRIDES if override.section == ASCEND_SECTION)


def read_device_sections(sources: Sources, settings: Settings, read_file: ReadFile) -> Sections | None:
    """Decoded sections; None = the chart's values as they are, or what cannot be used."""
    file, switches = settings.device_config_file, settings.switches
    written = {override: sources.read(override.setting) for override in OVERRIDES}
    overrides = {override: value for override, value in written.items() if value is not None}
    base = _from_file(sources, file, read_file) if file else chart_sections()
    if base is None:
        return None
    sections = _overridden(sources, base, overrides, file)
    problem = _problem(sections, switches)
    if problem is not None:
        # Only the flags are to blame for what the file alone does not have.
        if overrides and _problem(base, switches) != problem:
            flags = ", ".join(f"--{override.flag}" for override in overrides)
            sources.problems.append(f"{file or 'the chart'} as overridden by {flags}: {problem}")
        else:
            sources.problems.append(f"{file}: {problem}")
    return sections if file or overrides else None


def _from_file(sources: Sources, file: str, read_file: ReadFile) -> Sections | None:
    text = sources.read_file("device-config-file", file, read_file)
    try:
        return None if text is None else load_device_config(text, file=file, schemas=schemas())
    except ConfigError as error:
        sources.problems.extend(str(error).splitlines())
        return None


def _problem(sections: Sections, switches: Switches) -> str | None:
    try:
        build_vendors(sections, switches)
    except ValueError as error:
        return str(error)
    return None


def _overridden(sources: Sources, base: Sections, overrides: Mapping[Override, Scalar], file: str) -> Sections:
    sections = dict(base)
    for override, value in overrides.items():
        section = sections.get(override.section, empty_section(schemas()[override.section]))
        if not override.chips:
            sections[override.section] = _with(_preset(section, override.section), override.key, value)
            continue
        changed = _with_chip(section, override, value)
        if changed is None:
            sources.blame(override.flag, f"{file} has no {override.chips[0]} under {override.section} to be named so")
        else:
            sections[override.section] = changed
    return sections


def _preset(section: Any, name: str) -> Any:
    """The section, or v2.4's own values where it is empty."""
    if section != empty_section(schemas()[name]):
        return section
    for key, value in PRESETS.get(name, {}).items():
        section = _with(section, key, value)
    return section


def _with_chip(section: Any, override: Override, value: Scalar) -> Any | None:
    """The section with one chip changed; None where it has no such chip."""
    words = [chip.common_word for chip in section.configs]
    word = next((word for word in override.chips if word in words), None)
    if word is None:
        return None
    chips = tuple(_with(c, override.key, value) if c.common_word == word else c for c in section.configs)
    return msgspec.structs.replace(section, configs=chips)


def _with(section: Any, key: str, value: Scalar) -> Any:
    """The section with the value of one key, spelled as in the file, replaced."""
    names = {field.encode_name: field.name for field in msgspec.structs.fields(section)}
    return msgspec.structs.replace(section, **{names[key]: value})
