"""What a check found: what is so, why it matters, and how to mend it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class Severity(Enum):
    """How bad it is."""

    BROKEN = "broken"
    """pods cannot get what they ask for, or get what they should not"""
    WARNING = "warning"
    """works, but not as it should, or not for long"""
    UNSEEN = "unseen"
    """could not be looked at"""
    FINE = "fine"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    severity: Severity
    area: str
    what: str
    why: str = ""
    fix: str = ""


def fine(area: str, what: str) -> Finding:
    return Finding(Severity.FINE, area, what)


def broken(area: str, what: str, *, why: str, fix: str) -> Finding:
    return Finding(Severity.BROKEN, area, what, why, fix)


def warning(area: str, what: str, *, why: str, fix: str) -> Finding:
    return Finding(Severity.WARNING, area, what, why, fix)


def unseen(area: str, what: str, *, fix: str = "") -> Finding:
    return Finding(Severity.UNSEEN, area, what, fix=fix)


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    order = list(Severity)
    return sorted(findings, key=lambda finding: order.index(finding.severity))
