"""`tessera snapshot`: everything that decides placement, in one file."""

from __future__ import annotations

import secrets
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tessera.cli.journal_sources import JournalChoice, choose_journal, journal_options, open_journal
from tessera.cli.sources import ClusterSource, CommandError, cluster_command, print_lines, read_state, run_async

if TYPE_CHECKING:
    from tessera.inspect.state import ClusterState


@journal_options("journal-")
@cluster_command(
    "snapshot",
    forms=(),
    examples=[
        ("tessera snapshot -o cluster.json", "then: tessera explain POD --snapshot cluster.json"),
        ("tessera snapshot -o yaml", "as YAML on standard output; a file that ends with .yaml is YAML too"),
        ("tessera snapshot -o cluster.json --hash-names", "without the names of your nodes, namespaces and pods"),
        ("tessera snapshot --snapshot a.json -o b.json --hash-names", "replace the names in an existing file"),
        ("tessera snapshot --with-journal --hash-names -o bundle.tgz", "for a bug report: what was decided, and why"),
    ],
    codes="  0  written\n  2  not written: no access, no such folder, wrong flags",
)
@click.option(
    "-o", "--output", "file", default="-", metavar="FILE|json|yaml", help="File to write. Default: standard output."
)
@click.option("--hash-names", is_flag=True, help="Replace names of nodes, namespaces, pods and quotas, and uids.")
@click.option(
    "--hash-key",
    default="",
    metavar="TEXT",
    help="The same key gives the same names; keep it secret. Default: a random key.",
)
@click.option(
    "--with-journal",
    is_flag=True,
    help="Pack the scheduler's decision journal as well, into an archive that all commands read as a snapshot.",
)
def command(
    source: ClusterSource,
    journal_files: tuple[str, ...],
    journal_url: str,
    file: str,
    hash_names: bool,
    hash_key: str,
    with_journal: bool,
) -> None:
    """Save nodes, device pods, quotas and configuration to a file that the other commands read with --snapshot.

    Only what decides placement is saved: no images, commands, volumes or values of environment variables. Pods without
    devices are reduced to the sum of their cpu and memory requests per node. --hash-names replaces names consistently
    and keeps their order, so that the file gives the same decisions; models, card ids, resource names, labels and
    container names stay. With --with-journal both parts get the same names, and `tessera replay` reads the result.
    """
    from tessera.inspect.anonymize import anonymize
    from tessera.inspect.render.lines import StyledLine
    from tessera.inspect.snapshots import encode_snapshot

    if hash_key and not hash_names:
        raise click.UsageError("--hash-key needs --hash-names")
    if file in ("text", "wide", "table"):
        raise click.UsageError(f"a snapshot has no form {file}: write -o json, -o yaml or a file (-o ./{file})")
    if (journal_files or journal_url) and not with_journal:
        raise click.UsageError("--journal-file and --journal-url need --with-journal")
    key = (hash_key.encode() or secrets.token_bytes(32)) if hash_names else None
    if with_journal:
        if file in ("-", "json", "yaml"):
            raise click.UsageError("--with-journal writes an archive: name it with -o FILE.tgz")
        _write_bundle(source, choose_journal(source, journal_files, journal_url), file, key)
        return
    form = "yaml" if file == "yaml" or file.endswith((".yaml", ".yml")) else "json"

    async def work() -> tuple[bytes, str]:
        state = await read_state(source)
        shown = state if key is None else anonymize(state, key)
        return encode_snapshot(shown, hashed=hash_names, form=form), _summary(state)

    data, summary = run_async(work)
    if file in ("-", "json", "yaml"):
        click.echo(data, nl=False)
        return
    try:
        Path(file).write_bytes(data)
    except OSError as error:
        raise CommandError(f"cannot write {file}: {error.strerror or error}") from error
    print_lines([StyledLine(f"{file}: {summary}, {len(data)} bytes")])


def _write_bundle(source: ClusterSource, chosen: JournalChoice, file: str, key: bytes | None) -> None:
    from tessera.inspect.render.lines import Style, StyledLine, count_of
    from tessera.inspect.snapshots import write_bundle

    async def work() -> list[StyledLine]:
        state = await read_state(source)
        async with open_journal(source, chosen) as journal, aclosing(journal.records()) as records:
            count = await write_bundle(file, state, records, key=key)
        size = Path(file).stat().st_size
        text = f"{file}: {_summary(state)}, {count_of(count, 'journal record')}, {size} bytes"
        return [StyledLine(text), *(StyledLine(f"note: {note}", Style.WARN) for note in journal.notes)]

    try:
        lines = run_async(work)
    except OSError as error:
        raise CommandError(f"cannot write {file}: {error.strerror or error}") from error
    print_lines(lines)


def _summary(state: ClusterState) -> str:
    from tessera.inspect.render.lines import count_of

    things = ((state.nodes, "node"), (state.pods, "device pod"), (state.quotas, "quota"))
    return ", ".join(count_of(len(found), thing) for found, thing in things)
