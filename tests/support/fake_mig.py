"""The half of `fake_nvml` that makes and destroys instances, and what every handle stands for."""

from __future__ import annotations

import ctypes
from typing import Any

import pynvml  # type: ignore[import-untyped]

from tessera.core.model.devices import MigPlacement
from tests.support.fake_cards import COMPUTE_PROFILES, IN_USE, UNSUPPORTED, ComputeInstance, GpuInstance


class MigPart:
    """Functions of NVML, each under its name with a line in front."""

    def __init__(self) -> None:
        self._objects: dict[int, Any] = {}

    def _handle(self, target: Any, what: Any, *, at: int = 0) -> None:
        number = id(what)
        self._objects[number] = what
        ctypes.c_void_p.from_address(ctypes.addressof(target) + at).value = number

    def _of(self, handle: Any) -> Any:
        return self._objects[ctypes.cast(handle, ctypes.c_void_p).value or 0]

    def _card_of(self, handle: Any) -> Any:
        try:
            what = self._of(handle)
        except (KeyError, ctypes.ArgumentError, TypeError):
            return None
        if isinstance(what, ComputeInstance):
            return what.owner.card
        return what.card if isinstance(what, GpuInstance) else what

    def _nvmlDeviceGetMigMode(self, device: Any, current: Any, pending: Any) -> int:
        mig = self._of(device).mig
        if mig is None:
            return int(UNSUPPORTED)
        current._obj.value, pending._obj.value = mig
        return 0

    def _nvmlDeviceSetMigMode(self, device: Any, mode: int, status: Any) -> None:
        card = self._of(device)
        status._obj.value = card.activation
        card.mig = [card.mig[0] if card.activation else mode, mode]

    def _nvmlDeviceGetGpuInstanceProfileInfoV(self, device: Any, number: int, info: Any) -> int:
        return self._profile(device, number, info, named=True)

    def _nvmlDeviceGetGpuInstanceProfileInfo(self, device: Any, number: int, info: Any) -> int:
        return self._profile(device, number, info, named=False)

    def _profile(self, device: Any, number: int, info: Any, *, named: bool) -> int:
        if number > 0xC:
            return int(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        for each in self._of(device).profiles:
            if each.number == number:
                into = info._obj
                into.id, into.sliceCount, into.instanceCount = each.id, each.slices, each.instances
                into.multiprocessorCount, into.memorySizeMB = each.sms, each.mib
                if named:
                    into.name = each.name
                return 0
        return int(UNSUPPORTED)

    def _nvmlDeviceGetGpuInstancePossiblePlacements_v2(self, device: Any, id_: int, places: Any, count: Any) -> None:
        profile = next(each for each in self._of(device).profiles if each.id == id_)
        if places is not None:
            for into, (start, size) in zip(places, profile.places, strict=True):
                into.start, into.size = start, size
        count._obj.value = len(profile.places)

    def _nvmlDeviceCreateGpuInstanceWithPlacement(self, device: Any, id_: int, place: Any, gi: Any) -> int:
        card = self._of(device)
        if card.mig != [1, 1]:
            return int(UNSUPPORTED)
        wanted = MigPlacement(place._obj.start, place._obj.size)
        if any(wanted.overlaps(MigPlacement(*each.place)) for each in card.instances):
            return int(pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES)
        number = next(n for n in range(1, 99) if n not in {each.id for each in card.instances})
        self._handle(gi._obj, card.hold(number, id_, wanted.start, compute=False))
        return 0

    def _nvmlDeviceGetGpuInstances(self, device: Any, id_: int, handles: Any, count: Any) -> int:
        card = self._of(device)
        if card.mig is None or not card.mig[0]:
            return int(UNSUPPORTED)
        found = [each for each in card.instances if each.profile.id == id_]
        for position, each in enumerate(found):
            self._handle(handles, each, at=position * ctypes.sizeof(ctypes.c_void_p))
        count._obj.value = len(found)
        return 0

    def _nvmlDeviceGetGpuInstanceById(self, device: Any, id_: int, gi: Any) -> int:
        for each in self._of(device).instances:
            if each.id == id_:
                self._handle(gi._obj, each)
                return 0
        return int(pynvml.NVML_ERROR_NOT_FOUND)

    def _nvmlGpuInstanceGetInfo(self, gi: Any, info: Any) -> None:
        each = self._of(gi)
        info._obj.id, info._obj.profileId = each.id, each.profile.id
        info._obj.placement.start, info._obj.placement.size = each.place

    def _nvmlGpuInstanceGetComputeInstanceProfileInfo(self, gi: Any, number: int, _engine: int, info: Any) -> int:
        each = self._of(gi)
        for slices, known in COMPUTE_PROFILES.items():
            if known == number and slices <= each.profile.slices:
                into = info._obj
                into.id, into.sliceCount = known, slices
                into.instanceCount, into.multiprocessorCount = each.profile.slices // slices, 16 * slices
                return 0
        return int(UNSUPPORTED)

    def _nvmlGpuInstanceCreateComputeInstance(self, gi: Any, id_: int, ci: Any) -> None:
        owner = self._of(gi)
        slices = next(slices for slices, known in COMPUTE_PROFILES.items() if known == id_)
        made = ComputeInstance(owner, len(owner.computes), slices)
        owner.computes.append(made)
        self._handle(ci._obj, made)

    def _nvmlGpuInstanceGetComputeInstances(self, gi: Any, id_: int, handles: Any, count: Any) -> None:
        found = [each for each in self._of(gi).computes if COMPUTE_PROFILES[each.slices] == id_]
        for position, each in enumerate(found):
            self._handle(handles, each, at=position * ctypes.sizeof(ctypes.c_void_p))
        count._obj.value = len(found)

    def _nvmlComputeInstanceGetInfo_v2(self, ci: Any, info: Any) -> None:
        info._obj.id = self._of(ci).id

    def _nvmlComputeInstanceDestroy(self, ci: Any) -> int:
        each = self._of(ci)
        if each.processes:
            return int(IN_USE)
        each.owner.computes.remove(each)
        return 0

    def _nvmlGpuInstanceDestroy(self, gi: Any) -> int:
        each = self._of(gi)
        if each.computes:
            return int(IN_USE)
        each.card.instances.remove(each)
        return 0

    def _nvmlDeviceGetMaxMigDeviceCount(self, device: Any, count: Any) -> None:
        count._obj.value = 7 if self._of(device).mig is not None else 0

    def _nvmlDeviceGetMigDeviceHandleByIndex(self, device: Any, index: Any, handle: Any) -> int:
        computes = [each for gi in self._of(device).instances for each in gi.computes]
        # With a gap at 0, as real cards may have.
        if not 1 <= index.value <= len(computes):
            return int(pynvml.NVML_ERROR_NOT_FOUND)
        self._handle(handle._obj, computes[index.value - 1])
        return 0

    def _nvmlDeviceGetGpuInstanceId(self, device: Any, number: Any) -> None:
        number._obj.value = self._of(device).owner.id

    def _nvmlDeviceGetComputeInstanceId(self, device: Any, number: Any) -> None:
        number._obj.value = self._of(device).id

    def _nvmlDeviceGetComputeRunningProcesses_v3(self, device: Any, count: Any, processes: Any) -> int:
        return _processes(self._of(device).processes, count, processes)

    def _nvmlDeviceGetGraphicsRunningProcesses_v3(self, device: Any, count: Any, processes: Any) -> int:
        return _processes(self._of(device).graphics, count, processes)


def _processes(running: int, count: Any, processes: Any) -> int:
    count._obj.value = running
    return int(pynvml.NVML_ERROR_INSUFFICIENT_SIZE) if running and processes is None else 0
