"""The parameters of a request, read once and checked."""

from __future__ import annotations

from collections.abc import Mapping

from tessera.lab.sandbox.api.errors import ApiError, bad_request
from tessera.lab.sandbox.api.kinds import Kind
from tessera.lab.sandbox.api.selectors import Selector, parse_fields, parse_labels

Query = Mapping[str, str]
MAX_NUMBER = 2**63 - 1


def selector(kind: Kind, query: Query) -> Selector:
    return Selector(parse_labels(query.get("labelSelector", "")), parse_fields(kind, query.get("fieldSelector", "")))


def whole_number(query: Query, name: str) -> int | None:
    """A number that is not negative, or None where it is not given."""
    text = query.get(name, "")
    if not text:
        return None
    if not (text.isascii() and text.isdecimal()) or len(text) > 19 or int(text) > MAX_NUMBER:
        raise bad_request(f"invalid {name}: {text[:40]!r}")
    return int(text)


def limit(query: Query) -> int:
    """Items on a page; 0 and anything below means all."""
    text = query.get("limit", "")
    return 0 if text.startswith("-") and text[1:].isdecimal() else whole_number(query, "limit") or 0


def flag(query: Query, name: str) -> bool:
    return query.get(name, "").lower() in ("1", "t", "true")


def dry_run(query: Query) -> bool:
    text = query.get("dryRun", "")
    if text not in ("", "All"):
        why = f'dryRun: Unsupported value: "{text[:40]}": supported values: "All"'
        raise ApiError(422, "Invalid", f'options.meta.k8s.io "" is invalid: {why}')
    return bool(text)
