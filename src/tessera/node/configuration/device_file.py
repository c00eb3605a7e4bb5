"""device-config.yaml as the agent reads it: section `nvidia` of HAMi, and `flags` of NVIDIA's own plugin.

`flags` says what command-line flags say, so each value is kept as text under the name of its flag, with its place. A
file that is named but cannot be used is a problem. No file at all, and what has no effect here, is a warning. A mistake
in another vendor's section does not stop this agent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tessera.services.settings_table import FileText, ReadFile, Sources
from tessera.vendors.nvidia.section import NvidiaSection, validate_mig_allowlist
from tessera.vendors.registry import schemas
from tessera.wire.config_file import ConfigError, ConfigFile, spoken
from tessera.wire.device_config import SectionSchema, load_device_config
from tessera.wire.gobool import format_bool

SECTION = "nvidia"
NO_FILE = "no --config-file: every setting has its default, as far as flags and the node configuration do not say"
VERSIONS = ("", "v1")

FLAG_OF_KEY = {
    key.lower(): flag
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
"""keys of `flags` in lower case, because their case does not matter to Go"""

_ADVICE = {
    "sharing.mps": "set operatingmode to mps in the node configuration instead",
    "sharing.timeslicing": "cards are shared by deviceSplitCount instead",
    "resources": "all cards are one resource, named by resourceCountName",
    "imex": "channels are not handed out",
}


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
    text = sources.read_file("config-file", file, read_file)
    if text is None:
        return DeviceFile()
    known = {name: schema if name == SECTION else SectionSchema(Any) for name, schema in schemas().items()}
    try:
        section: NvidiaSection = load_device_config(text, file=file, schemas=known).get(SECTION, NvidiaSection())
        flags, warnings = _read_plugin_part(text, file)
    except ConfigError as error:
        sources.problems.extend(str(error).splitlines())
        return DeviceFile()
    try:
        validate_mig_allowlist(section.mig_profile_allowlist)
    except ValueError as error:
        sources.problems.append(f"{file}: {SECTION}: {error}")
    return DeviceFile(section, flags, tuple(warnings))


def _read_plugin_part(text: str, file: str) -> tuple[dict[str, FileText], list[str]]:
    """Flags and warnings. Raises ConfigError where the file is no YAML, or not of a version that is known."""
    read = ConfigFile(text, file=file)
    flags: dict[str, FileText] = {}
    warnings: list[str] = []
    for path, value in _members(read.value, ""):
        lower = path.lower()
        if lower == "version" and value not in VERSIONS:
            read.add(f"expected v1, found {spoken(value)}", path=path)
        elif lower == "flags":
            flags |= _read_flags(path, value, read, warnings)
        elif lower == "sharing":
            warnings.extend(
                f"{_place(read, key)}: has no effect; {_ADVICE.get(key.lower(), 'it is not known here')}"
                for key, _ in _members(value, f"{path}.")
            )
        elif lower in _ADVICE:
            warnings.append(f"{_place(read, path)}: has no effect; {_ADVICE[lower]}")
    read.check()
    return flags, warnings


def _read_flags(section: str, value: Any, read: ConfigFile, warnings: list[str]) -> dict[str, FileText]:
    found: dict[str, FileText] = {}
    members = list(_members(value, ""))
    for path, member in members:
        if path.lower() == "plugin":
            members.extend(_members(member, f"{path}."))
            continue
        name = FLAG_OF_KEY.get(path.lower())
        where = f"{section}.{path}"
        if name is None:
            warnings.append(f"{_place(read, where)}: has no effect")
            continue
        text = _text(member)
        if text is None:
            read.add(f"expected a value, found {spoken(member)}", path=where)
        else:
            found[name] = FileText(text, _place(read, where))
    return found


def _place(read: ConfigFile, path: str) -> str:
    return f"{read.file}:{read.line(path)}: {path}"


def _members(value: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    """Keys that have a value; none where it is no table, which other readers of the file complain about."""
    if isinstance(value, dict):
        for key, member in value.items():
            if member is not None:
                yield f"{prefix}{key}", member


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
