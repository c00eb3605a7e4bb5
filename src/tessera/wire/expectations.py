"""Messages about a configuration file: the expected type, advice on common mistakes, the key that was probably meant.

Describes msgspec types in plain words. `strict` decides whether a value is valid.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from difflib import get_close_matches

from msgspec import inspect

from tessera.files.documents import plain_value
from tessera.wire.documents import Item, Listing, Scalar, Table, bare
from tessera.wire.integers import INT32_MAX

_LIST_ALL = 12
"""if no key is similar, list all known keys up to this many"""


def nearest(key: str, known: Iterable[str], *, what: str = "keys") -> str:
    """A hint that ends a message about an unknown key; `what` is its plural noun."""
    by_lower = {name.lower(): name for name in known}
    close = get_close_matches(key[:64].lower(), by_lower, n=1)
    if close:
        return f'; did you mean "{by_lower[close[0]]}"?'
    if 0 < len(by_lower) <= _LIST_ALL:
        return f"; known {what} are {', '.join(sorted(by_lower.values()))}"
    return ""


def expected(types: Iterable[inspect.Type]) -> str:
    """What any of `types` accepts."""
    return " or ".join(dict.fromkeys(words(info) for info in types if not isinstance(info, inspect.NoneType)))


def is_bool(item: Item) -> bool:
    return isinstance(item, Scalar) and isinstance(item.value, bool)


def same_kind(info: inspect.Type, item: Item) -> bool:
    """Whether `item` has the type that `info` describes, regardless of its value."""
    match info, item:
        case inspect.Metadata(type=inner), _:
            return same_kind(inner, item)
        case (inspect.StructType(), Table()):
            return True
        case ((inspect.ListType() | inspect.VarTupleType()), Listing()):
            return True
        case ((inspect.LiteralType() | inspect.StrType()), Scalar(value=str())):
            return True
        case inspect.BoolType(), Scalar(value=bool()):
            return True
        case inspect.IntType(), Scalar(value=int()):
            return not is_bool(item)
        case inspect.FloatType(), Scalar(value=int() | float()):
            return not is_bool(item)
    return False


def bounds_of(info: inspect.IntType | inspect.FloatType) -> tuple[float, float]:
    """Both are included; our types have no others."""
    least, most = (0, INT32_MAX) if isinstance(info, inspect.IntType) else (-math.inf, math.inf)
    return least if info.ge is None else info.ge, most if info.le is None else info.le


def words(info: inspect.Type) -> str:
    match info:
        case inspect.Metadata(type=inner):
            return words(inner)
        case inspect.StrType():
            return _text_words(info)
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType() | inspect.FloatType():
            return _number_words(info)
        case inspect.LiteralType(values=values):
            return "one of " + ", ".join(f'"{value}"' for value in values if value != "")
        case inspect.ListType() | inspect.VarTupleType():
            return "a list"
    return "a table of keys"


def _text_words(info: inspect.StrType) -> str:
    rules = [
        f"at least {info.min_length} characters" if info.min_length else "",
        f"at most {info.max_length} characters" if info.max_length is not None else "",
        f"the form {info.pattern}" if info.pattern else "",
    ]
    said = " and ".join(rule for rule in rules if rule)
    return f"a text of {said}" if said else "a text"


def _number_words(info: inspect.IntType | inspect.FloatType) -> str:
    low, high = bounds_of(info)
    if isinstance(info, inspect.IntType):
        return f"a whole number from {low} to {high}"
    bounds = [f"from {low:g}" if low > -math.inf else "", f"to {high:g}" if high < math.inf else ""]
    return " ".join(["a number", *(bound for bound in bounds if bound)])


def advice(item: Item, types: tuple[inspect.Type, ...]) -> str:
    if not isinstance(item, Scalar):
        return ""
    for info in types:
        match info, item.value:
            case ((inspect.IntType() | inspect.FloatType() | inspect.BoolType()), str()):
                unquoted = Scalar(plain_value(item.text), item.line, item.text)
                if item.quoted and same_kind(info, unquoted):
                    return "; remove the quotes"
            case inspect.IntType(), float(number) if number.is_integer() and abs(number) <= INT32_MAX:
                return f"; write {int(number)}"
            case inspect.BoolType(), 0 | 1:
                return f"; write {'true' if item.value else 'false'}"
            case inspect.StrType(), int() | float():
                return f'; write it in quotes, "{bare(item.text)}"'
            case ((inspect.ListType() | inspect.VarTupleType()), str() | int() | float()):
                return f"; write [{bare(item.text)}]"
    return ""
