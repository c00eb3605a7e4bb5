"""Loads NVML, starts and stops it, and turns its errors into `InventoryError` and `CardError`.

The library belongs to the driver. It may live under another root, appear after the agent started, or be replaced while
the agent runs, so every session looks for it again. NVML counts its starts, so sessions in several threads do not
disturb each other. Device handles are never cached: a handle may outlive its card.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tessera.host.cards import CardError, InventoryError

LIBRARY = "libnvidia-ml.so.1"

LIBRARY_DIRS = (
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
)
"""where distributions install it, under the driver root"""

Binding = Any
"""the module pynvml with its library loaded"""

Dlopen = Callable[[str], Any]

Handle = Any


def library_names(driver_root: Path) -> Iterator[str]:
    """Yields paths to try: resolved files under the root, then the bare name for the dynamic linker."""
    for folder in LIBRARY_DIRS:
        try:
            # A replaced driver has the same link and a new file: only another path makes the linker load it.
            found = (driver_root / folder / LIBRARY).resolve(strict=True)
        except (OSError, RuntimeError):
            continue
        if found.is_file():
            yield str(found)
    yield LIBRARY


def load_binding(driver_root: Path, *, dlopen: Dlopen = ctypes.CDLL) -> Binding:
    """Returns pynvml with the first library that loads. Raises InventoryError."""
    binding: Binding = importlib.import_module("pynvml")
    problems = []
    for name in library_names(driver_root):
        # Other threads may be using the loaded library: replace it only with a different one.
        if getattr(binding.nvmlLib, "_name", None) == name:
            return binding
        try:
            library = dlopen(name)
        except OSError as error:
            problems.append(str(error))
            continue
        binding.nvmlLib = library
        # The function pointers that pynvml cached belong to the previous library.
        binding._nvmlGetFunctionPointer_cache.clear()
        return binding
    raise InventoryError(f"cannot load {LIBRARY}: {'; '.join(dict.fromkeys(problems))}")


@dataclass(frozen=True, slots=True)
class Session:
    """A started NVML."""

    api: Binding

    def card(self, uuid: str) -> Handle:
        with self.about(uuid, "finding the card"):
            return self.api.nvmlDeviceGetHandleByUUID(uuid)

    @contextmanager
    def about(self, uuid: str, doing: str) -> Iterator[None]:
        """Turns NVML errors in its body into a CardError of this card."""
        try:
            yield
        except (self.api.NVMLError, UnicodeError) as error:
            raise CardError(uuid, f"{doing}: {error}") from error

    def optional(self, call: Callable[..., Any], *args: Any) -> Any:
        """Returns the result of a call; None if this card or driver does not support it."""
        try:
            return call(*args)
        except self.api.NVMLError as error:
            if self.is_unsupported(error):
                return None
            raise

    def is_unsupported(self, error: BaseException) -> bool:
        unsupported: tuple[int, ...] = (self.api.NVML_ERROR_NOT_SUPPORTED, self.api.NVML_ERROR_FUNCTION_NOT_FOUND)
        return _code(error) in unsupported

    def is_not_found(self, error: BaseException) -> bool:
        return bool(_code(error) == self.api.NVML_ERROR_NOT_FOUND)

    def is_over(self, error: BaseException | None) -> bool:
        """Whether only a new session can work again, e.g. because the driver was replaced."""
        return _code(error) in (
            self.api.NVML_ERROR_UNINITIALIZED,
            self.api.NVML_ERROR_DRIVER_NOT_LOADED,
            self.api.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
        )

    def close(self) -> None:
        with suppress(self.api.NVMLError):
            self.api.nvmlShutdown()


class NvmlConnection:
    """Opens a session on demand and keeps it while it works. For calls one after the other.

    closed --first use--> open --(the session is over, or `close`)--> closed
    """

    def __init__(self, load: Callable[[], Binding]) -> None:
        self._load = load
        self._session: Session | None = None

    @contextmanager
    def session(self) -> Iterator[Session]:
        """Raises InventoryError only, e.g. while no driver is installed."""
        session = self._session = self._session or self._open()
        try:
            yield session
        except (session.api.NVMLError, InventoryError) as error:
            is_own = isinstance(error, InventoryError)
            if session.is_over(error.__cause__ if is_own else error):
                self.close()
            if is_own:
                raise
            raise InventoryError(f"NVML: {error}") from error

    def _open(self) -> Session:
        api = self._load()
        try:
            api.nvmlInit()
        except api.NVMLError as error:
            raise InventoryError(f"cannot start NVML: {error}") from error
        return Session(api)

    def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()


def text_of(value: str | bytes) -> str:
    """NVML's structs hold bytes where its functions return text."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _code(error: BaseException | None) -> int | None:
    return getattr(error, "value", None)
