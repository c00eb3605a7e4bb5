"""The command `tessera`.

One file a command, in this package; `COMMANDS` lists them. A command's module is imported only when that command
runs or shows its own help, so that `tessera --help` stays quick however much the services import.
"""

from __future__ import annotations

import click

from tessera import __version__
from tessera.cli.lazy import LazyCommand, LazyGroup

COMMANDS: dict[str, LazyCommand] = {
    "device-plugin": LazyCommand("tessera.cli.device_plugin:command", "Serve the GPUs of one node: the node agent."),
    "scheduler": LazyCommand("tessera.cli.scheduler:command", "Place device pods: webhook, extender, registration."),
}
"""by name; only commands that work are listed"""


@click.group(
    cls=LazyGroup,
    lazy=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="""\b
    Examples:
      tessera --version      the version of this installation
      python -m tessera      the same command, without installing it on the PATH
    """,
)
@click.version_option(__version__, prog_name="tessera", message="%(prog)s %(version)s")
def main() -> None:
    """Share GPUs and other accelerators between Kubernetes pods."""
