"""Finding and starting NVIDIA's management library.

The library belongs to the driver, which may sit under another root, come later than the agent or be replaced under it:
every session looks for it anew. Nothing here asks about cards.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tessera.node.inventory.cards import InventoryError

LIBRARY = "libnvidia-ml.so.1"

FOLDERS = (
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
)
"""where distributions put it, under the driver's root"""

Binding = Any
"""the module pynvml, its library loaded"""

Dlopen = Callable[[str], Any]


def library_names(driver_root: Path) -> Iterator[str]:
    """What to try, in order: files under the root, links followed; then whatever the linker knows by that name."""
    for folder in FOLDERS:
        try:
            # A replaced driver has the old link and a new file: only another path makes the linker load it again.
            found = (driver_root / folder / LIBRARY).resolve(strict=True)
        except (OSError, RuntimeError):
            continue
        if found.is_file():
            yield str(found)
    yield LIBRARY


def load_binding(driver_root: Path, *, dlopen: Dlopen = ctypes.CDLL) -> Binding:
    """pynvml with the first library that loads. Raises InventoryError."""
    binding: Binding = importlib.import_module("pynvml")
    problems = []
    for name in library_names(driver_root):
        # Other threads may be using the library that is loaded: it is replaced by another one only.
        if getattr(binding.nvmlLib, "_name", None) == name:
            return binding
        try:
            library = dlopen(name)
        except OSError as error:
            problems.append(str(error))
            continue
        binding.nvmlLib = library
        # What pynvml has looked up so far belongs to the library before.
        binding._nvmlGetFunctionPointer_cache.clear()
        return binding
    raise InventoryError(f"cannot load {LIBRARY}: {'; '.join(dict.fromkeys(problems))}")


def can_load(driver_root: Path, *, dlopen: Dlopen = ctypes.CDLL) -> str:
    """Why the library cannot be loaded; empty if it can. Starts nothing."""
    try:
        load_binding(driver_root, dlopen=dlopen)
    except InventoryError as error:
        return str(error)
    return ""
