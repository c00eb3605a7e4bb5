"""Self-managed certificates for tests, made by the real code at a fixed time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tessera.scheduler.certificates.authority import Keep, Material, Renew, plan, renewed, service_names

NOW = 1_700_000_000.0
"""unix time in seconds"""
NAMES = service_names("tessera", "gpu")


def fresh(now: float = NOW, names: frozenset[str] = NAMES) -> Material:
    """New certificates, as made without a Secret."""
    return renewed(renewal(None, now, names), now=now, names=names)


def kept(data: Mapping[str, bytes], now: float = NOW, names: frozenset[str] = NAMES) -> Keep:
    step = plan(data, now=now, names=names)
    assert isinstance(step, Keep), step
    return step


def renewal(data: Mapping[str, bytes] | None, now: float = NOW, names: frozenset[str] = NAMES, **other: Any) -> Renew:
    step = plan(data, now=now, names=names, **other)
    assert isinstance(step, Renew), step
    return step
