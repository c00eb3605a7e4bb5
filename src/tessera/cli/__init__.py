"""The command `tessera`, and its part for people as the kubectl plugin `kubectl tessera`.

One file per command, in this package; `COMMANDS` lists them. A command's module is imported only when that command
runs or prints its own help, so that `tessera --help` stays quick however much the services import. The commands of
the lab live in `tessera_lab`, which the wheel and the image leave out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import click

from tessera import __version__

PROGRAM = "tessera"
EXAMPLE = re.compile(rf"^( *){PROGRAM} ", re.MULTILINE)
"""the beginning of an example in an epilog"""


class LazyCommand(NamedTuple):
    """Where a command lives and what the list of commands says about it."""

    target: str
    """`package.module:attribute`"""
    summary: str
    needs: str = ""
    """a package that the command needs and that an installation may leave out"""

    @property
    def is_installed(self) -> bool:
        return not self.needs or find_spec(self.needs) is not None


class NamedEpilog(click.Command):
    """A command whose examples name the program as it was called: `tessera`, or `kubectl tessera`."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        program = ctx.find_root().info_name or ""
        original = self.epilog
        if original and program.endswith(f" {PROGRAM}"):
            self.epilog = EXAMPLE.sub(rf"\1{program} ", original)
        try:
            super().format_epilog(ctx, formatter)
        finally:
            self.epilog = original


class LazyGroup(NamedEpilog, click.Group):
    """A group of commands that are loaded on first use."""

    def __init__(self, *args: Any, lazy: Mapping[str, LazyCommand], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self._installed())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        found = self.lazy.get(cmd_name)
        if found is None:
            return None
        if not found.is_installed:
            raise click.UsageError(
                f"'{cmd_name}' is not part of this installation. It comes with the sources of Tessera:"
                " clone the repository, run `pip install --editable .` there and try again.",
                ctx,
            )
        module, _, attribute = found.target.partition(":")
        command = getattr(import_module(module), attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{found.target} is not a command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """As click does it, but from the table instead of the loaded commands."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.summary) for name, command in sorted(self._installed().items())])

    def _installed(self) -> dict[str, LazyCommand]:
        return {name: command for name, command in self.lazy.items() if command.is_installed}


COMMANDS: dict[str, LazyCommand] = {
    "cordon": LazyCommand("tessera.cli.cordon:command", "Close cards to new pods."),
    "dashboard": LazyCommand("tessera.cli.dashboard:command", "Show a cluster's cards and waiting pods in a browser."),
    "demo": LazyCommand(
        "tessera_lab.demo.command:command", "Try Tessera on this machine: no cluster, no GPU.", needs="tessera_lab"
    ),
    "defrag": LazyCommand("tessera.cli.defrag:command", "Move pods so that whole cards, or given pods, fit."),
    "device-plugin": LazyCommand("tessera.cli.device_plugin:command", "Serve the GPUs of one node: the node agent."),
    "doctor": LazyCommand("tessera.cli.doctor:command", "Check an installation, and say how to fix what is broken."),
    "drain": LazyCommand("tessera.cli.drain:command", "Cordon cards, and evict the pods that hold slices of them."),
    "explain": LazyCommand("tessera.cli.explain:command", "Say why a pod is pending, or why it is where it is."),
    "journal": LazyCommand("tessera.cli.journal:command", "Show what the scheduler decided, and when."),
    "monitor": LazyCommand("tessera.cli.monitor:command", "Export how containers use the cards of one node."),
    "mps-daemons": LazyCommand(
        "tessera.cli.device_plugin:mps_daemons", "Start MPS daemons that outlive the node agent."
    ),
    "replay": LazyCommand("tessera.cli.replay:command", "Make the decisions of a journal again, and compare."),
    "scheduler": LazyCommand("tessera.cli.scheduler:command", "Place device pods: webhook, extender, registration."),
    "simulate": LazyCommand("tessera.cli.simulate:command", "Ask what would happen, without changing anything."),
    "snapshot": LazyCommand("tessera.cli.snapshot:command", "Save everything that decides placement to a file."),
    "top": LazyCommand("tessera.cli.top:command", "Show cards, their slices and the pods that hold them."),
    "uncordon": LazyCommand("tessera.cli.cordon:uncordon", "Open cordoned cards to new pods again."),
}
"""by name; only commands that work are listed"""

PLUGIN = (
    "cordon", "dashboard", "defrag", "doctor", "drain", "explain", "journal", "replay", "simulate", "snapshot", "top",
    "uncordon",
)  # fmt: skip
"""commands that ask a cluster, or a file from one: all that `kubectl tessera` has"""

CONTEXT = {"help_option_names": ["-h", "--help"]}


@click.group(
    cls=LazyGroup,
    lazy=COMMANDS,
    context_settings=CONTEXT,
    epilog="""\b
    Examples:
      tessera --version      the version of this installation
      python -m tessera      the same command, where `tessera` is not on the PATH
    """,
)
@click.version_option(__version__, prog_name="tessera", message="%(prog)s %(version)s")
def main() -> None:
    """Share GPUs and other accelerators between Kubernetes pods."""


@click.group(
    cls=LazyGroup,
    lazy={name: COMMANDS[name] for name in PLUGIN},
    context_settings=CONTEXT,
    epilog="""\b
    Examples:
      tessera explain POD      why it is pending, what comes closest, what would fit
      tessera top              every card, and the pods that hold it
    """,
)
@click.version_option(__version__, prog_name="tessera", message="%(prog)s %(version)s")
def plugin() -> None:
    """Ask a cluster about its GPUs and other accelerators, and the pods that share them."""


def run_plugin() -> None:
    """The program `kubectl-tessera`, which kubectl runs as `kubectl tessera`."""
    plugin(prog_name="kubectl tessera")
