"""A management library in Python: what pynvml finds instead of NVIDIA's, so that its real binding is tested too.

Behaves as the documentation of NVML says, or fails as a test wants: `errors` maps the name of a function to the code
that it answers with.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pynvml  # type: ignore[import-untyped]

from tests.support.fake_cards import ComputeInstance, Event, FakeCard
from tests.support.fake_mig import MigPart


class FakeNvml(MigPart):
    """What `ctypes.CDLL` would return."""

    def __init__(self, *cards: FakeCard) -> None:
        self.cards = list(cards)
        self.errors: dict[str, int] = {}
        self.missing: set[str] = set()
        """functions that an older library does not have"""
        self.events: list[Event | int] = []
        """what waiting brings; a number is a code"""
        self.running = 0
        """starts without an end"""
        self.starts = 0
        """from nothing"""
        self.sets: dict[int, dict[str, int]] = {}
        """open event sets: event types by uuid"""
        self.waits: list[int] = []
        """milliseconds"""
        super().__init__()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        work = getattr(type(self), f"_{name}", None)
        if work is None or name in self.missing:
            raise AttributeError(name)
        if name == "nvmlErrorString":
            return lambda _code: b"text of the driver"

        def function(*args: Any) -> Any:
            code = self.errors.get(name)
            if code is None and args:
                code = getattr(self._card_of(args[0]), "errors", {}).get(name)
            return code if code is not None else work(self, *args) or 0

        return function

    def __call__(self, name: str) -> FakeNvml:
        """As dlopen."""
        return self

    # the library

    def _nvmlInitWithFlags(self, _flags: Any) -> None:
        self.starts += self.running == 0
        self.running += 1

    def _nvmlShutdown(self) -> int:
        if not self.running:
            return int(pynvml.NVML_ERROR_UNINITIALIZED)
        self.running -= 1
        return 0

    def _nvmlErrorString(self, _code: Any) -> None: ...

    def _nvmlDeviceGetCount_v2(self, count: Any) -> None:
        count._obj.value = len(self.cards)

    def _nvmlDeviceGetHandleByIndex_v2(self, index: Any, device: Any) -> int:
        card: FakeCard = self.cards[index.value]
        if "handle" in card.errors:
            return card.errors["handle"]
        self._handle(device._obj, card)
        return 0

    def _nvmlDeviceGetHandleByUUID(self, uuid: Any, device: Any) -> int:
        for card in self.cards:
            if card.uuid == uuid.value:
                if "handle" in card.errors:
                    return card.errors["handle"]
                self._handle(device._obj, card)
                return 0
        return int(pynvml.NVML_ERROR_NOT_FOUND)

    def _nvmlDeviceGetUUID(self, device: Any, text: Any, _size: Any) -> None:
        what = self._of(device)
        text.value = what.uuid if isinstance(what, FakeCard) else _mig_uuid(what)

    def _nvmlDeviceGetName(self, device: Any, text: Any, _size: Any) -> None:
        text.value = self._of(device).name

    def _nvmlDeviceGetMemoryInfo(self, device: Any, info: Any) -> None:
        info._obj.total = self._of(device).memory

    def _nvmlDeviceGetMinorNumber(self, device: Any, minor: Any) -> None:
        minor._obj.value = self._of(device).number

    def _nvmlDeviceGetPciInfo_v3(self, device: Any, info: Any) -> None:
        info._obj.busId = self._of(device).bus

    def _nvmlDeviceGetCudaComputeCapability(self, device: Any, major: Any, minor: Any) -> None:
        major._obj.value, minor._obj.value = 9, 0

    def _nvmlSystemGetDriverVersion(self, text: Any, _size: Any) -> None:
        text.value = b"580.65.06"

    def _nvmlSystemGetCudaDriverVersion_v2(self, version: Any) -> None:
        version._obj.value = 13020

    def _nvmlDeviceGetComputeMode(self, device: Any, mode: Any) -> None:
        mode._obj.value = self._of(device).compute_mode

    def _nvmlDeviceSetComputeMode(self, device: Any, mode: Any) -> None:
        self._of(device).compute_mode = mode.value

    # links

    def _nvmlDeviceGetTopologyCommonAncestor(self, one: Any, other: Any, level: Any) -> None:
        level._obj.value = self._of(one).levels[self._of(other).number]

    def _nvmlDeviceGetNvLinkState(self, device: Any, link: int, active: Any) -> int:
        if link >= 4 and not self._of(device).links:
            return int(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        active._obj.value = link in self._of(device).links
        return 0

    def _nvmlDeviceGetNvLinkRemotePciInfo_v2(self, device: Any, link: int, info: Any) -> None:
        info._obj.busId = self._of(device).links[link][0]

    def _nvmlDeviceGetNvLinkRemoteDeviceType(self, device: Any, link: int, kind: Any) -> None:
        kind._obj.value = self._of(device).links[link][1]

    # events

    def _nvmlEventSetCreate(self, event_set: Any) -> None:
        number = next(number for number in range(1, 99) if number not in self.sets)
        self.sets[number] = {}
        ctypes.c_void_p.from_address(ctypes.addressof(event_set._obj)).value = number

    def _nvmlEventSetFree(self, event_set: Any) -> None:
        del self.sets[ctypes.cast(event_set, ctypes.c_void_p).value or 0]

    def _nvmlDeviceGetSupportedEventTypes(self, device: Any, types: Any) -> None:
        types._obj.value = self._of(device).event_types

    def _nvmlDeviceRegisterEvents(self, device: Any, types: Any, event_set: Any) -> None:
        self.sets[ctypes.cast(event_set, ctypes.c_void_p).value or 0][self._of(device).called] = types.value

    def _nvmlEventSetWait_v2(self, _event_set: Any, data: Any, timeout: Any) -> int:
        self.waits.append(timeout.value)
        if not self.events:
            return int(pynvml.NVML_ERROR_TIMEOUT)
        event = self.events.pop(0)
        if isinstance(event, int):
            return event
        into = data._obj
        self._handle(into, event.card)
        into.eventType, into.eventData = event.type, event.data
        into.gpuInstanceId, into.computeInstanceId = event.gi, event.ci
        return 0


def _mig_uuid(compute: ComputeInstance) -> bytes:
    return b"MIG-%s-%d-%d" % (compute.owner.card.uuid[4:], compute.owner.id, compute.id)


@contextmanager
def without_library() -> Iterator[None]:
    """pynvml without the library of another test."""
    pynvml.nvmlLib = None
    pynvml._nvmlGetFunctionPointer_cache.clear()
    yield
    pynvml.nvmlLib = None
    pynvml._nvmlGetFunctionPointer_cache.clear()
