from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.kubelet import plugins_folder


@pytest.fixture
def folder() -> Iterator[Path]:
    """For sockets."""
    with plugins_folder() as path:
        yield path
