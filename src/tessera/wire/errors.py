"""The one exception of this package: text from outside that cannot be understood."""

from __future__ import annotations


class WireError(ValueError):
    """Malformed input. The message says what is wrong, where, and what would be right."""
