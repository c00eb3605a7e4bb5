"""Configuration files against arbitrary text: settings, or a ConfigError that says where the fault is."""

from __future__ import annotations

import contextlib
import sys

import atheris

with atheris.instrument_imports(include=["tessera.wire", "tessera.vendors"]):
    from tessera.vendors.base import Switches
    from tessera.vendors.registry import build_vendors, schemas
    from tessera.wire.device_config import load_device_config
    from tessera.wire.errors import WireError
    from tessera.wire.node_config import load_node_config


def one_input(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    try:
        sections = load_device_config(text, file="f", schemas=schemas())
    except WireError:
        pass
    else:
        with contextlib.suppress(ValueError):
            build_vendors(sections, Switches(ascend=True, iluvatar=True))
    with contextlib.suppress(WireError):
        load_node_config(text, file="f")


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
