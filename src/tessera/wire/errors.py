"""The one exception of this package: input that cannot be decoded."""

from __future__ import annotations


class WireError(ValueError):
    """Malformed input. The message says what is wrong, where, and what would be right."""
