"""Declarative settings: one table per service says the flag, type, default, variables and help of every setting.

A table is a frozen dataclass whose fields are made by `setting`. `--help`, the reading of flags, variables and files,
`--print-config` and the reference in docs/ all come from it, so that they cannot differ. A value that cannot be read
counts as not given, so that all problems come in one message. What values mean together is up to each service.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any, NamedTuple, TypeVar

from tessera.services.value_types import FlagKind, ValueType
from tessera.wire.errors import WireError

T = TypeVar("T")
D = TypeVar("D")

MAX_PROBLEMS = 50
"""listed in a message; with more it is the whole command line that is wrong"""

_ROW, _TABLE = "setting", "table"


class Group(Enum):
    """Headings of `--help`, in their order; each service shows those that it has settings for."""

    CLUSTER = "Cluster"
    FILES = "Configuration files"
    LISTENERS = "Listeners"
    CERTIFICATES = "Certificates"
    ADMISSION = "Admission"
    PLACEMENT = "Placement and binding"
    DEVICES = "Devices"
    LEADER = "Leader election"
    CARDS = "Cards"
    CONTAINERS = "What containers are given"
    KUBELET = "kubelet"
    FOLDERS = "Folders of the node"
    OPERATION = "Operation"
    OVERRIDES = "Flags of HAMi v2.4 and vendor resource names (override the device configuration)"
    LOWEST = "Flags of HAMi v2.4 (both configuration files win over them)"
    IGNORED = "Accepted for HAMi's sake, without effect"


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of a table. Names of flags are written without dashes; the first is HAMi's where HAMi has the flag."""

    flag: str
    type: ValueType[Any]
    default: Any
    group: Group
    help: str
    default_text: str = ""
    """the default in words, where the value alone does not say it"""
    aliases: tuple[str, ...] = ()
    short: str = ""
    env: tuple[str, ...] = ()
    """variables that count where the flag is not given; the first one that is set wins"""
    parse_env: Callable[[str], Any] | None = None
    """where HAMi reads the variable in another way than the flag"""
    env_warns: bool = False
    """a variable that cannot be read is a warning, not a problem"""
    needed: str = ""
    """what to do where no source says it; empty where it may be left out"""
    expands_home: bool = False
    """no shell expands the ~ in --flag=~/file"""
    hidden: bool = False

    @property
    def dest(self) -> str:
        """The flag as an identifier."""
        return self.flag.replace("-", "_")

    @property
    def names(self) -> tuple[str, ...]:
        return (self.flag, *self.aliases)

    @property
    def shown_default(self) -> str:
        """For people; empty where there is nothing to say."""
        if self.default_text or self.needed or self.group is Group.IGNORED:
            return self.default_text
        shown = "" if self.default is None else self.type.show(self.default)
        if isinstance(shown, bool):
            return "true" if shown else "false"
        return f"{shown:g}" if isinstance(shown, float) else str(shown or "")

    @property
    def help_text(self) -> str:
        """What `--help` says."""
        default = f"Default: {self.shown_default}." if self.shown_default else "Needed." if self.needed else ""
        env = f"[{', '.join(self.env)}]" if self.env else ""
        return " ".join(filter(None, (self.help, default, env)))


def setting(group: Group, flag: str, type: ValueType[T], default: D, help: str, **more: Any) -> T | D:
    """A field that is one setting; `more` are the other columns of `Setting`."""
    metadata = {_ROW: Setting(flag, type, default, group, help, **more)}
    if isinstance(default, Hashable):
        made: T | D = field(default=default, metadata=metadata)
    else:
        made = field(default_factory=lambda: default, metadata=metadata)
    return made


def nested(table: type[T]) -> T:
    """A field that is a table itself."""
    made: T = field(default_factory=table, metadata={_TABLE: table})
    return made


def shared(table: type, name: str) -> Any:
    """A field with the row that another table's field has."""
    row = row_of(table, name)
    return field(default=row.default, metadata={_ROW: row})


def rows_of(*tables: type) -> tuple[Setting, ...]:
    """The settings of some tables, with those of the tables inside them."""
    found: list[Setting] = []
    for each in (each for table in tables for each in fields(table)):
        if _ROW in each.metadata:
            found.append(each.metadata[_ROW])
        elif _TABLE in each.metadata:
            found.extend(rows_of(each.metadata[_TABLE]))
    return tuple(found)


def row_of(table: type, name: str) -> Setting:
    """The setting of one field."""
    found: Setting = next(each.metadata[_ROW] for each in fields(table) if each.name == name)
    return found


def describe(values: Any) -> dict[str, Any]:
    """The settings of a table's instance by flag, each as its flag reads it."""
    said: dict[str, Any] = {}
    for each in fields(values):
        value = getattr(values, each.name)
        if _ROW in each.metadata:
            row: Setting = each.metadata[_ROW]
            said[row.flag] = row.type.show(value)
        elif _TABLE in each.metadata:
            said |= describe(value)
    return said


class SettingsError(ValueError):
    """A configuration that cannot be used, with everything that is wrong with it."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        more = len(self.problems) - MAX_PROBLEMS
        super().__init__(
            "\n".join([*self.problems[:MAX_PROBLEMS], *([f"and {more} more problems"] if more > 0 else [])])
        )


ReadFile = Callable[[str], str]
"""returns the text of a file; raises OSError or UnicodeError"""

Flags = Mapping[str, str | tuple[str, ...]]
"""what was written behind each flag that was given, by its first name; a tuple where it may be repeated"""


class FileText(NamedTuple):
    """What a file says in place of a flag."""

    text: str
    place: str
    """file, line and key"""


class Sources:
    """Reads settings: from the flag, or else from its variables, or else from a file, or else the default."""

    def __init__(
        self, flags: Flags, environ: Mapping[str, str], from_file: Mapping[str, FileText] | None = None
    ) -> None:
        self._flags = flags
        self.environ = environ
        self.from_file = from_file or {}
        """by flag"""
        self.problems: list[str] = []
        self.warnings: list[str] = []

    def __contains__(self, flag: object) -> bool:
        """Whether the flag was written on the command line, well or not."""
        return flag in self._flags

    def says(self, setting: Setting) -> bool:
        """Whether any source says something, well or not."""
        variables = (self.environ.get(variable) for variable in setting.env)
        return setting.flag in self._flags or any(variables) or setting.flag in self.from_file

    def load(self, table: type[T], **known: Any) -> T:
        """An instance of a table; fields that `known` names are not read."""
        values = dict(known)
        for each in fields(table):  # type: ignore[arg-type]
            if each.name in known:
                continue
            if _ROW in each.metadata:
                values[each.name] = self.read(each.metadata[_ROW])
            elif _TABLE in each.metadata:
                values[each.name] = self.load(each.metadata[_TABLE])
        return table(**values)

    def read(self, setting: Setting) -> Any:
        """The value of one setting, or its default where it is not given or cannot be read."""
        if setting.flag in self._flags:
            return self._parse(setting, f"--{setting.flag}", self._flags[setting.flag])
        for variable in setting.env:
            if self.environ.get(variable):
                return self._parse_variable(setting, variable)
        written = self.from_file.get(setting.flag)
        if written is not None:
            return self._parse(setting, written.place, written.text)
        if setting.needed:
            self.blame(setting.flag, f"is needed; {setting.needed}")
        return setting.default

    def load_file(self, flag: str, file: str, read: ReadFile, load: Callable[[str], T]) -> T | None:
        """What `load` makes of the file that a flag names; None where it cannot be used, which is a problem."""
        try:
            return load(read(file))
        except OSError as error:
            self.blame(flag, f"cannot read {file}: {error.strerror or error}")
        except UnicodeError:
            self.blame(flag, f"cannot read {file}: it is not UTF-8 text")
        except WireError as error:
            self.problems.extend(str(error).splitlines())
        return None

    def blame(self, flag: str, text: str) -> None:
        """Note a problem with a flag."""
        self.problems.append(f"--{flag}: {text}")

    def check(self) -> None:
        """Raise if anything is wrong."""
        if self.problems:
            raise SettingsError(self.problems)

    def _parse_variable(self, setting: Setting, variable: str) -> Any:
        text = self.environ[variable]
        if setting.parse_env is not None:
            return setting.parse_env(text)
        before = len(self.problems)
        value = self._parse(setting, variable, text)
        if setting.env_warns:
            self.warnings += [f"{problem}; {setting.shown_default} holds" for problem in self.problems[before:]]
            del self.problems[before:]
        return value

    def _parse(self, setting: Setting, source: str, written: str | tuple[str, ...]) -> Any:
        parse = setting.type.parse
        texts = (written,) if isinstance(written, str) else written
        if setting.type.kind is FlagKind.SET:
            return frozenset().union(*(self._try_parse(source, text, parse, frozenset()) for text in texts))
        text = ",".join(texts)
        home = self.environ.get("HOME", "")
        if setting.expands_home and home and (text == "~" or text.startswith("~/")):
            text = f"{home}{text[1:]}"
        return self._try_parse(source, text, parse, setting.default)

    def _try_parse(self, source: str, text: str, parse: Callable[[str], Any], default: Any) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            self.problems.append(f"{source}: {error}")
            return default


def given_in(group: Group, table: Iterable[Setting], flags: Flags) -> list[str]:
    """The flags of a group that were given."""
    return [f"--{each.flag}" for each in table if each.group is group and each.flag in flags]
