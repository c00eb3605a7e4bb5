"""What vendors read of a container, and the draft they edit at admission.

A draft starts as a copy of the pod; vendors change it in place through idempotent operations. The webhook compares
draft and original and sends only what differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tessera.wire.errors import shortened
from tessera.wire.golang import INT32_MAX
from tessera.wire.objects import QuantityText
from tessera.wire.quantity import NotAQuantity, NotWhole, Whole, read


@dataclass(frozen=True, slots=True)
class BadRequest:
    """A resource value that cannot be honoured; `advice` says what to write instead."""

    resource: str
    value: str
    advice: str

    @property
    def text(self) -> str:
        return f"{self.resource}: {shortened(self.value)} cannot be used: {self.advice}"


@dataclass(frozen=True, slots=True)
class BadPod:
    """A pod whose request cannot be honoured as written."""

    container: str
    """empty where the fault is in an annotation"""
    text: str


@dataclass(frozen=True, slots=True)
class Denied:
    """A pod that must not be admitted; the user reads `text`."""

    text: str


@dataclass(slots=True)
class Resources:
    limits: dict[str, QuantityText] = field(default_factory=dict)
    requests: dict[str, QuantityText] = field(default_factory=dict)

    def text(self, name: str, *, limits_only: bool = False) -> QuantityText | None:
        """The value as written: limits first, then requests. None for an empty name."""
        if not name:
            return None
        value = self.limits.get(name)
        if value is None and not limits_only:
            value = self.requests.get(name)
        return value

    def amount(
        self, name: str, *, least: int = 0, most: int = INT32_MAX, limits_only: bool = False, unit: str = ""
    ) -> int | BadRequest | None:
        """A whole number between `least` and `most`; None if the container does not name the resource."""
        text = self.text(name, limits_only=limits_only)
        if text is None:
            return None
        return amount(name, text, least=least, most=most, unit=unit)


def amount(name: str, text: QuantityText, *, least: int = 0, most: int = INT32_MAX, unit: str = "") -> int | BadRequest:
    """Read one quantity as a whole number in a range, or say what to write."""
    of = f" of {unit}" if unit else ""
    match read(text):
        case Whole(value) if least <= value <= most:
            return value
        case Whole(value) if unit == "MiB" and value > most and value // 2**20 <= most:
            return BadRequest(name, str(text), f"write a plain number of MiB, such as {value // 2**20}")
        case Whole() | NotWhole():
            return BadRequest(name, str(text), f"write a whole number{of} from {least} to {most}")
        case NotAQuantity(reason):
            return BadRequest(name, str(text), f"{reason}; write a whole number{of}")


@dataclass(slots=True)
class ContainerDraft(Resources):
    name: str = ""
    env: dict[str, str] = field(default_factory=dict)
    """literal values by name; empty for values that come from elsewhere"""

    def set_both(self, name: str, value: int) -> None:
        self.limits[name] = str(value)
        self.requests[name] = str(value)


@dataclass(slots=True)
class PodDraft:
    """A pod at admission, as far as vendors may change it."""

    annotations: dict[str, str] = field(default_factory=dict)
    runtime_class: str | None = None
    containers: list[ContainerDraft] = field(default_factory=list)
    """init containers first"""
    warnings: list[str] = field(default_factory=list)
    """sentences that kubectl shows the user"""

    def warn(self, sentence: str) -> None:
        if sentence not in self.warnings:
            self.warnings.append(sentence)


def words(annotations: Mapping[str, str], key: str, *, lower: bool = False) -> tuple[str, ...]:
    """A comma list from an annotation: trimmed, sorted, without empty members or duplicates."""
    text = annotations.get(key)
    if not text:
        return ()
    members = {part.strip() for part in text.split(",")} - {""}
    return tuple(sorted({m.lower() for m in members} if lower else members))
