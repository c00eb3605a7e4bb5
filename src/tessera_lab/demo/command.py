"""`tessera demo`: the whole product on this machine, without a cluster and without a GPU."""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from tessera.cli.sources import CONTEXT, CommandError, as_ascii, ascii_only, help_epilog

if TYPE_CHECKING:
    from tessera_lab.demo.runner import DemoPlan, DrawPicture
    from tessera_lab.demo.screens import Screen

READING_S = 4.0
"""seconds that a person has to read a step on a terminal"""


@click.command(
    "demo",
    context_settings=CONTEXT,
    epilog=help_epilog(
        [
            ("tessera demo", "the story, then a cluster to play with until Ctrl-C"),
            ("tessera demo --once", "the story only; good for pipes and checks"),
            ("tessera demo --no-story --port 6443", "an empty cluster for kubectl, on a port of your choice"),
            ("tessera demo --once --picture demo.svg", "a picture of the terminal"),
        ],
        "  0  the story ended, or Ctrl-C\n"
        "  1  a step of the story failed\n"
        "  2  it cannot start: the port is in use, a file cannot be written, wrong flags",
    ),
)
@click.option("--once", is_flag=True, help="Exit when the story ends.")
@click.option("--no-story", is_flag=True, help="Start the cluster without any pods.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, show_default="a free one", help="Port of the Kubernetes API."
)
@click.option(
    "--pause", type=click.FloatRange(min=0), default=None, metavar="SECONDS",
    show_default=f"{READING_S:g} on a terminal, else 0", help="Pause after each step of the story.",
)  # fmt: skip
@click.option("--picture", type=click.Path(dir_okay=False), metavar="FILE", help="Also save a picture as SVG.")
@click.option(
    "--log-file",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Write the services' logs here, as JSON lines.",
)
@click.option(
    "-o", "--output", type=click.Choice(["text", "json", "yaml"]), default="text", show_default=True,
    help="Text, or one document for the start and for each step.",
)  # fmt: skip
def command(
    once: bool,
    no_story: bool,
    port: int,
    pause: float | None,
    picture: str | None,
    log_file: str | None,
    output: str,
) -> None:
    """Run Tessera on this machine, with a simulated cluster of six GPU nodes and a short story.

    Webhook, extender, ledger and the NVIDIA nodes' Allocate are real. The apiserver, kube-scheduler's loop, kubelets,
    cards and the plugin of the Ascend node are simulated. You can use kubectl from another terminal. The demo needs no
    root, no GPU and no fixed port, and leaves nothing behind.
    """
    from tessera_lab.demo.runner import DemoPlan

    if picture and no_story:
        raise click.UsageError("--picture needs the story: leave out --no-story")
    live = output == "text" and sys.stdout.isatty() and os.environ.get("TERM") != "dumb" and not ascii_only()
    plan = DemoPlan(
        port=port,
        story=not no_story,
        once=once,
        pause_s=(READING_S if live else 0.0) if pause is None else pause,
        draw=_picture_writer(picture) if picture else None,
    )
    try:
        with open(log_file or os.devnull, "w", encoding="utf-8") as log, _screen(output, live=live) as screen:
            _play(plan, screen, log)
    except BrokenPipeError:
        # The reader closed the pipe. Discard the rest of the output, or Python complains at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        raise CommandError(str(error)) from error


def _play(plan: DemoPlan, screen: Screen, log: TextIO) -> None:
    import asyncio

    from tessera.services.common_settings import LogFormat, LogOptions
    from tessera.services.logs import configure_logs
    from tessera_lab.demo.cluster import CannotStart, DemoError
    from tessera_lab.demo.runner import run_demo

    try:
        with closing(configure_logs(LogOptions(format=LogFormat.JSON), log)):
            asyncio.run(run_demo(plan, screen))
    except CannotStart as error:
        raise CommandError(str(error)) from error
    except DemoError as error:
        raise _Failed(str(error)) from error
    except KeyboardInterrupt:
        # Pressed while the demo was starting or stopping.
        pass


class _Failed(click.ClickException):
    exit_code = 1


def _screen(output: str, *, live: bool) -> AbstractContextManager[Screen]:
    if live:
        from tessera_lab.demo.live import LiveScreen

        return LiveScreen()
    from tessera_lab.demo.screens import DocumentScreen, PlainScreen

    if output == "text" and ascii_only():
        return nullcontext(PlainScreen(lambda text: click.echo(as_ascii(text)), ascii_only=True))
    if output == "text":
        return nullcontext(PlainScreen(click.echo))
    return nullcontext(DocumentScreen(click.echo, output))


def _picture_writer(file: str) -> DrawPicture:
    from tessera_lab.demo.live import draw_picture

    def draw(told: Any, view: Any) -> None:
        Path(file).write_text(draw_picture(told, view), encoding="utf-8")

    return draw
