"""`tessera dashboard`: the page of a cluster, a snapshot or a journal, served on this machine."""

from __future__ import annotations

import click

from tessera.cli import sources
from tessera.cli.sources import FILE, ClusterSource


@sources.cluster_command(
    "dashboard",
    forms=(),
    examples=[
        ("tessera dashboard", "serve the page of the cluster, and print its address"),
        ("tessera dashboard --open", "and open it in a browser"),
        ("tessera dashboard --snapshot FILE", "the cluster as a snapshot has it"),
    ],
    codes="  0  ended by Ctrl-C\n  2  no answer: no access, unreadable file, wrong flags",
)
@click.option("--port", type=click.IntRange(0, 65535), default=0, show_default="a free one", help="Port on 127.0.0.1.")
@click.option("--open", "opens", is_flag=True, help="Open the page in a browser.")
@click.option("--cluster-file", type=FILE, metavar="FILE", help="Read a description of a cluster, not a cluster.")
def command(source: ClusterSource, port: int, opens: bool) -> None:
    """Show every card of a cluster and its slices, the pods that wait, and what would fit, in a browser.

    The page is served on this machine alone, to those who know the token in its address, and reads the cluster with
    the rights of your kubeconfig. It changes nothing. It ends with Ctrl-C.
    """
    from tessera.inspect.dashboard.local import serve_page
    from tessera.inspect.dashboard.source import FixedSource
    from tessera.inspect.offline_cluster import OfflineCluster

    async def work() -> None:
        state = await sources.read_state(source, namespace=sources.namespace_of(source, ""))

        def on_serving(address: str) -> None:
            click.echo(f"The page is at {address}")
            click.echo("It ends with Ctrl-C.")
            if opens:
                click.launch(address)

        await serve_page(FixedSource(OfflineCluster(state)), port=port, on_serving=on_serving)

    sources.run_async(work)
