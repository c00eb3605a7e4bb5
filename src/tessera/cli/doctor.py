"""`tessera doctor`: what is wrong with an installation, why it matters and how to fix it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from tessera.cli import sources
from tessera.cli.sources import ClusterSource

if TYPE_CHECKING:
    from tessera.inspect.checks import Finding
    from tessera.inspect.offline_cluster import OfflineCluster
    from tessera.kube.client import KubeClient


@sources.cluster_command(
    "doctor",
    examples=[
        ("tessera doctor", "check everything that you may read"),
        ("tessera doctor --namespace team-a", "test the webhook in this namespace"),
        ("tessera doctor --snapshot cluster.json", "nodes, ledger and quotas only; a file holds no more"),
        ("tessera doctor -o json | jq '.findings[] | select(.severity == \"broken\")'", "for scripts"),
    ],
    codes="  0  nothing is broken (there may be warnings)\n"
    "  1  something is broken\n"
    "  2  nothing could be checked: no access, no permissions, wrong flags",
)
@click.option(
    "-n", "--namespace", default="default", show_default=True, help="Where to test the webhook, as a dry run."
)
def command(source: ClusterSource, namespace: str, output: str) -> None:
    """Check an installation: workloads, webhook, permissions, kube-scheduler, plugins, ledger and quotas.

    Nothing is changed: the webhook is tested with a dry run, which the apiserver does not store. What you may not read
    is listed as not checked.
    """

    async def work() -> bool:
        from tessera.inspect.diagnosis import CLUSTER, diagnose_objects, diagnosis_lines, is_broken, saw_nothing
        from tessera.inspect.offline_cluster import OfflineCluster

        if source.is_live:
            async with sources.open_cluster(source) as (client, name):
                cluster, findings = await _live(source, client, name, namespace)
        else:
            cluster = OfflineCluster(await sources.read_state(source))
            findings = diagnose_objects(cluster)
            findings.append(
                CLUSTER.unseen("workloads, webhook, certificates, permissions and kube-scheduler are not in a snapshot")
            )
        lines = diagnosis_lines(findings)
        sources.print_answer("Diagnosis", cluster.state, {"findings": findings}, output=output, lines=lines)
        if saw_nothing(findings):
            raise sources.CommandError("nothing could be checked: you lack the permissions")
        return not is_broken(findings)

    sources.exit_with(sources.run_async(work))


async def _live(
    source: ClusterSource, client: KubeClient, name: str, namespace: str
) -> tuple[OfflineCluster, list[Finding]]:
    from tessera.inspect.collector import collect
    from tessera.inspect.diagnosis import diagnose
    from tessera.inspect.installation import find_installation
    from tessera.inspect.offline_cluster import OfflineCluster
    from tessera.inspect.state import ClusterState, ListForbidden

    installation = await find_installation(client)
    try:
        state = await collect(client, source=name, now=time.time, installation=installation, override=source.override)
    except ListForbidden as error:
        text = str(error).splitlines()[0]
        state = ClusterState(
            name, time.time(), setup=source.override(installation.setup), unseen=(text, *installation.unseen)
        )
    cluster = OfflineCluster(state)
    return cluster, await diagnose(client, installation, cluster, namespace=namespace)
