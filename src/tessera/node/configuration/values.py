"""What may be written behind the agent's own flags, beyond what all services have (`services.flag_values`).

Each takes the text and returns the value, or raises ValueError with what was expected and what was found.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from tessera.node.settings import DeviceListStrategy
from tessera.services.flag_values import directory_of, number_of, one_of, some_text
from tessera.wire.node_config import MigStrategy
from tessera.wire.quotes import quoted

MAX_SCALING = 1000.0
"""times; more is a slip of the pen, and would not fit where registered sizes go"""

_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}\Z", re.ASCII)
_PREFIX = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9._-]{0,63}\Z", re.ASCII)
_MAX_PREFIX = 253
_STRATEGIES: dict[str, MigStrategy] = {"none": "none", "single": "single", "mixed": "mixed"}


def folder_of(text: str) -> Path:
    return Path(directory_of(text))


def file_of(text: str) -> Path:
    """Of this process, so that it may be relative."""
    return Path(some_text(text))


def maybe(parse: Callable[[str], Path]) -> Callable[[str], Path | None]:
    """A reader of paths that takes nothing for none."""
    return lambda text: parse(text) if text else None


def strategies_of(text: str) -> frozenset[DeviceListStrategy]:
    """A comma list; empty parts say nothing."""
    read = one_of(DeviceListStrategy)
    found = frozenset(read(word) for word in (part.strip() for part in text.split(",")) if word)
    if not found:
        raise ValueError("expected at least one strategy, found nothing")
    return found


def mig_strategy_of(text: str) -> MigStrategy:
    if text not in _STRATEGIES:
        raise ValueError(f"expected {' or '.join(_STRATEGIES)}, found {quoted(text)}")
    return _STRATEGIES[text]


def scaling_of(text: str) -> float:
    value = number_of(text)
    if not 0 <= value <= MAX_SCALING:
        raise ValueError(f"expected a number from 0 to {MAX_SCALING:g}, found {quoted(text)}")
    return value


def version_of(text: str) -> str:
    """Part of a file name, so nothing that leads out of a folder. Empty = none."""
    if text and not _VERSION.match(text):
        raise ValueError(f"expected a version such as v2.10.0, found {quoted(text)}")
    return text


def prefix_of(text: str) -> str:
    """The beginning of an annotation's key, up to the slash or a little further."""
    if len(text) > _MAX_PREFIX or not _PREFIX.match(text):
        raise ValueError(f"expected a domain and a slash such as cdi.k8s.io/, found {quoted(text)}")
    return text
