"""The base of what records consist of."""

from __future__ import annotations

import msgspec


class Value(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    """A value of the core in JSON: `of` makes it from the core's value, `value` gives an equal one back."""
