"""`tessera simulate`: what would happen, without doing it. Every question is a command of its own, in its own file."""

from __future__ import annotations

import click

from tessera.cli.lazy import LazyCommand, LazyGroup

COMMANDS: dict[str, LazyCommand] = {
    "pod": LazyCommand("tessera.cli.simulate_pod:command", "Where pods would go, how many fit, what stops the next."),
    "trace": LazyCommand("tessera.cli.simulate_trace:command", "Compare policies on a trace of pods."),
}
"""by name"""


@click.group("simulate", cls=LazyGroup, lazy=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Ask what would happen, without doing it."""
