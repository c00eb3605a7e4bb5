"""What a check found: what is the case, why it matters, and how to fix it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class Severity(Enum):
    """How serious a finding is."""

    BROKEN = "broken"
    """pods do not get what they request, or get what they should not"""
    WARNING = "warning"
    """it works, but not as it should, or not for long"""
    UNSEEN = "unseen"
    """it could not be checked"""
    FINE = "fine"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of looking at one thing."""

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
