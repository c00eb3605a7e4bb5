"""Variables that decide which cards a container sees, or whether its limits are enforced.

The container runtime and the enforcing library read them from the container's environment, and cannot see where they
came from. So a tenant may give them only values that change nothing; the granted slice sets the others. The webhook
removes what a tenant wrote, and the chart's policies refuse what the webhook did not see; both use these lists.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any


@dataclass(frozen=True)
class ProtectedVariables:
    """The variables of one maker's cards."""

    devices: str
    """names the cards that a container sees"""
    no_devices: str
    """value of `devices` that shows none"""
    harmless: frozenset[str]
    """further values of `devices` that show none"""
    stems: tuple[str, ...]
    """names of variables that only a slice sets; each may end in `_` and the number of a card"""
    switches: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """variables that loosen limits on a shared card, each with the values that do not"""
    instances: str = ""
    """prefix of resources that a plugin allocates without the scheduler"""

    @property
    def pattern(self) -> str:
        """Matches the variables that only a slice sets; for Python and for CEL."""
        return f"(?:{'|'.join(map(re.escape, self.stems))})(?:_[0-9]+)?"

    @cached_property
    def owned(self) -> re.Pattern[str]:
        return re.compile(self.pattern, re.ASCII)

    @cached_property
    def names(self) -> tuple[str, ...]:
        return (*self.stems, *self.switches)

    def shows_devices(self, entry: Mapping[str, Any]) -> bool:
        """Whether an entry for `devices` may show a container some cards."""
        return "valueFrom" in entry or entry.get("value", "") not in {self.no_devices, *self.harmless}

    def loosens_limits(self, entry: Mapping[str, Any]) -> bool:
        """Whether a tenant's own variable would loosen the limits on a shared card."""
        harmless = self.switches.get(entry.get("name", ""))
        return harmless is not None and ("valueFrom" in entry or entry.get("value", "") not in harmless)

    def may_have_prefix(self, prefixes: Iterable[str]) -> bool:
        """Whether an `envFrom` with one of these prefixes may contain one of these variables."""
        return any(name.startswith(prefix) or prefix.startswith(name) for prefix in prefixes for name in self.names)
