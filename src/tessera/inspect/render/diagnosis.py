"""Findings as a page for people: the worst first, each with its reason and its fix."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tessera.inspect.checks.findings import Finding, Severity, worst_first
from tessera.inspect.render.lines import Line, Style, counted

LOOKS = {
    Severity.BROKEN: ("broken ", Style.BAD),
    Severity.WARNING: ("warning", Style.WARN),
    Severity.UNSEEN: ("unseen ", Style.DIM),
    Severity.FINE: ("fine   ", Style.GOOD),
}
PAD = " " * 9


def diagnosed(findings: Sequence[Finding]) -> Iterator[Line]:
    for finding in worst_first(findings):
        word, style = LOOKS[finding.severity]
        yield Line(f"{word}  {finding.area}: {finding.what}", style)
        if finding.why:
            yield Line(f"{PAD}why it matters: {finding.why}")
        if finding.fix:
            yield Line(f"{PAD}fix: {finding.fix}")
    yield Line()
    yield _summary(findings)


def _summary(findings: Sequence[Finding]) -> Line:
    numbers = {severity: sum(f.severity is severity for f in findings) for severity in Severity}
    text = ", ".join(
        (
            f"{numbers[Severity.BROKEN]} broken",
            counted(numbers[Severity.WARNING], "warning"),
            f"{numbers[Severity.UNSEEN]} not checked",
            f"{numbers[Severity.FINE]} fine",
        )
    )
    worst = Style.BAD if numbers[Severity.BROKEN] else Style.WARN if numbers[Severity.WARNING] else Style.GOOD
    return Line(text, worst)
