"""Where the commands find a decision journal: files, a bundle, an address, or the running scheduler of the cluster."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from tessera.cli import sources
from tessera.cli.sources import FILE, ClusterSource

if TYPE_CHECKING:
    from tessera.inspect.installation import FindAddress
    from tessera.inspect.journal_source import JournalSource
    from tessera.kube.client import KubeClient


@dataclass(frozen=True, slots=True)
class JournalChoice:
    """The journal that the command line names."""

    files: tuple[str, ...] = ()
    url: str = ""

    @property
    def is_given(self) -> bool:
        return bool(self.files or self.url)


def journal_options(prefix: str = "") -> Callable[[click.Command], click.Command]:
    """Adds the options of a `JournalChoice`: --file and --url, with a prefix in commands that have other files too."""
    options = [
        click.Option([f"--{prefix}file", "journal_files"], multiple=True, type=FILE, metavar="FILE",
            help="Read the journal from a file, or from a bundle of `tessera snapshot --with-journal`; repeat it for"
            " rotated files, the oldest first."),
        click.Option([f"--{prefix}url", "journal_url"], default="", metavar="URL",
            help="Read the journal from the extender's address of a scheduler, such as the end of a port-forward."),
    ]  # fmt: skip

    def add(command: click.Command) -> click.Command:
        command.params[:0] = options
        return command

    return add


def choose_journal(source: ClusterSource, files: tuple[str, ...], url: str) -> JournalChoice:
    """Without a file and a URL, the journal of the bundle that --snapshot names. Raises UsageError."""
    if files and url:
        raise click.UsageError("a file and a URL exclude each other: each names the journal to read")
    if url and not url.startswith(("http://", "https://")):
        raise click.UsageError(f"a URL begins with http:// or https://, unlike {url!r}")
    in_bundle = source.snapshot if not files and not url else None
    return JournalChoice((in_bundle,) if in_bundle else files, url)


@asynccontextmanager
async def open_journal(source: ClusterSource, chosen: JournalChoice) -> AsyncIterator[JournalSource]:
    """The journal; notes of one that is followed go to standard error at once."""
    from tessera.inspect.installation import behind_apiserver
    from tessera.inspect.journal_source import FileSource, SchedulerSource
    from tessera.inspect.state import InspectionError

    if chosen.files == (source.snapshot,) and not sources.is_bundle(chosen.files[0]):
        raise InspectionError(
            f"{source.snapshot} has no journal; make one with tessera snapshot --with-journal -o FILE"
        )
    if chosen.files:
        yield FileSource(*chosen.files)
    elif chosen.url:
        async with open_at_url(source, chosen.url) as (client, find):
            yield SchedulerSource(client, find, on_note=print_note)
    else:
        async with sources.open_cluster(source) as (client, _name):
            yield SchedulerSource(client, behind_apiserver(client), on_note=print_note)


@asynccontextmanager
async def open_at_url(source: ClusterSource, url: str) -> AsyncIterator[tuple[KubeClient, FindAddress]]:
    """A client of the scheduler at this address, and where it serves its journal."""
    from tessera.inspect.installation import at_url
    from tessera.kube.access import Access

    async with sources.open_cluster(source, Access(url)) as (client, _name):
        yield client, at_url(url)


def print_note(text: str) -> None:
    from tessera.inspect.render.lines import Style, StyledLine

    sources.print_lines([StyledLine(f"note: {text}", Style.WARN)], err=True)


def parse_moment(_ctx: click.Context, _param: click.Parameter, text: str | None) -> float | None:
    """A moment on the command line: how long ago, or a time as the table shows it."""
    from tessera.services.value_types import parse_duration

    if text is None:
        return None
    try:
        return time.time() - parse_duration(text)
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
        # The journal's times are UTC.
        return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError) as error:
        raise click.BadParameter(
            f"{text!r} is neither a duration such as 90s, 5m or 1h30m nor a time such as 2026-01-31T12:00:00Z"
        ) from error
