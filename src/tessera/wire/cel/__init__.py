"""Selectors of devices in CEL, the expression language of resource.k8s.io: the part of it that docs/claims.md lists.

Pure and bounded: a text of any kind costs little to refuse, and an expression that was accepted costs little on every
device. What is not in the documented part is refused by name, never guessed.
"""

from __future__ import annotations

from tessera.wire.cel.selectors import AllOf, Selector, compile_selector

__all__ = ["AllOf", "Selector", "compile_selector"]
