"""A flag in words: its names, where `--help` shows it and what it says there.

Only words, so that `--help` needs none of the service. What a flag means is decided by the command that has it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """How a flag is written."""

    TEXT = "text"
    """--flag VALUE or --flag=VALUE; the last one counts"""
    SWITCH = "switch"
    """--flag, --flag=true or --flag=false, as Go has it"""
    REPEATED = "repeated"


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag; `name` and `aliases` without dashes."""

    name: str
    group: Enum
    """its value is the heading in `--help`"""
    help: str
    metavar: str = "TEXT"
    kind: Kind = Kind.TEXT
    aliases: tuple[str, ...] = ()
    short: str = ""
    hidden: bool = False
    env: tuple[str, ...] = ()
    """variables that say the same where the flag is not given; the first one that is set counts"""

    @property
    def dest(self) -> str:
        """The name as an identifier."""
        return self.name.replace("-", "_")


def switch(name: str, group: Enum, help: str, aliases: tuple[str, ...] = (), env: tuple[str, ...] = ()) -> Flag:
    return Flag(name, group, help, metavar="[BOOL]", kind=Kind.SWITCH, aliases=aliases, env=env)
