"""Answers for programs: JSON and YAML in a common envelope, with names in camelCase."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import yaml

from tessera.inspect.state import ClusterState, Json

API_VERSION = "tessera.io/v1"


def make_document(kind: str, state: ClusterState | None, content: Any) -> Json:
    """The answer, with what it is based on."""
    head: Json = {"apiVersion": API_VERSION, "kind": kind}
    if state is not None:
        head["from"] = {
            "source": state.source,
            "deviceConfig": state.setup.device_config_from,
            "schedulerFlags": state.setup.flags_from or "unknown",
            "unseen": list(state.unseen),
        }
    body = _camel(msgspec.to_builtins(content))
    return head | (body if isinstance(body, dict) else {"items": body})


def encode_document(content: Json, form: str) -> str:
    if form == "yaml":
        return yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=120)
    return msgspec.json.format(msgspec.json.encode(content), indent=2).decode() + "\n"


def _camel(value: Any) -> Any:
    if isinstance(value, dict):
        return {_name(key): _camel(member) for key, member in value.items()}
    return [_camel(member) for member in value] if isinstance(value, (list, tuple)) else value


def _name(key: Any) -> Any:
    return re.sub(r"_([a-z])", lambda found: found[1].upper(), key) if isinstance(key, str) else key
