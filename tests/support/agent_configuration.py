"""What flags, variables and files make of the agent's configuration, on the node n1."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from json import dumps
from typing import Any

import pytest

from tessera.node.configuration import build_configuration
from tessera.node.settings import (
    Configuration,
)
from tessera.services.settings_table import SettingsError

YAML = "device-config.yaml"
JSON = "/config/config.json"

Files = Mapping[str, str | OSError | UnicodeError]


def reader(files: Files) -> Callable[[str], str]:
    def read(path: str) -> str:
        found = files.get(path, FileNotFoundError(2, "No such file or directory"))
        if isinstance(found, str):
            return found
        raise found

    return read


def told(
    *arguments: str,
    yaml: str | None = None,
    json: str | None = None,
    files: Files | None = None,
    environ: Mapping[str, str] | None = None,
    **variables: str,
) -> Configuration:
    """What `name=value` arguments, variables and the two files make, on the node n1."""
    flags = dict(argument.split("=", 1) for argument in arguments)
    found: dict[str, Any] = {}
    if yaml is not None:
        found[YAML] = yaml
        flags.setdefault("config-file", YAML)
    if json is not None:
        found[JSON] = json
    known = {"NODE_NAME": "n1", **(environ or {}), **variables}
    return build_configuration(flags, known, reader(found | dict(files or {})))


def problems(*arguments: str, **given: Any) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        told(*arguments, **given)
    return list(caught.value.problems)


def node_json(**keys: Any) -> str:
    """A node JSON with one entry for n1."""
    return dumps({"nodeconfig": [{"name": "n1", **keys}]})
