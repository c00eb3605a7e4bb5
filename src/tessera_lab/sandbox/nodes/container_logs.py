"""What a simulated container writes: a line with its limits when it starts, and one when it ends.

The limits are read from the environment that the container got, as the library in a real container reads them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from tessera_lab.sandbox.api.kinds import Json
from tessera_lab.sandbox.api.pod_logs import LogLine

_DEVICES = re.compile(r"[A-Z]+_VISIBLE_DEVICES")
"""NVIDIA's, Ascend's and other makers' variables"""
_NO_DEVICES = ("", "void", "none")
_MEMORY = re.compile(r"CUDA_DEVICE_MEMORY_LIMIT_[0-9]+")
_MPS_MEMORY, _MPS_CORES = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
_CORES, _NO_LIMIT = "CUDA_DEVICE_SM_LIMIT", "0"


def container_log(pod: Json, container: str, env: Mapping[str, str]) -> list[LogLine] | None:
    """The lines so far; None if the container has not started."""
    state = _state(pod, container)
    ended: Json = state.get("terminated", {})
    running: Json = state.get("running", ended)
    started_at = running.get("startedAt", "")
    if not started_at:
        return None
    lines = [LogLine(started_at, f"simulated container {container}: {describe_limits(env)}")]
    if ended:
        lines.append(LogLine(ended["finishedAt"], f"simulated container {container}: exit code {ended['exitCode']}"))
    return lines


def describe_limits(env: Mapping[str, str]) -> str:
    """Devices, memory limit and core limit, as far as the environment has them."""
    named = sorted(env.items())
    devices = [text for name, text in named if _DEVICES.fullmatch(name) and text not in _NO_DEVICES]
    if not devices:
        return "no devices"
    memory = [_in_mib(text) for name, text in named if _MEMORY.fullmatch(name)]
    parts = [f"devices {','.join(devices)}"]
    if memory or _MPS_MEMORY in env:
        parts.append(f"memory limit {', '.join(memory) or env[_MPS_MEMORY]}")
    cores = env.get(_CORES) or env.get(_MPS_CORES)
    if cores is not None:
        parts.append(f"core limit {f'{cores} %' if cores != _NO_LIMIT else 'none'}")
    return "; ".join(parts)


def _in_mib(text: str) -> str:
    """HAMi writes MiB as a number and `m`."""
    return f"{text[:-1]} MiB" if text.endswith("m") else text


def _state(pod: Json, container: str) -> Json:
    status = pod.get("status", {})
    for each in (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())):
        if each["name"] == container:
            state: Json = each.get("state", {})
            return state
    return {}
