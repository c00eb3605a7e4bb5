"""What lies on a node: the agent's checkpoint, kubelet's PodResources, and the regions that containers write."""

from __future__ import annotations

import sys
from collections.abc import Callable

import atheris
import msgspec
from google.protobuf.message import DecodeError

with atheris.instrument_imports(include=["tessera.node", "tessera.monitor"]):
    from tessera.monitor.regions import V0, V1, V1_TWO_LOCKS, decode_region
    from tessera.node.handover.checkpoint import Record
    from tessera.node.kubelet.pod_resources import _held
    from tessera.wire.kubelet import pod_resources_pb2 as messages


def one_input(data: bytes) -> None:
    for line in data.splitlines():
        try:
            record = msgspec.json.decode(line, type=Record)
        except (ValueError, RecursionError):
            continue
        assert msgspec.json.decode(msgspec.json.encode(record), type=Record) == record
    try:
        answer = messages.ListPodResourcesResponse.FromString(data)
    except DecodeError:
        pass
    else:
        assert all(_held(answer, "nvidia.com/gpu").values())
    # A region is longer than what a fuzzer makes, so the input repeats. The first byte chooses among the layouts.
    size = (V0.end, V1.end, V1_TWO_LOCKS.end, len(data))[data[0] % 4 if data else 0]
    decode_region(size, repeated(data, size))


def repeated(data: bytes, size: int) -> Callable[[int, int], bytes]:
    """A file of this size."""
    part = data or b"\0"

    def read(offset: int, length: int) -> bytes:
        start, wanted = offset % len(part), max(min(length, size - offset), 0)
        return (part[start:] + part * (wanted // len(part) + 1))[:wanted]

    return read


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
