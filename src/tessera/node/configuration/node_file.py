"""config.json of the node: what holds on this node alone, and what to do while the file is broken.

A broken file must neither stop an agent whose cards are in use nor silently change how they are shared. So the last
good text is kept in the state folder and stays in force; a node that never had one falls back to the other sources.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tessera.host.atomic_file import replace_file
from tessera.services.settings_table import ReadFile
from tessera.wire.config_file import ConfigError
from tessera.wire.node_config import NodeOverride, load_node_config, override_for

LAST_GOOD = "node-config.json"
"""in the state folder"""
NO_ENTRIES = "{}"
"""stands for a missing file"""


@dataclass(frozen=True, slots=True)
class NodeFile:
    """What was found."""

    override: NodeOverride
    good: str | None
    """text of the file where it is good; None where it is broken"""
    faults: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def read_node_file(*, file: str, named: bool, node: str, last_good: Path, read_file: ReadFile) -> NodeFile:
    """`named`: a flag names this file, so it should be there."""
    try:
        text = read_file(file)
        return NodeFile(override_for(load_node_config(text, file=file), node), text)
    except FileNotFoundError:
        missing = (f"--node-config-file: {file} does not exist: the node has no settings of its own",)
        return NodeFile(NodeOverride(name=node), NO_ENTRIES, warnings=missing if named else ())
    except OSError as error:
        problem = f"cannot read {file}: {error.strerror or error}"
    except UnicodeError:
        problem = f"cannot read {file}: it is not UTF-8 text"
    except ConfigError as error:
        problem = str(error)
    return _read_last_good(problem, node=node, last_good=last_good, read_file=read_file)


def save_last_good(text: str, folder: Path) -> None:
    """Remember a good text. Blocks; raises OSError."""
    replace_file(folder / LAST_GOOD, text.encode(), durable=True)


def _read_last_good(problem: str, *, node: str, last_good: Path, read_file: ReadFile) -> NodeFile:
    try:
        override = override_for(load_node_config(read_file(str(last_good)), file=str(last_good)), node)
    except (OSError, UnicodeError, ConfigError):
        faults = (problem, "the node configuration is broken and no earlier one is known: the node has no own settings")
        return NodeFile(NodeOverride(name=node), None, faults)
    return NodeFile(override, None, (problem, "the node configuration is broken: the last good one stays in force"))
