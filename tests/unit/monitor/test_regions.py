"""Decoding of shared regions: golden cases 30 and 31, and whatever a tenant may write into its own."""

from __future__ import annotations

from struct import pack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.monitor.regions import (
    MAGIC,
    V0,
    V1,
    V1_TWO_LOCKS,
    DeviceUsage,
    Misread,
    Region,
    choose_layout,
    decode_region,
)
from tests.unit.monitor.builders import GPU_A, GPU_B, Slot, decoded, good, region

LAYOUTS = ("v0", "v1", "v1 with two locks")
TWO_LIVE_ONE_DEAD = (
    Slot({0: (1, 2, 3, 10, 20), 1: (4, 5, 6, 100, 30)}),
    Slot({0: (1000, 1000, 1000, 5000, 99)}, status=0),
    Slot({0: (10, 20, 30, 70, 5)}, status=2),
)


def header(magic: int, major: int = 1) -> bytes:
    return pack("<iII", magic, major, 1)


@pytest.mark.parametrize(
    ("size", "head", "expected"),
    [
        (11, header(MAGIC), "too small"),
        (12, header(1), "magic flag not matched"),
        (12, header(MAGIC), "unknown cache file size"),
        (1197895, header(MAGIC), "unknown cache file size"),
        (1197896, header(MAGIC, 0), V0),
        (1197897, header(MAGIC, 7), V0),
        (2008952, header(MAGIC), V1),
        (2008953, header(MAGIC), V1),
        (2008953, header(MAGIC, 2), "unknown cache file size"),
        (2008984, header(MAGIC), V1_TWO_LOCKS),
        (2008985, header(MAGIC), V1_TWO_LOCKS),
        (2008985, header(MAGIC, 2), "unknown cache file size"),
        (3000000, header(MAGIC), V1),
        (2008953, b"", "too small"),
    ],
)
def test_case_31_the_layout_follows_from_the_size_and_the_header(size: int, head: bytes, expected: object) -> None:
    found = choose_layout(size, head)
    if isinstance(expected, str):
        assert isinstance(found, Misread)
        assert expected in found.problem
    else:
        assert found is expected


@pytest.mark.parametrize("layout", LAYOUTS)
def test_case_30_sums_skip_slots_of_ended_processes(layout: str) -> None:
    found = good(region(layout, uuids=(GPU_A, GPU_B), limits=(3000, 0), slots=TWO_LIVE_ONE_DEAD))
    assert found.layout.name == layout
    assert [(each.index, each.uuid, each.limit) for each in found.devices] == [(0, GPU_A, 3000), (1, GPU_B, 0)]
    assert [each.use for each in found.devices] == [DeviceUsage(11, 22, 33, 80, 25), DeviceUsage(4, 5, 6, 100, 30)]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("count", "total"), [(-5, 0), (0, 0), (1, 10), (5000, 80), (2**31 - 1, 80)])
def test_case_30_the_number_of_slots_is_clamped(layout: str, count: int, total: int) -> None:
    found = good(region(layout, slots=TWO_LIVE_ONE_DEAD, slot_count=count))
    assert [each.use.total for each in found.devices] == [total]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("count", "shown"), [(0, 0), (99, 16), (2**64 - 1, 16)])
def test_case_30_the_number_of_devices_is_clamped(layout: str, count: int, shown: int) -> None:
    found = good(region(layout, slots=TWO_LIVE_ONE_DEAD, device_count=count))
    assert len(found.devices) == shown


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_steers_the_container_is_read(layout: str) -> None:
    more: dict[str, Any] = {} if layout == "v0" else {"last_kernel_time": 1_700_000_000}
    found = good(region(layout, priority=0, recent_kernel=-1, utilization_switch=0, **more))
    assert (found.priority, found.recent_kernel, found.utilization_switch) == (0, -1, 0)
    assert found.last_kernel_time == more.get("last_kernel_time")


@pytest.mark.parametrize(
    ("written", "shown"), [(GPU_A, GPU_A), (b"", None), (b"\xff\xfe", None), (GPU_A + "-more", GPU_A), ("Ж", "Ж")]
)
def test_a_uuid_is_shown_where_it_is_text(written: str | bytes, shown: str | None) -> None:
    assert [each.uuid for each in good(region(uuids=(written,))).devices] == [shown]


def test_a_file_that_is_cut_off_meanwhile_is_misread() -> None:
    data = region()
    found = decode_region(len(data), lambda offset, length: data[:2000][offset : offset + length])
    assert found == Misread("cache file was truncated while it was read")


@given(
    st.sampled_from(LAYOUTS),
    st.binary(max_size=64),
    st.integers(min_value=-(2**31), max_value=2**31 - 1),
    st.integers(min_value=0, max_value=2**64 - 1),
)
def test_any_bytes_give_a_region_or_a_reason(layout: str, noise: bytes, slots: int, devices: int) -> None:
    data = bytearray(region(layout, slot_count=slots % 40, device_count=devices))
    data[64 : 64 + len(noise)] = noise
    assert isinstance(decoded(bytes(data)), Region)
    assert isinstance(decoded(noise), Misread)
