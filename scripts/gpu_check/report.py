"""The results of the checks, as plain lines and as Markdown for docs/hardware.md."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Line:
    part: str
    name: str
    ok: bool
    seen: str


@dataclass(slots=True)
class Report:
    """Collects lines; prints each at once, because a check can take a minute."""

    part: str = ""
    lines: list[Line] = field(default_factory=list)

    @property
    def failed(self) -> int:
        return sum(not line.ok for line in self.lines)

    def begin(self, part: str) -> None:
        self.part = part
        print(f"\n== {part}", flush=True)

    def check(self, name: str, ok: bool, seen: object) -> None:
        line = Line(self.part, name, bool(ok), " ".join(str(seen).split()))
        self.lines.append(line)
        print(f"{'ok  ' if line.ok else 'FAIL'} {name}: {line.seen}", flush=True)

    def note(self, text: str) -> None:
        print(f"     {text}", flush=True)

    def crashed(self, error: BaseException) -> None:
        self.check("ran to its end", False, f"{type(error).__name__}: {error}")
        sys.excepthook(type(error), error, error.__traceback__)

    def markdown(self) -> str:
        rows = ["| part | check | seen | ok |", "|---|---|---|---|"]
        rows += [f"| {x.part} | {x.name} | {_cell(x.seen)} | {'yes' if x.ok else '**no**'} |" for x in self.lines]
        return "\n".join(rows) + "\n"


def _cell(text: str, *, most: int = 240) -> str:
    text = text.replace("|", "\\|")
    return text if len(text) <= most else f"{text[:most]} …"
