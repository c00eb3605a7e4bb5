"""device-config.yaml: one section per vendor, decoded into the types that the vendors declare.

The vendors describe their sections (`schemas`). The same file may hold the configuration of
NVIDIA's own plugin; its keys are left alone. Every problem of the file is reported at once, in a `ConfigError`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_origin

import msgspec
import yaml

from tessera.files.documents import plain_value
from tessera.wire.config_file import ConfigFile, nearest, spoken
from tessera.wire.errors import quoted

FOREIGN_KEYS = frozenset({"version", "flags", "resources", "sharing", "imex", "scheduler"})
"""top-level keys of NVIDIA's plugin configuration, read by another reader from the same file"""

ALL_EMPTY = "all configurations are empty"

_RESOURCE_KEY = re.compile(r"resource.*Name")
"""keys of all vendors whose value is a resource name: resourceCountName, resourceName, resourceNameGCU, ..."""

_DNS_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_DOMAIN = re.compile(rf"{_DNS_LABEL}(\.{_DNS_LABEL})*\Z", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?\Z", re.ASCII)
_MAX_DOMAIN = 253 - len("requests.")
"""characters; quotas put `requests.` in front of a resource name"""
_MAX_NAME = 63


@dataclass(frozen=True, slots=True)
class SectionSchema:
    """A section with an older form. Other sections are given by their type alone."""

    type: Any
    list_key: str = ""
    """key of the list that was the whole section in older versions"""

    def upgraded(self, value: Any) -> Any:
        return {self.list_key: value} if self.list_key and isinstance(value, list) else value


def empty_section(schema: Any) -> Any:
    """What a section is when the file does not have it."""
    type_ = schema.type if isinstance(schema, SectionSchema) else schema
    return msgspec.convert([] if get_origin(type_) in (list, tuple) else {}, type_)


def load_device_config(text: str, *, file: str, schemas: Mapping[str, Any]) -> dict[str, Any]:
    """The sections in the file, by name. A schema is a type or a `SectionSchema`."""
    return read_sections(ConfigFile(text, file=file), schemas)


def read_sections(read: ConfigFile, schemas: Mapping[str, Any]) -> dict[str, Any]:
    """The same, for a reader of what else the file has."""
    values = {
        name: read.convert(schema.type, value, name, check=_resource_names)
        for name, (schema, value) in _sections(read, schemas).items()
    }
    read.check()
    if all(value == empty_section(schemas[name]) for name, value in values.items()):
        raise read.fatal(ALL_EMPTY, line=0)
    return values


def dump_device_config(sections: Mapping[str, Any]) -> str:
    """The file that `load_device_config` reads as `sections`. Keys without a value are omitted."""
    return yaml.dump(_without_nulls(msgspec.to_builtins(dict(sections))), Dumper=_Dumper, sort_keys=False, width=120)


def resource_name_problem(name: str) -> str | None:
    """Why `name` cannot be an extended resource of Kubernetes; None if it can or is empty."""
    domain, slash, last = name.rpartition("/")
    if not name or (slash and _is_domain(domain) and len(last) <= _MAX_NAME and _NAME.match(last)):
        return None
    why = "has no domain in front" if not slash else "is not a domain, a slash and a name of letters, digits, - _ ."
    return f"expected a resource name such as nvidia.com/gpu, found {quoted(name)}, which {why}"


def _is_domain(text: str) -> bool:
    return len(text) <= _MAX_DOMAIN and bool(_DOMAIN.match(text)) and not f".{text}".endswith(".kubernetes.io")


def _resource_names(key: str, text: str) -> str | None:
    return resource_name_problem(text) if _RESOURCE_KEY.match(key) else None


def _sections(read: ConfigFile, schemas: Mapping[str, Any]) -> dict[str, tuple[SectionSchema, Any]]:
    """Name -> schema and what the file has there."""
    if read.value is None:
        raise read.fatal(ALL_EMPTY, line=0)
    if not isinstance(read.value, dict):
        raise read.fatal(f"expected a table of sections, found {spoken(read.value)}")
    found: dict[str, tuple[SectionSchema, Any]] = {}
    for key, value in read.value.items():
        given = schemas.get(key)
        if given is None:
            if key not in FOREIGN_KEYS:
                hint = "" if read.is_full else nearest(key, [*schemas, *FOREIGN_KEYS])
                read.add(f"unknown section {quoted(key)}{hint}", line=read.line(key))
        elif value is not None:
            schema = given if isinstance(given, SectionSchema) else SectionSchema(given)
            found[key] = (schema, schema.upgraded(value))
    return found


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(member) for key, member in value.items() if member is not None}
    return [_without_nulls(member) for member in value] if isinstance(value, (list, tuple)) else value


class _Dumper(yaml.SafeDumper):
    """Quotes every text that would be read as another type, and never uses aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain_value(text) == text else '"')


_Dumper.add_representer(str, _represent_text)
