"""`tessera snapshot`: the objects that decide, in one file."""

from __future__ import annotations

import secrets
from pathlib import Path

import click

from tessera.cli.sources import CONTEXT, NoAnswer, Source, answer, examples, open_state, source_options


@click.command(
    "snapshot",
    context_settings=CONTEXT,
    epilog=examples(
        [
            ("tessera snapshot -o cluster.json", "then: tessera explain POD --snapshot cluster.json"),
            ("tessera snapshot -o cluster.json --hash-names", "for somebody who must not learn your names"),
            ("tessera snapshot --snapshot a.json -o b.json --hash-names", "hash the names of a file that you have"),
        ],
        "  0  written\n  2  not written: no access, no such folder, wrong flags",
    ),
)
@click.option("-o", "--output", "file", default="-", metavar="FILE", help="Where to write. Default: standard output.")
@click.option("--hash-names", is_flag=True, help="Replace names of nodes, namespaces, pods and quotas, and uids.")
@click.option(
    "--hash-key", default="", metavar="TEXT", help="Same key, same hashes; keep it secret. Default: a random one."
)
@source_options
def command(source: Source, file: str, hash_names: bool, hash_key: str) -> None:
    """Write nodes, device pods, quotas and configuration to a file that every command reads with --snapshot.

    Only what decides placement is written: no images, commands, values of environment variables or volumes, and of
    pods without devices only what they ask of each node together. With
    --hash-names names are replaced, the same one everywhere and in the same order, so that the file still decides as
    the cluster does; models, card ids, resource names, labels and container names stay.
    """
    from tessera.inspect import anonymize as hashing
    from tessera.inspect.render.lines import counted
    from tessera.inspect.snapshots import encode_snapshot

    if hash_key and not hash_names:
        raise click.UsageError("--hash-key is the key of --hash-names")

    async def work() -> tuple[bytes, str]:
        state = await open_state(source)
        things = ((state.nodes, "node"), (state.pods, "device pod"), (state.quotas, "quota"))
        summary = ", ".join(counted(len(found), thing) for found, thing in things)
        if hash_names:
            state = hashing.hash_names(state, hash_key.encode() or secrets.token_bytes(32))
        return encode_snapshot(state, hashed=hash_names), summary

    data, summary = answer(work)
    if file == "-":
        click.echo(data, nl=False)
        return
    try:
        Path(file).write_bytes(data)
    except OSError as error:
        raise NoAnswer(f"cannot write {file}: {error.strerror or error}") from error
    click.echo(f"{file}: {summary}, {len(data)} bytes")
