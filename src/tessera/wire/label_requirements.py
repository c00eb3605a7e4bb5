"""One requirement on labels, as label selectors and node affinity have it: a key, an operator and values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LabelRequirement:
    key: str
    operator: str
    """In, NotIn, Exists, DoesNotExist, Gt or Lt"""
    values: frozenset[str] = frozenset()

    def matches(self, labels: Mapping[str, str]) -> bool:
        found = labels.get(self.key)
        match self.operator:
            case "In":
                return found in self.values
            case "NotIn":
                return found not in self.values
            case "Exists":
                return found is not None
            case "DoesNotExist":
                return found is None
            case "Gt" | "Lt":
                return self._compare(found)
        return False

    def _compare(self, found: str | None) -> bool:
        """Numbers only; what is no number matches nothing."""
        try:
            label, bound = int(found or ""), int(next(iter(self.values), ""))
        except ValueError:
            return False
        return label > bound if self.operator == "Gt" else label < bound
