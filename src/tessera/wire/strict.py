"""A `documents` tree to typed values, strictly: every value has the type its field declares or is reported with advice.

Fields are described by msgspec (structs, lists, unions, `Meta` bounds). A key without value counts as absent, as it does in
Go. Whole numbers are 0 to 2^31-1 unless `Meta` says otherwise; NaN and infinity are no numbers. Nothing is coerced.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from msgspec import inspect

from tessera.wire.documents import Item, Key, Listing, Report, Scalar, Table, clipped, excerpt
from tessera.wire.yaml_source import plain_value

INT32_MAX = 2**31 - 1
"""counters are signed 32-bit on the wire"""

Check = Callable[[str, str], str | None]
"""(key, text) -> what is wrong with the text, for rules that a type cannot express"""

_BAD: Any = object()
"""stands for a value that was reported"""

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")

_LIST_ALL = 12
"""with no similar key, name all known ones up to this many"""


def decode(
    item: Item,
    type_: Any,
    *,
    report: Report,
    path: str = "",
    any_case: bool = False,
    check: Check | None = None,
) -> Any:
    """`item` as a value of `type_`. What is wrong goes to `report`; the value must not be used then.

    With `any_case` the case of keys does not matter, as in Go's JSON.
    """
    return _Decoder(report, any_case, check).value(item, inspect.type_info(type_), path)


def nearest(key: str, known: Iterable[str]) -> str:
    """A hint to end a message about an unknown key with."""
    by_lower = {name.lower(): name for name in known}
    close = get_close_matches(key[:64].lower(), by_lower, n=1)
    if close:
        return f'; did you mean "{by_lower[close[0]]}"?'
    if 0 < len(by_lower) <= _LIST_ALL:
        return f"; known keys are {', '.join(sorted(by_lower.values()))}"
    return ""


def plain(item: Item) -> Any:
    """The tree as lists, dicts and scalars."""
    match item:
        case Listing(items):
            return [plain(member) for member in items]
        case Table(entries):
            return {key.text: plain(member) for key, member in entries}
    return item.value


class _Decoder:
    def __init__(self, report: Report, any_case: bool, check: Check | None) -> None:
        self._report = report
        self._any_case = any_case
        self._check = check

    def value(self, item: Item, info: inspect.Type, path: str) -> Any:
        match info, item:
            case inspect.Metadata(type=inner), _:
                return self.value(item, inner, path)
            case inspect.UnionType(types=types), _:
                return self._union(item, types, path)
            case inspect.AnyType(), _:
                return plain(item)
            case inspect.StructType(), Table():
                return self._struct(item, info, path)
            case inspect.DictType(value_type=of), Table(entries):
                return self._dict(entries, of, path)
            case (inspect.ListType(item_type=of) | inspect.VarTupleType(item_type=of)), Listing(items):
                values = [self.value(member, of, f"{path}[{i}]") for i, member in enumerate(items)]
                return values if isinstance(info, inspect.ListType) else tuple(values)
            case (inspect.LiteralType() | inspect.EnumType()), Scalar():
                return self._choice(item, info, path)
            case inspect.StrType(), Scalar(value=str(text)):
                return self._text(item, text, path)
            case inspect.BoolType(), Scalar(value=bool(flag)):
                return flag
            case (inspect.IntType() | inspect.FloatType()), Scalar(value=int(number)) if not _is_bool(item):
                return self._number(item, info, number, path)
            case inspect.FloatType(), Scalar(value=float(number)):
                return self._number(item, info, number, path)
        return self._mismatch(item, (info,), path)

    def _union(self, item: Item, types: tuple[inspect.Type, ...], path: str) -> Any:
        if isinstance(item, Scalar) and item.value is None and any(isinstance(t, inspect.NoneType) for t in types):
            return None
        for info in types:
            if _same_kind(info, item):
                return self.value(item, info, path)
        return self._mismatch(item, types, path)

    def _struct(self, item: Table, info: inspect.StructType, path: str) -> Any:
        fields = {self._folded(field.encode_name): field for field in info.fields}
        given: dict[str, Any] = {}
        for key, member in item.entries:
            field = fields.get(self._folded(key.text))
            where = f"{path}.{clipped(key.text)}" if path else clipped(key.text)
            if field is None:
                self._unknown(key, [f.encode_name for f in info.fields], path)
            elif field.name in given:
                self._report.add("is given twice, in different case", line=key.line, path=where)
            elif not (isinstance(member, Scalar) and member.value is None):
                given[field.name] = self._checked(key, member, self.value(member, field.type, where), where)
        missing = [field.encode_name for field in info.fields if field.required and field.name not in given]
        for name in missing:
            self._report.add(f'the key "{name}" is missing', line=item.line, path=path)
        if missing or any(value is _BAD for value in given.values()):
            return _BAD
        try:
            return info.cls(**given)
        except ValueError as error:
            self._report.add(str(error), line=item.line, path=path)
            return _BAD

    def _checked(self, key: Key, member: Item, value: Any, where: str) -> Any:
        wrong = self._check(key.text, value) if self._check and isinstance(value, str) else None
        if wrong is None:
            return value
        self._report.add(wrong, line=member.line, path=where)
        return _BAD

    def _dict(self, entries: Iterable[tuple[Key, Item]], of: inspect.Type, path: str) -> dict[str, Any]:
        return {key.text: self.value(member, of, f"{path}.{clipped(key.text)}") for key, member in entries}

    def _choice(self, item: Scalar, info: inspect.LiteralType | inspect.EnumType, path: str) -> Any:
        choices: Mapping[Any, Any] = (
            {value: value for value in info.values}
            if isinstance(info, inspect.LiteralType)
            else {member.value: member for member in info.cls}
        )
        if item.value in choices and not _is_bool(item):
            return choices[item.value]
        return self._mismatch(item, (info,), path)

    def _text(self, item: Scalar, text: str, path: str) -> Any:
        if _LONE_SURROGATE.search(text):
            self._report.add("half of a surrogate pair is no character", line=item.line, path=path)
            return _BAD
        return text

    def _number(
        self, item: Scalar, info: inspect.IntType | inspect.FloatType, number: int | float, path: str
    ) -> Any:
        low, high = _range(info)
        if low <= number <= high and number != info.gt and number != info.lt and math.isfinite(number):
            return number if isinstance(info, inspect.IntType) else float(number)
        return self._mismatch(item, (info,), path)

    def _mismatch(self, item: Item, types: tuple[inspect.Type, ...], path: str) -> Any:
        expected = " or ".join(dict.fromkeys(_words(info) for info in types if not isinstance(info, inspect.NoneType)))
        self._report.add(f"expected {expected}, found {item}{_advice(item, types)}", line=item.line, path=path)
        return _BAD

    def _unknown(self, key: Key, known: list[str], path: str) -> None:
        hint = "" if self._report.full else nearest(key.text, known)
        self._report.add(f"unknown key {excerpt(key.text)}{hint}", line=key.line, path=path)

    def _folded(self, key: str) -> str:
        return key.lower() if self._any_case else key


def _is_bool(item: Item) -> bool:
    return isinstance(item, Scalar) and isinstance(item.value, bool)


def _same_kind(info: inspect.Type, item: Item) -> bool:
    """Whether `item` is of the kind that `info` describes, its exact value apart."""
    match info, item:
        case inspect.Metadata(type=inner), _:
            return _same_kind(inner, item)
        case (inspect.StructType() | inspect.DictType()), Table():
            return True
        case (inspect.ListType() | inspect.VarTupleType()), Listing():
            return True
        case (inspect.LiteralType() | inspect.EnumType() | inspect.StrType()), Scalar(value=str()):
            return True
        case inspect.BoolType(), Scalar(value=bool()):
            return True
        case inspect.IntType(), Scalar(value=int()):
            return not _is_bool(item)
        case inspect.FloatType(), Scalar(value=int() | float()):
            return not _is_bool(item)
    return False


def _range(info: inspect.IntType | inspect.FloatType) -> tuple[float, float]:
    """Inclusive bounds; exclusive ones are told apart by the caller."""
    whole = isinstance(info, inspect.IntType)
    low = next((bound for bound in (info.ge, info.gt) if bound is not None), 0 if whole else -math.inf)
    high = next((bound for bound in (info.le, info.lt) if bound is not None), INT32_MAX if whole else math.inf)
    return low, high


def _words(info: inspect.Type) -> str:
    match info:
        case inspect.Metadata(type=inner):
            return _words(inner)
        case inspect.StrType():
            return "a text"
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType() | inspect.FloatType():
            return _number_words(info)
        case inspect.LiteralType(values=values):
            return "one of " + ", ".join(f'"{value}"' for value in values if value != "")
        case inspect.EnumType(cls=cls):
            return "one of " + ", ".join(f'"{member.value}"' for member in cls)
        case inspect.ListType() | inspect.VarTupleType():
            return "a list"
    return "a table of keys"


def _number_words(info: inspect.IntType | inspect.FloatType) -> str:
    low, high = _range(info)
    if isinstance(info, inspect.IntType):
        return f"a whole number from {low + (info.gt is not None):g} to {int(high) - (info.lt is not None)}"
    above = "above" if info.gt is not None else "from"
    below = "below" if info.lt is not None else "to"
    bounds = [f"{above} {low:g}" if low > -math.inf else "", f"{below} {high:g}" if high < math.inf else ""]
    return " ".join(["a number", *(bound for bound in bounds if bound)])


def _advice(item: Item, types: tuple[inspect.Type, ...]) -> str:
    if not isinstance(item, Scalar):
        return ""
    unquoted = plain_value(item.text)
    for info in types:
        match info, item.value:
            case (inspect.IntType() | inspect.FloatType() | inspect.BoolType()), str():
                bare = Scalar(unquoted, item.line, item.text)
                if item.quoted and _same_kind(info, bare):
                    return "; remove the quotes"
            case inspect.IntType(), float(number) if number.is_integer() and abs(number) <= INT32_MAX:
                return f"; write {int(number)}"
            case inspect.BoolType(), 0 | 1:
                return f"; write {'true' if item.value else 'false'}"
            case inspect.StrType(), int() | float():
                return f'; write it in quotes, "{clipped(item.text)}"'
            case (inspect.ListType() | inspect.VarTupleType()), str() | int() | float():
                return f"; write [{clipped(item.text)}]"
    return ""
