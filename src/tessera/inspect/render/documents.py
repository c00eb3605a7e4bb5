"""Answers for programs: JSON and YAML in a common envelope, with names in camelCase."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import msgspec
import yaml

from tessera.inspect.state import ClusterState, Json
from tessera.services.terminal_json import encode_json

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


def encode_document(content: Json, form: str, *, ascii_only: bool = False) -> str:
    """`ascii_only`: other characters are escaped, which changes nothing for programs."""
    if form != "yaml":
        return encode_json(content, indent=2, ascii_only=ascii_only)
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=not ascii_only, width=120)
    if all(line.isprintable() for line in text.split("\n")):
        return text
    # YAML takes characters for printable that steer a terminal.
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=False, width=120)


def encode_stream_document(content: Json, form: str, *, taken: float, ascii_only: bool = False) -> str:
    """One of several: JSON on a line of its own, or YAML after a separator. `taken`: when it was true, as unix time."""
    moment = datetime.fromtimestamp(taken, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    dated = {**content, "taken": moment}
    if form == "yaml":
        return "---\n" + encode_document(dated, form, ascii_only=ascii_only)
    return encode_json(dated, ascii_only=ascii_only)


def _camel(value: Any) -> Any:
    if isinstance(value, dict):
        return {_name(key): _camel(member) for key, member in value.items()}
    return [_camel(member) for member in value] if isinstance(value, (list, tuple)) else value


def _name(key: Any) -> Any:
    return re.sub(r"_([a-z])", lambda found: found[1].upper(), key) if isinstance(key, str) else key
