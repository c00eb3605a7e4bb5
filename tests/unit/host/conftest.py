from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tessera.host.nvml.hardware import NvmlHardware
from tessera.host.nvml.session import load_binding
from tests.support.fake_nvml import FakeNvml, without_library

Attach = Callable[[FakeNvml], NvmlHardware]


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def no_library() -> Iterator[None]:
    with without_library():
        yield


@pytest.fixture
def attach(no_library: None, clock: Clock, tmp_path: Path) -> Attach:
    """Hardware over a fake library, through NVIDIA's own binding."""

    def attached(library: FakeNvml) -> NvmlHardware:
        load = partial(load_binding, tmp_path, dlopen=library)
        return NvmlHardware(load=load, sysfs=tmp_path / "sys", clock=clock)

    return attached
