"""`tessera replay`: makes the decisions of a journal again."""

from __future__ import annotations

import sys
import time
from contextlib import aclosing
from typing import TYPE_CHECKING

import click

from tessera import __version__
from tessera.cli import NamedEpilog, sources
from tessera.cli.sources import FILE, FORMS

if TYPE_CHECKING:
    from tessera.inspect.journal_source import FileSource
    from tessera.inspect.replay import Difference, JournalReplay

PROGRESS_S = 0.2
"""between two updates of the progress on a terminal"""


@click.command(
    "replay",
    cls=NamedEpilog,
    context_settings=sources.CONTEXT,
    epilog=sources.help_epilog(
        [
            ("tessera replay journal.jsonl", "the journal of --journal-file, or of tessera journal -o json"),
            ("tessera replay journal.jsonl.2 journal.jsonl.1 journal.jsonl", "rotated files, the oldest first"),
            ("tessera replay bundle.tgz -o json", "a bundle of tessera snapshot --with-journal"),
        ],
        "  0  every decision is the same\n"
        "  1  a decision comes out differently\n"
        "  2  no answer: the journal cannot be read, or parts of it are missing",
    ),
)
@click.argument("files", nargs=-1, required=True, type=FILE, metavar="FILE...")
@click.option(
    "-o", "--output", type=click.Choice(FORMS), default="text", show_default=True, help="How to print the answer."
)
def command(files: tuple[str, ...], output: str) -> None:
    """Build the ledger from a journal's state and changes, and make every decision again with the code of this version.

    A decision depends on the ledger, the request and the candidates alone, so it must come out the same: the same node,
    cards and score, or the same reasons. The first one that does not is shown with both sides.
    """
    from tessera.inspect.journal_source import FileSource
    from tessera.inspect.replay import JournalReplay

    replay = JournalReplay()

    async def work() -> tuple[Difference | None, FileSource]:
        source = FileSource(*files, strict=True)
        return await _check(replay, source), source

    difference, source = sources.run_async(work)
    _print(replay, source, difference, output)
    sources.exit_with(difference is None)


async def _check(replay: JournalReplay, source: FileSource) -> Difference | None:
    from tessera.inspect.replay import BrokenJournal
    from tessera.inspect.state import InspectionError

    progress = _Progress()
    async with aclosing(source.records()) as records:
        try:
            async for record in records:
                difference = replay.check(record)
                if difference is not None:
                    return difference
                progress.show(source.progress, replay.counts.checked)
        except BrokenJournal as error:
            raise InspectionError(
                f"{source.name}: {error}.\n{replay.counts.checked} decisions before are equal"
            ) from error
        finally:
            progress.clear()
    return None


class _Progress:
    """One line on standard error, if that is a terminal."""

    def __init__(self) -> None:
        self._shown_at = time.monotonic()
        self._is_shown = False

    def show(self, share: float, decisions: int) -> None:
        now = time.monotonic()
        if now - self._shown_at < PROGRESS_S or not sys.stderr.isatty():
            return
        self._shown_at, self._is_shown = now, True
        click.echo(f"\r{share:4.0%}  {decisions} decisions are equal so far ", err=True, nl=False)

    def clear(self) -> None:
        if self._is_shown:
            click.echo("\r" + " " * 60 + "\r", err=True, nl=False)


def _print(replay: JournalReplay, source: FileSource, difference: Difference | None, output: str) -> None:
    from tessera.inspect.render.journal import replay_document, replay_lines

    if output == "text":
        sources.print_lines(replay_lines(replay.counts, difference, notes=source.notes, version=__version__))
    else:
        document = replay_document(replay.counts, difference, files=source.name.split(", "), notes=source.notes)
        sources.print_document("Replay", None, document, output)
