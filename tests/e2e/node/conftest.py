"""The node that the tests of this folder share. They run inside a room only: `python -m tests.e2e.node`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.e2e.node.cluster import Node, start_node
from tests.e2e.node.container import this_room
from tests.e2e.node.machine import machine
from tools.kubernetes import build

collect_ignore_glob = [] if this_room() else ["test_*.py"]


@pytest.fixture(scope="session")
def tools() -> Mapping[str, Path]:
    """Found or built before this room was entered."""
    return build.find([*build.PLANE, *build.NODE])


@pytest.fixture(scope="session")
def node(tools: Mapping[str, Path]) -> Iterator[Node]:
    room = this_room()
    assert room is not None
    started = start_node(room, tools, machine())
    yield started
    started.stop()
