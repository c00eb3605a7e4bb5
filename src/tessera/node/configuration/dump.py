"""A configuration as text: for `--print-config`, and for the lines that are logged at start and after a reload.

What the node JSON can set appears under its names, everything else under the name of its flag, spelled as the flag
reads it.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import yaml

from tessera.node.health.xids import DISABLE, ENABLE
from tessera.node.settings import AgentSettings, Configuration
from tessera.services import settings_table
from tessera.wire.node_config import NodeOverride

_HEAD = "# The effective configuration of this node's agent.\n"


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
    values = {each.name: getattr(settings.node, each.name) for each in dataclasses.fields(settings.node)}
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
