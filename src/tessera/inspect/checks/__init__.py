"""Checks of an installation. Each looks at one thing and returns findings: what is the case, why it matters, and how to
fix it. None repairs anything; `inspect/diagnosis.py` runs them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class Severity(Enum):
    BROKEN = "broken"
    """pods do not get what they request, or get what they should not"""
    WARNING = "warning"
    """it works, but not as it should, or not for long"""
    UNSEEN = "unseen"
    """it could not be checked"""
    FINE = "fine"


@dataclass(frozen=True, slots=True)
class Finding:
    severity: Severity
    area: str
    what: str
    why: str = ""
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Area:
    """A part of an installation; its methods make findings about it."""

    name: str

    def fine(self, what: str) -> Finding:
        return Finding(Severity.FINE, self.name, what)

    def broken(self, what: str, *, why: str, fix: str) -> Finding:
        return Finding(Severity.BROKEN, self.name, what, why, fix)

    def warning(self, what: str, *, why: str, fix: str) -> Finding:
        return Finding(Severity.WARNING, self.name, what, why, fix)

    def unseen(self, what: str, *, fix: str = "") -> Finding:
        return Finding(Severity.UNSEEN, self.name, what, fix=fix)


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    order = list(Severity)
    return sorted(findings, key=lambda finding: order.index(finding.severity))
