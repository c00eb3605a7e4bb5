"""The effective device configuration: file or chart, with HAMi's flags laid over it, proved by building the vendors.

Problems go to the `Given` that is passed in; they name the file and line, or the flags. Reading is left to
`read_file`, so that nothing here touches the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from tessera.scheduler.configuration.legacy_flags import ASCEND_SECTION, OVERRIDES, PRESETS, Override, Value
from tessera.services.flag_values import amount_of, resource_of, switch_of
from tessera.services.option_sources import Given
from tessera.vendors.base import Switches
from tessera.vendors.registry import build_vendors, families, schemas
from tessera.wire.device_config import empty_section, load_device_config
from tessera.wire.documents import ConfigError

ReadFile = Callable[[str], str]
"""text of a file; OSError or UnicodeError where there is none"""

Sections = Mapping[str, Any]
Scalar = str | int | bool

_PARSE: Mapping[Value, Callable[[str], Scalar]] = {
    Value.RESOURCE: resource_of,
    Value.AMOUNT: amount_of,
    Value.SWITCH: switch_of,
}


def chart_sections() -> dict[str, Any]:
    """What the chart ships."""
    return {family.section: family.chart for family in families()}


def names_ascend(given: Given) -> bool:
    """Whether a v2.4.0 flag names Ascend chips, which that version always served."""
    return any(override.flag in given for override in OVERRIDES if override.section == ASCEND_SECTION)


def device_sections(given: Given, *, file: str, switches: Switches, read_file: ReadFile) -> Sections | None:
    """Decoded sections; None = the chart's values as they are, or what cannot be used."""
    written = {override: given.read(override.flag, _PARSE[override.value], None) for override in OVERRIDES}
    overrides = {override: value for override, value in written.items() if value is not None}
    base = _from_file(given, file, read_file) if file else chart_sections()
    if base is None:
        return None
    sections = _overridden(given, base, overrides, file)
    problem = _problem(sections, switches)
    if problem is not None:
        # Only the flags are to blame for what the file alone does not have.
        if overrides and _problem(base, switches) != problem:
            flags = ", ".join(f"--{override.flag}" for override in overrides)
            given.problems.append(f"{file or 'the chart'} as overridden by {flags}: {problem}")
        else:
            given.problems.append(f"{file}: {problem}")
    return sections if file or overrides else None


def _from_file(given: Given, file: str, read_file: ReadFile) -> Sections | None:
    try:
        return load_device_config(read_file(file), file=file, schemas=schemas())
    except ConfigError as error:
        given.problems.extend(str(error).splitlines())
    except OSError as error:
        given.blame("device-config-file", f"cannot read {file}: {error.strerror or error}")
    except UnicodeError:
        given.blame("device-config-file", f"cannot read {file}: it is not UTF-8 text")
    return None


def _problem(sections: Sections, switches: Switches) -> str | None:
    try:
        build_vendors(sections, switches)
    except ValueError as error:
        return str(error)
    return None


def _overridden(given: Given, base: Sections, overrides: Mapping[Override, Scalar], file: str) -> Sections:
    sections = dict(base)
    for override, value in overrides.items():
        section = sections.get(override.section, empty_section(schemas()[override.section]))
        if not override.chips:
            sections[override.section] = _with(_preset(section, override.section), override.key, value)
            continue
        changed = _with_chip(section, override, value)
        if changed is None:
            given.blame(override.flag, f"{file} has no {override.chips[0]} under {override.section} to be named so")
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
