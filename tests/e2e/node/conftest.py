"""The node that the tests of this folder share. They run only in a node container: `python -m tests.e2e.node`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.e2e.node.cluster import Node, start_node
from tests.e2e.node.container import current_container
from tests.e2e.node.machine import machine
from tools.kubernetes import build

collect_ignore_glob = [] if current_container() else ["test_*.py"]


@pytest.fixture(scope="session")
def tools() -> Mapping[str, Path]:
    """Found or built before this container was started."""
    return build.find([*build.PLANE, *build.NODE, "helm"])


@pytest.fixture(scope="session")
def node(tools: Mapping[str, Path]) -> Iterator[Node]:
    node_container = current_container()
    assert node_container is not None
    started = start_node(node_container, tools, machine())
    yield started
    started.stop()
