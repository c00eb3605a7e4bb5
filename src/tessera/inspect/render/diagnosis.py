"""Findings for people: the worst first, each with why it matters and how to fix it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tessera.inspect.checks.findings import Finding, Severity, worst_first
from tessera.inspect.render.lines import Style, StyledLine, count_of

LOOKS = {
    Severity.BROKEN: ("broken ", Style.BAD),
    Severity.WARNING: ("warning", Style.WARN),
    Severity.UNSEEN: ("unseen ", Style.DIM),
    Severity.FINE: ("fine   ", Style.GOOD),
}
PAD = " " * 9


def diagnosis_lines(findings: Sequence[Finding]) -> Iterator[StyledLine]:
    for finding in worst_first(findings):
        word, style = LOOKS[finding.severity]
        yield StyledLine(f"{word}  {finding.area}: {finding.what}", style)
        if finding.why:
            yield StyledLine(f"{PAD}why it matters: {finding.why}")
        if finding.fix:
            yield StyledLine(f"{PAD}fix: {finding.fix}")
    yield StyledLine()
    yield _summary(findings)


def _summary(findings: Sequence[Finding]) -> StyledLine:
    numbers = {severity: sum(f.severity is severity for f in findings) for severity in Severity}
    text = ", ".join(
        (
            f"{numbers[Severity.BROKEN]} broken",
            count_of(numbers[Severity.WARNING], "warning"),
            f"{numbers[Severity.UNSEEN]} not checked",
            f"{numbers[Severity.FINE]} fine",
        )
    )
    worst = Style.BAD if numbers[Severity.BROKEN] else Style.WARN if numbers[Severity.WARNING] else Style.GOOD
    return StyledLine(text, worst)
