"""Decodes a `documents` tree to typed values, strictly: a value of the wrong type is reported with advice.

msgspec types describe the fields (structs, lists, unions, `Meta` bounds). A key without a value counts as absent, as in
Go. Whole numbers are 0 to 2^31-1 unless `Meta` says otherwise; NaN and infinity are refused. Nothing is coerced.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from msgspec import inspect

from tessera.wire.documents import Item, Key, Listing, Report, Scalar, Table, bare
from tessera.wire.expectations import advice, bounds_of, expected, is_bool, nearest, same_kind
from tessera.wire.quotes import quoted

Check = Callable[[str, str], str | None]
"""(key, text) -> what is wrong with the text; for rules that a type cannot express"""

_BAD: Any = object()
"""placeholder for a value that was reported"""

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def decode(
    item: Item,
    type_: Any,
    *,
    report: Report,
    path: str = "",
    any_case: bool = False,
    check: Check | None = None,
) -> Any:
    """Decode `item` as `type_`. Problems go to `report`; the value must not be used then.

    With `any_case` the case of keys does not matter, as in Go's JSON.
    """
    return _Decoder(report, any_case, check).value(item, type_info(type_), path)


@cache
def type_info(type_: Any) -> inspect.Type:
    """What a type consists of. A program reads values of few types, and to look into one takes a millisecond."""
    return inspect.type_info(type_)


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
            case ((inspect.ListType(item_type=of) | inspect.VarTupleType(item_type=of)), Listing(items)):
                values = [self.value(member, of, f"{path}[{i}]") for i, member in enumerate(items)]
                return _all_good(values if isinstance(info, inspect.ListType) else tuple(values), values)
            case inspect.LiteralType(values=values), Scalar(value=value) if value in values and not is_bool(item):
                return value
            case inspect.StrType(), Scalar(value=str(text)):
                return self._text(item, info, text, path)
            case inspect.BoolType(), Scalar(value=bool(flag)):
                return flag
            case ((inspect.IntType() | inspect.FloatType()), Scalar(value=int(number))) if not is_bool(item):
                return self._number(item, info, number, path)
            case inspect.FloatType(), Scalar(value=float(number)):
                return self._number(item, info, number, path)
        return self._mismatch(item, (info,), path)

    def _union(self, item: Item, types: tuple[inspect.Type, ...], path: str) -> Any:
        if isinstance(item, Scalar) and item.value is None and any(isinstance(t, inspect.NoneType) for t in types):
            return None
        for info in types:
            if same_kind(info, item):
                return self.value(item, info, path)
        return self._mismatch(item, types, path)

    def _struct(self, item: Table, info: inspect.StructType, path: str) -> Any:
        fields = {self._folded(field.encode_name): field for field in info.fields}
        given: dict[str, Any] = {}
        for key, member in item.entries:
            field = fields.get(self._folded(key.text))
            where = f"{path}.{bare(key.text)}" if path else bare(key.text)
            if field is None:
                self._unknown(key, [f.encode_name for f in info.fields], path)
            elif field.name in given:
                self._report.add("is given twice, in different case", line=key.line, path=where)
            elif not (isinstance(member, Scalar) and member.value is None):
                given[field.name] = self._checked(key, member, self.value(member, field.type, where), where)
        missing = [field.encode_name for field in info.fields if field.required and field.name not in given]
        for name in missing:
            self._report.add(f'the key "{name}" is missing', line=item.line, path=path)
        if missing or _all_good(given, given.values()) is _BAD:
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

    def _text(self, item: Scalar, info: inspect.StrType, text: str, path: str) -> Any:
        if _LONE_SURROGATE.search(text):
            self._report.add("half of a surrogate pair is no character", line=item.line, path=path)
            return _BAD
        fits = (info.min_length or 0) <= len(text) <= (len(text) if info.max_length is None else info.max_length)
        if fits and (info.pattern is None or re.search(info.pattern, text)):
            return text
        return self._mismatch(item, (info,), path)

    def _number(self, item: Scalar, info: inspect.IntType | inspect.FloatType, number: int | float, path: str) -> Any:
        low, high = bounds_of(info)
        if low <= number <= high and math.isfinite(number):
            return number if isinstance(info, inspect.IntType) else float(number)
        return self._mismatch(item, (info,), path)

    def _mismatch(self, item: Item, types: tuple[inspect.Type, ...], path: str) -> Any:
        self._report.add(f"expected {expected(types)}, found {item}{advice(item, types)}", line=item.line, path=path)
        return _BAD

    def _unknown(self, key: Key, known: list[str], path: str) -> None:
        hint = "" if self._report.full else nearest(key.text, known)
        self._report.add(f"unknown key {quoted(key.text)}{hint}", line=key.line, path=path)

    def _folded(self, key: str) -> str:
        return key.lower() if self._any_case else key


def _all_good(whole: Any, parts: Iterable[Any]) -> Any:
    """`whole`, unless one of its parts was reported, so checks of structs only see values of the right type."""
    return _BAD if any(part is _BAD for part in parts) else whole
