"""`tessera dashboard`: the page of a cluster, a snapshot or a journal, served on this machine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import click

from tessera.cli import sources
from tessera.cli.journal_sources import choose_journal, open_at_url, print_note
from tessera.cli.sources import FILE, ClusterSource

if TYPE_CHECKING:
    from tessera.inspect.dashboard.journal import PageJournal
    from tessera.inspect.dashboard.source import PageSource
    from tessera.kube.client import KubeClient


@sources.cluster_command(
    "dashboard",
    forms=(),
    examples=[
        ("tessera dashboard", "serve the page of the cluster, and print its address"),
        ("tessera dashboard --open --port 8088", "on a port of your choice, and open it in a browser"),
        (
            "tessera dashboard --snapshot bundle.tgz",
            "the cluster as a snapshot has it, and its journal if there is one",
        ),
        ("tessera dashboard --journal journal.jsonl", "the cluster at the end of a journal, and at any time before"),
    ],
    codes="  0  ended by Ctrl-C\n  2  no answer: no access, unreadable file, wrong flags",
)
@click.option("--port", type=click.IntRange(0, 65535), default=0, show_default="a free one", help="Port on 127.0.0.1.")
@click.option("--open", "opens", is_flag=True, help="Open the page in a browser.")
@click.option(
    "--journal", "journals", multiple=True, type=FILE, metavar="FILE",
    help="Show the cluster that a journal records, not a cluster; may be repeated, the oldest file first. With"
    " --snapshot: the past of the snapshot.",
)  # fmt: skip
@click.option(
    "--journal-url", default="", metavar="URL",
    help="Read the past of the cluster from the extender's address of its scheduler, as a port-forward gives it.",
)  # fmt: skip
@click.option("--cluster-file", type=FILE, metavar="FILE", help="Read a description of a cluster, not a cluster.")
def command(source: ClusterSource, port: int, opens: bool, journals: tuple[str, ...], journal_url: str) -> None:
    """Show every card of a cluster and its slices, the pods that wait, what would fit, and the past, in a browser.

    The page is served on this machine alone, to those who know the token in its address, and reads the cluster with
    the rights of your kubeconfig. It changes nothing. It ends with Ctrl-C.
    """
    if journals and (source.kubeconfig or source.context or source.cluster_file):
        raise click.UsageError("--journal replaces the cluster: leave out --kubeconfig, --context and --cluster-file")

    choose_journal(source, journals, journal_url)

    async def serve(page: PageSource, taken: float | None) -> None:
        import asyncio
        import time

        from tessera.inspect.dashboard.server import serve_page

        async with serve_page(page, port=port, now=time.time if taken is None else lambda: taken) as address:
            click.echo(f"The page is at {address}")
            click.echo("It ends with Ctrl-C.")
            if opens:
                click.launch(address)
            await asyncio.Event().wait()

    async def follow() -> None:
        from tessera.inspect.dashboard.live_source import follow_cluster

        home = sources.namespace_of(source, "")
        async with (
            sources.open_cluster(source) as (client, name),
            scheduler_journal(client) as journal,
            follow_cluster(client, name=name, namespace=home, override=source.override, journal=journal) as page,
        ):
            await serve(page, None)

    @asynccontextmanager
    async def scheduler_journal(client: KubeClient) -> AsyncIterator[PageJournal | None]:
        """The journal of the cluster's scheduler; None, and a note, if it cannot be read."""
        from tessera.inspect.dashboard.journal import FollowedJournal
        from tessera.inspect.installation import behind_apiserver
        from tessera.inspect.journal_source import SchedulerSource
        from tessera.inspect.state import InspectionError

        async with AsyncExitStack() as stack:
            reader, find = client, behind_apiserver(client)
            if journal_url:
                reader, find = await stack.enter_async_context(open_at_url(source, journal_url))
            journal = FollowedJournal(lambda: SchedulerSource(reader, find))
            try:
                await journal.timeline()
            except InspectionError as error:
                if journal_url:
                    raise
                print_note(f"the view Time is empty: {error}")
                yield None
            else:
                yield journal

    async def work() -> None:
        from tessera.inspect.dashboard.journal import RecordedJournal
        from tessera.inspect.dashboard.source import FixedSource, RecordedSource, read_records
        from tessera.inspect.offline_cluster import OfflineCluster

        # A bundle of `tessera snapshot --with-journal` has both.
        has_journal = not journals and source.snapshot is not None and sources.is_bundle(source.snapshot)
        files = (source.snapshot,) if source.snapshot is not None and has_journal else journals
        records, notes = await read_records(*files) if files else (None, ())
        for note in notes:
            print_note(note)
        if records is not None and source.is_live:
            await serve(RecordedSource(records, name=", ".join(journals)), records[-1].time)
        elif source.is_live:
            await follow()
        else:
            state = await sources.read_state(source)
            journal = RecordedJournal(records) if records is not None else None
            await serve(FixedSource(OfflineCluster(state), journal=journal), state.taken)

    try:
        sources.run_async(work)
    except click.exceptions.Exit:
        # Ctrl-C is how it ends.
        return
