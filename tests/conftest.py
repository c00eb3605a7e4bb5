"""How hypothesis runs here: the same examples every time, unless HYPOTHESIS_PROFILE=thorough looks for new ones."""

from __future__ import annotations

import asyncio
import os

import pytest
from hypothesis import HealthCheck, settings

# Slow machines are not failing tests: no deadline, and no complaint about slow generation.
settings.register_profile(
    "steady", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.register_profile(
    "thorough", deadline=None, max_examples=2000, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))


def pytest_configure(config: pytest.Config) -> None:
    """Without this, the first plugin that asks for the main thread's loop gets a new one, which nothing closes.

    Python 3.12 and 3.13 also warn about that, and here a warning is an error.
    """
    asyncio.set_event_loop(None)


def pytest_make_parametrize_id(val: object) -> str | None:
    """Keys and certificates are made anew each time: their text would give a test another name in every process."""
    return "pem" if isinstance(val, bytes) and val.startswith(b"-----BEGIN") else None
