"""The API objects that decide, taken at one moment, and how the scheduler that decides on them was started.

A `State` is what all sources have in common: a live cluster, a snapshot file and a description all become one, and two
equal ones are judged alike. Objects are plain JSON, already reduced (`reducing`) to what decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tessera.core.requests import HostRequest

Json = dict[str, Any]

CHART_DEFAULTS = "the chart's defaults"


class InspectionError(Exception):
    """Something that keeps a question from being answered, in words that a person can act on."""


class NotAllowed(InspectionError):
    """Nodes or pods must not be listed."""


@dataclass(frozen=True, slots=True)
class Setup:
    """How the scheduler is configured, as far as it decides placement."""

    device_config: str | None = None
    """text of device-config.yaml; None = the chart's values"""
    device_config_from: str = CHART_DEFAULTS
    flags: Mapping[str, str | tuple[str, ...]] | None = None
    """flags of the scheduler by first name; None = nobody knows, so every vendor is looked at"""
    flags_from: str = ""


@dataclass(frozen=True, slots=True)
class State:
    """A cluster at one moment."""

    source: str
    """where it comes from, for people"""
    taken: float
    """unix time in seconds"""
    nodes: tuple[Json, ...] = ()
    pods: tuple[Json, ...] = ()
    quotas: tuple[Json, ...] = ()
    setup: Setup = field(default_factory=Setup)
    unseen: tuple[str, ...] = ()
    """what could not be read, and what that means for the answers"""
    others: Mapping[str, HostRequest] = field(default_factory=dict)
    """by node: what its pods that are not in `pods` ask of it; decides only where a policy looks at hosts"""
