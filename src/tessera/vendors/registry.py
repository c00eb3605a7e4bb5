"""All vendors: discovered in this package, built from the sections of device-config.yaml.

Keys and resource names are unique among vendors, so every request has one owner. This module does not read files:
sections arrive as values, decoded or as plain mappings and lists.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import import_module
from types import MappingProxyType
from typing import Any

import msgspec

from tessera import vendors as package
from tessera.vendors.base import Family, Switches, Vendor
from tessera.wire.device_config import SectionSchema, empty_section


@cache
def families() -> tuple[Family, ...]:
    """The families of all modules and folders of this package, sorted by section."""
    modules = pkgutil.iter_modules(package.__path__, f"{package.__name__}.")
    return collect(import_module(module.name) for module in modules)


def collect(modules: Iterable[object]) -> tuple[Family, ...]:
    """Every `Family` that stands in some modules, sorted by section."""
    found: dict[str, Family] = {}
    for family in (value for module in modules for value in vars(module).values() if isinstance(value, Family)):
        if found.setdefault(family.section, family) is not family:
            raise ValueError(f"two vendor modules claim the section {family.section}")
    return tuple(found[section] for section in sorted(found))


def schemas() -> Mapping[str, SectionSchema]:
    """The schema of each section, by name."""
    return MappingProxyType({f.section: SectionSchema(f.schema, f.list_key) for f in families()})


def build_vendors(sections: Mapping[str, Any] | None, switches: Switches) -> dict[str, Vendor]:
    """Vendors by key, sorted. `None` stands for the chart's values; a section that is missing or null is empty.

    Raises ValueError for a section that cannot be used and for two vendors that claim the same key or resource name.
    """
    built: list[Vendor] = []
    for family in families():
        section = family.chart if sections is None else _section(family, sections.get(family.section))
        try:
            built.extend(family.build(section, switches))
        except ValueError as error:
            raise ValueError(f"{family.section}: {error}") from error
    return unique(built)


def unique(built: Iterable[Vendor]) -> dict[str, Vendor]:
    """The vendors by key, sorted; ValueError if two claim the same key or resource name."""
    by_key: dict[str, Vendor] = {}
    owners: dict[str, str] = {}
    for vendor in built:
        if vendor.key in by_key:
            raise ValueError(f"two vendors have the key {vendor.key}")
        by_key[vendor.key] = vendor
        for name in vendor.names.all:
            owner = owners.setdefault(name, vendor.key)
            if owner != vendor.key:
                raise ValueError(f"the vendors {owner} and {vendor.key} both claim the resource {name}")
    return dict(sorted(by_key.items()))


def _section(family: Family, value: Any) -> Any:
    """A section decoded by its schema; decoded values pass unchanged."""
    if value is None:
        return empty_section(family.schema)
    try:
        return msgspec.convert(value, family.schema)
    except msgspec.ValidationError as error:
        raise ValueError(f"{family.section}: {error}") from error
