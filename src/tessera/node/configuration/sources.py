"""What the agent was told about one setting: by its flag, else by its variables, else by `flags:` of the YAML file.

A value that cannot be read is a problem and counts as not said, so that all problems come in one message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

from tessera.node.configuration.flags import FLAGS
from tessera.services.option_sources import Given

T = TypeVar("T")
D = TypeVar("D")

_VARIABLES = {flag.name: flag.env for flag in FLAGS}


class Written(NamedTuple):
    """What a file says in place of a flag."""

    text: str
    place: str
    """file, line and key"""


class Told:
    """Reads settings by the names of their flags."""

    def __init__(self, given: Given, from_file: Mapping[str, Written]) -> None:
        self.given = given
        self._from_file = from_file

    def __contains__(self, name: str) -> bool:
        """Whether anybody said anything, well or not."""
        variables = (self.given.environ.get(variable) for variable in _VARIABLES[name])
        return name in self.given or any(variables) or name in self._from_file

    def read(self, name: str, parse: Callable[[str], T], default: D) -> T | D:
        if name in self.given:
            return self.given.read(name, parse, default)
        for variable in _VARIABLES[name]:
            if self.given.environ.get(variable):
                return self.given.from_environment(variable, parse, default)
        written = self._from_file.get(name)
        if written is None:
            return default
        try:
            return parse(written.text)
        except ValueError as error:
            self.given.problems.append(f"{written.place}: {error}")
            return default
