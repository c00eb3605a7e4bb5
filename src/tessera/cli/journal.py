"""`tessera journal`: what the scheduler decided, and when."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING

import click

from tessera.cli import sources
from tessera.cli.journal_sources import choose_journal, journal_options, open_journal, parse_moment, print_note
from tessera.cli.sources import ClusterSource

if TYPE_CHECKING:
    from tessera.inspect.journal_filter import RecordFilter
    from tessera.wire.journal import Record


@journal_options()
@sources.cluster_command(
    "journal",
    forms=("text", "json"),
    decides=False,
    examples=[
        ("tessera journal", "what the scheduler decided, as far back as it remembers"),
        ("tessera journal --since 10m --pod team-a/trainer", "one pod in the last ten minutes"),
        ("tessera journal --node a100-1 --follow", "what happens on a node, as it happens"),
        ("tessera journal -o json >journal.jsonl", "all of it, for: tessera replay journal.jsonl"),
        ("tessera journal --file journal.jsonl.1 --file journal.jsonl", "from the files of --journal-file"),
        (
            "tessera journal --url http://127.0.0.1:8080",
            "after: kubectl -n tessera-system port-forward deploy/tessera-scheduler 8080",
        ),
    ],
    codes="  0  printed\n  2  no answer: no access, unreadable file, wrong flags",
)
@click.option("--pod", default="", metavar="[NAMESPACE/]POD", help="Only records about this pod.")
@click.option("-n", "--namespace", default="", help="Only records about pods and quotas of this namespace.")
@click.option(
    "--node", "nodes", multiple=True, metavar="NAME", help="Only records that name this node; may be repeated."
)
@click.option(
    "--since", callback=parse_moment, default=None, metavar="TIME", help="Only since then: 5m, or 2026-01-31T12:00:00Z."
)
@click.option("--follow", "-f", is_flag=True, help="Go on until interrupted, also when the scheduler restarts.")
@click.option(
    "--all", "everything", is_flag=True, help="Also each change of what pods hold, and the state at the beginning."
)
def command(
    source: ClusterSource,
    journal_files: tuple[str, ...],
    journal_url: str,
    pod: str,
    namespace: str,
    nodes: tuple[str, ...],
    since: float | None,
    follow: bool,
    everything: bool,
    output: str,
) -> None:
    """Show the decisions of the scheduler, oldest first: placements, refusals with their reasons, binds, denials,
    wake-ups, releases and changes of nodes.

    It is read from the running scheduler, with your kubeconfig, or from files. -o json prints the records themselves,
    one per line. Without --pod, --namespace and --node they are complete, and `tessera replay` reads them.
    """
    from tessera.inspect.journal_filter import RecordFilter

    chosen = choose_journal(source, journal_files, journal_url)
    home, _, name = pod.rpartition("/")
    if home and namespace and home != namespace:
        raise click.UsageError(f"--pod names namespace {home}, and --namespace {namespace}")
    if pod and not name:
        raise click.UsageError(f"--pod {pod} names no pod")
    wanted = RecordFilter(name, home or namespace, frozenset(nodes))

    async def work() -> None:
        from tessera.inspect.journal_filter import begin_at

        async with open_journal(source, chosen) as journal, aclosing(journal.records(follow=follow)) as records:
            if output == "json":
                await _print_json(records if since is None else begin_at(records, since), wanted)
            else:
                await _print_table(records, wanted, since=since or 0.0, everything=everything)
        if journal_files or source.snapshot:
            for note in journal.notes:
                print_note(note)

    sources.run_async(work)


async def _print_json(records: AsyncIterator[Record], wanted: RecordFilter) -> None:
    from tessera.services.terminal_json import escape_json
    from tessera.wire.journal import encode_record

    out = sys.stdout.buffer
    async for record in records:
        if wanted.selects(record):
            out.write(escape_json(encode_record(record).decode()).encode())
            out.flush()


async def _print_table(records: AsyncIterator[Record], wanted: RecordFilter, *, since: float, everything: bool) -> None:
    from tessera.inspect.journal_filter import EventFilter
    from tessera.inspect.render.journal import JournalTable
    from tessera.inspect.render.lines import Style, StyledLine

    table, events = JournalTable(width=sources.terminal_width()), EventFilter()
    shown = False
    async for record in records:
        is_event = events.selects(record)
        if wanted.selects(record) and (is_event or everything) and record.time >= since:
            shown = True
            sources.print_lines(table.lines(record))
    if not shown:
        sources.print_lines([StyledLine("nothing matches", Style.WARN)], err=True)
