"""`tessera snapshot`: everything that decides placement, in one file."""

from __future__ import annotations

import secrets
from pathlib import Path

import click

from tessera.cli.sources import ClusterSource, CommandError, cluster_command, print_lines, read_state, run_async


@cluster_command(
    "snapshot",
    forms=(),
    examples=[
        ("tessera snapshot -o cluster.json", "then: tessera explain POD --snapshot cluster.json"),
        ("tessera snapshot -o yaml", "as YAML on standard output; a file that ends with .yaml is YAML too"),
        ("tessera snapshot -o cluster.json --hash-names", "without the names of your nodes, namespaces and pods"),
        ("tessera snapshot --snapshot a.json -o b.json --hash-names", "replace the names in an existing file"),
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
def command(source: ClusterSource, file: str, hash_names: bool, hash_key: str) -> None:
    """Save nodes, device pods, quotas and configuration to a file that the other commands read with --snapshot.

    Only what decides placement is saved: no images, commands, volumes or values of environment variables. Pods without
    devices are reduced to the sum of their cpu and memory requests per node. --hash-names replaces names consistently
    and keeps their order, so that the file gives the same decisions; models, card ids, resource names, labels and
    container names stay.
    """
    from tessera.inspect.anonymize import anonymize
    from tessera.inspect.render.lines import StyledLine, count_of
    from tessera.inspect.snapshots import encode_snapshot

    if hash_key and not hash_names:
        raise click.UsageError("--hash-key needs --hash-names")
    if file in ("text", "wide", "table"):
        raise click.UsageError(f"a snapshot has no form {file}: write -o json, -o yaml or a file (-o ./{file})")
    form = "yaml" if file == "yaml" or file.endswith((".yaml", ".yml")) else "json"

    async def work() -> tuple[bytes, str]:
        state = await read_state(source)
        things = ((state.nodes, "node"), (state.pods, "device pod"), (state.quotas, "quota"))
        summary = ", ".join(count_of(len(found), thing) for found, thing in things)
        if hash_names:
            state = anonymize(state, hash_key.encode() or secrets.token_bytes(32))
        return encode_snapshot(state, hashed=hash_names, form=form), summary

    data, summary = run_async(work)
    if file in ("-", "json", "yaml"):
        click.echo(data, nl=False)
        return
    try:
        Path(file).write_bytes(data)
    except OSError as error:
        raise CommandError(f"cannot write {file}: {error.strerror or error}") from error
    print_lines([StyledLine(f"{file}: {summary}, {len(data)} bytes")])
