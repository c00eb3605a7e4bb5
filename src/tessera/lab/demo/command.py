"""`tessera demo`: the whole product on this machine, without a cluster and without a GPU."""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from tessera.cli.sources import CONTEXT, CommandError, ascii_only, help_epilog

if TYPE_CHECKING:
    from tessera.lab.demo.runner import Draw, Plan
    from tessera.lab.demo.screens import Screen

READING_S = 4.0
"""that a person on a terminal has for a step"""


@click.command(
    "demo",
    context_settings=CONTEXT,
    epilog=help_epilog(
        [
            ("tessera demo", "the story, and then a cluster to play with until Ctrl-C"),
            ("tessera demo --once", "the story alone; good in pipes and checks"),
            ("tessera demo --no-story --port 6443", "an empty cluster for kubectl, on a port of your choice"),
            ("tessera demo --once --picture demo.svg", "what the terminal shows, as a picture"),
        ],
        "  0  the story is over, or Ctrl-C\n"
        "  1  a step of the story did not happen\n"
        "  2  it cannot start: the port is taken, a file cannot be written, wrong flags",
    ),
)
@click.option("--once", is_flag=True, help="End when the story is over.")
@click.option("--no-story", is_flag=True, help="Start the cluster and do nothing to it.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, show_default="a free one", help="Where the API is served."
)
@click.option(
    "--pause", type=click.FloatRange(min=0), default=None, metavar="SECONDS",
    show_default=f"{READING_S:g} on a terminal, else 0", help="After each step of the story.",
)  # fmt: skip
@click.option("--picture", type=click.Path(dir_okay=False), metavar="FILE", help="Also draw the story as an SVG.")
@click.option(
    "--log-file", type=click.Path(dir_okay=False), metavar="FILE", help="Keep the services' logs, JSON lines."
)
@click.option(
    "-o", "--output", type=click.Choice(["text", "json", "yaml"]), default="text", show_default=True,
    help="Text for people, or a document for the start and for each step.",
)  # fmt: skip
def command(
    once: bool, no_story: bool, port: int, pause: float | None, picture: str | None, log_file: str | None, output: str
) -> None:
    """Run Tessera with a control plane, six simulated GPU nodes and a story, all on this machine.

    Webhook, extender, ledger and the NVIDIA nodes' Allocate are the real ones; the apiserver, kube-scheduler's loop,
    kubelets, cards and the plugin of the Ascend node are simulated. kubectl works against it from another terminal.
    Needs no root, no GPU and no fixed port; nothing is left behind.
    """
    from tessera.lab.demo.runner import Plan

    if picture and no_story:
        raise click.UsageError("--picture shows the story: leave out --no-story")
    live = output == "text" and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    plan = Plan(
        port=port,
        story=not no_story,
        once=once,
        pause_s=(READING_S if live else 0.0) if pause is None else pause,
        draw=_drawing(picture) if picture else None,
    )
    try:
        with open(log_file or os.devnull, "w", encoding="utf-8") as log, _screen(output, live=live) as screen:
            _play(plan, screen, log)
    except BrokenPipeError:
        # Whoever read has read enough; what is left of the output goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        raise CommandError(str(error)) from error


def _play(plan: Plan, screen: Screen, log: TextIO) -> None:
    import asyncio

    from tessera.lab.demo.cluster import CannotStart, DemoError
    from tessera.lab.demo.runner import run
    from tessera.services.logs import LogFormat, LogOptions, configure_logs

    configure_logs(LogOptions(format=LogFormat.JSON), log)
    try:
        asyncio.run(run(plan, screen))
    except CannotStart as error:
        raise CommandError(str(error)) from error
    except DemoError as error:
        raise _Failed(str(error)) from error
    except KeyboardInterrupt:
        # While it was starting, or stopping: nothing is left to tell.
        pass


class _Failed(click.ClickException):
    exit_code = 1


def _screen(output: str, *, live: bool) -> AbstractContextManager[Screen]:
    if live:
        from tessera.lab.demo.live import LiveScreen

        return LiveScreen()
    from tessera.lab.demo.screens import DocumentScreen, PlainScreen

    if output == "text":
        return nullcontext(PlainScreen(click.echo, ascii_only=ascii_only()))
    return nullcontext(DocumentScreen(click.echo, output))


def _drawing(file: str) -> Draw:
    from tessera.lab.demo.live import picture

    def draw(told: Any, view: Any) -> None:
        Path(file).write_text(picture(told, view), encoding="utf-8")

    return draw
