"""A folder for plugin sockets with a short path: a unix socket's path has at most 107 bytes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tessera.node.settings import AgentSettings, Paths
from tessera.wire.node_config import NodeSettings

DEFAULTS = NodeSettings()


@contextmanager
def plugins_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="plugins-") as folder:
        yield Path(folder)


def settings_in(folder: Path, node: NodeSettings = DEFAULTS, *, resource: str = "nvidia.com/gpu") -> AgentSettings:
    """An agent whose kubelet is in this folder."""
    paths = Paths(plugins=folder, kubelet_socket=folder / "kubelet.sock", pod_resources=folder / "pod-resources.sock")
    return AgentSettings(node_name="node-a", node=node, resource=resource, paths=paths)
