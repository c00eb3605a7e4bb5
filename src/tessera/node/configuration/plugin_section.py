"""The part of device-config.yaml that NVIDIA's own plugin defined: `flags`, and what is not served here.

`flags` says what command-line flags say, so each value is kept as text under the name of its flag, with its place.
`sharing`, `resources` and `imex` are accepted and have no effect; that is a warning, never a reason to stop.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tessera.services.settings_table import FileText
from tessera.wire.documents import Item, Listing, Report, Scalar, Table
from tessera.wire.gobool import format_bool
from tessera.wire.yaml_source import read_yaml

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
class PluginSection:
    flags: dict[str, FileText]
    """by the name of the flag"""
    warnings: tuple[str, ...] = ()


def read_plugin_section(text: str, *, file: str) -> PluginSection:
    """Raises ConfigError where the file is no YAML, or not of a version that is known."""
    report = Report(file)
    root = read_yaml(text, report)
    flags: dict[str, FileText] = {}
    warnings: list[str] = []
    for path, item in _members(root, ""):
        lower = path.lower()
        place = f"{file}:{item.line}: {path}"
        if lower == "version" and not (isinstance(item, Scalar) and item.value in (None, *VERSIONS)):
            report.add(f"expected v1, found {item}", line=item.line, path=path)
        elif lower == "flags":
            flags |= _flags(item, report, warnings)
        elif lower == "sharing":
            warnings.extend(
                f"{file}:{member.line}: {key}: has no effect; {_ADVICE.get(key.lower(), 'it is not known here')}"
                for key, member in _members(item, "sharing.")
            )
        elif lower in _ADVICE:
            warnings.append(f"{place}: has no effect; {_ADVICE[lower]}")
    report.check()
    return PluginSection(flags, tuple(warnings))


def _flags(item: Item, report: Report, warnings: list[str]) -> dict[str, FileText]:
    found: dict[str, FileText] = {}
    members = list(_members(item, ""))
    for path, member in members:
        if path.lower() == "plugin":
            members.extend(_members(member, "plugin."))
            continue
        name = FLAG_OF_KEY.get(path.lower())
        where = f"flags.{path}"
        if name is None:
            warnings.append(f"{report.file}:{member.line}: {where}: has no effect")
            continue
        text = _text(member)
        if text is None:
            report.add(f"expected a value, found {member}", line=member.line, path=where)
        else:
            found[name] = FileText(text, f"{report.file}:{member.line}: {where}")
    return found


def _members(item: Item, prefix: str) -> Iterator[tuple[str, Item]]:
    """Keys that have a value; none where the item is no table, which other readers of the file complain about."""
    if isinstance(item, Table):
        for key, member in item.entries:
            if not (isinstance(member, Scalar) and member.value is None):
                yield f"{prefix}{key.text}", member


def _text(item: Item) -> str | None:
    """As it would stand behind a flag; a list joined by commas."""
    if isinstance(item, Listing):
        parts = [_text(member) for member in item.items]
        return None if any(part is None or "," in part for part in parts) else ",".join(filter(None, parts))
    if isinstance(item, Table):
        return None
    match item.value:
        case bool(flag):
            return format_bool(flag)
        case str(text):
            return text
    return item.text
