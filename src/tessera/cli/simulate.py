"""`tessera simulate`: what would happen, without changing anything. Each question is a command of its own."""

from __future__ import annotations

import click

from tessera.cli.lazy import LazyCommand, LazyGroup

COMMANDS: dict[str, LazyCommand] = {
    "pod": LazyCommand("tessera.cli.simulate_pod:command", "Where pods would go, how many fit, what stops the next."),
    "trace": LazyCommand(
        "tessera_lab.simulator.command:command", "Compare policies on a trace of pods.", needs="tessera_lab"
    ),
}
"""by name"""


@click.group("simulate", cls=LazyGroup, lazy=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Ask what would happen, without changing anything."""
