"""The command `tessera`.

One file a command, in this package; `COMMANDS` lists them. A command's module is imported only when that command
runs or shows its own help, so that `tessera --help` stays quick however much the services import.
"""

from __future__ import annotations

import click

from tessera import __version__
from tessera.cli.lazy import LazyCommand, LazyGroup

COMMANDS: dict[str, LazyCommand] = {
    "demo": LazyCommand("tessera.cli.demo:command", "Try everything on this machine: no cluster, no GPU."),
    "device-plugin": LazyCommand("tessera.cli.device_plugin:command", "Serve the GPUs of one node: the node agent."),
    "doctor": LazyCommand("tessera.cli.doctor:command", "Check an installation, and say how to mend what is broken."),
    "explain": LazyCommand("tessera.cli.explain:command", "Say why a pod is pending, or why it is where it is."),
    "monitor": LazyCommand("tessera.cli.monitor:command", "Show how containers use the cards of one node."),
    "scheduler": LazyCommand("tessera.cli.scheduler:command", "Place device pods: webhook, extender, registration."),
    "simulate": LazyCommand("tessera.cli.simulate:command", "Ask what would happen, without doing it."),
    "snapshot": LazyCommand("tessera.cli.snapshot:command", "Write the objects that decide to a file."),
    "top": LazyCommand("tessera.cli.top:command", "Show cards, their slices and who holds them."),
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
