from __future__ import annotations

from tessera.wire import keys


def test_a_container_reads_its_slice_under_its_position() -> None:
    assert keys.visible_devices(0) == "tessera.io/c0.visible-devices"
    assert keys.memory_limit(2, 1) == "tessera.io/c2.memory-limit-1"
    assert keys.core_limit(2) == "tessera.io/c2.core-limit"
