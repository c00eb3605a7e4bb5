"""Pods and nodes with any contents, as scheduler and agent read them: values, or refusals with a reason."""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["tessera.vendors", "tessera.wire", "tessera.node.handover"]):
    from tessera.node.handover.assignments import read_pod
    from tessera.vendors.base import Switches
    from tessera.vendors.downward_api import read_references
    from tessera.vendors.pod_reader import pod_request
    from tessera.vendors.registry import build_vendors
    from tessera.wire.errors import WireError
    from tessera.wire.objects import Node, Pod, decode_object

VENDORS = build_vendors(None, Switches(ascend=True, iluvatar=True))


def one_input(data: bytes) -> None:
    try:
        pod = decode_object(data, Pod)
    except WireError:
        pass
    else:
        pod_request(pod, VENDORS)
        read_references(pod, VENDORS)
        read_pod(pod, "n1")
    try:
        node = decode_object(data, Node)
    except WireError:
        return
    for vendor in VENDORS.values():
        vendor.devices(node)


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
