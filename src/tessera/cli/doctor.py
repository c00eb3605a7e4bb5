"""`tessera doctor`: what is wrong with an installation, why it matters and how to mend it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from tessera.cli.sources import (
    CONTEXT,
    USER_AGENT,
    NoAnswer,
    Source,
    answer,
    examples,
    finish,
    load,
    open_state,
    output_option,
    print_document,
    print_lines,
    source_options,
    with_client,
)

if TYPE_CHECKING:
    from tessera.inspect.checks.findings import Finding
    from tessera.inspect.offline_cluster import OfflineCluster
    from tessera.kube.client import KubeClient


@click.command(
    "doctor",
    context_settings=CONTEXT,
    epilog=examples(
        [
            ("tessera doctor", "look at everything that may be looked at"),
            ("tessera doctor --namespace team-a", "try the webhook in this namespace"),
            ("tessera doctor --snapshot cluster.json", "nodes and ledger only: that is all a file shows"),
            ("tessera doctor -o json | jq '.findings[] | select(.severity == \"broken\")'", "for scripts"),
        ],
        "  0  nothing is broken (there may be warnings)\n"
        "  1  something is broken\n"
        "  2  cannot check: no access, no rights to look at anything, wrong flags",
    ),
)
@click.option(
    "-n", "--namespace", default="default", show_default=True, help="Where the webhook is tried, as a dry run."
)
@output_option()
@source_options
def command(source: Source, namespace: str, output: str) -> None:
    """Check an installation: webhook, certificates, rights, kube-scheduler, plugins and ledger.

    Nothing is changed; the webhook is tried with a pod that the apiserver does not keep. What you have no right to see
    is listed as not checked.
    """

    async def work() -> bool:
        from tessera.inspect.checks.findings import unseen
        from tessera.inspect.diagnosis import diagnose_objects, is_broken, saw_nothing
        from tessera.inspect.offline_cluster import OfflineCluster
        from tessera.inspect.render.diagnosis import diagnosed
        from tessera.inspect.render.explanation import made_from

        if source.is_live:
            world, findings = await with_client(source, lambda client, name: _live(source, client, name, namespace))
        else:
            world = OfflineCluster(await open_state(source))
            findings = diagnose_objects(world)
            findings.append(unseen("cluster", "webhook, certificates, rights and kube-scheduler are not in a snapshot"))
        if output == "text":
            print_lines(diagnosed(findings))
            print_lines(made_from(world.state))
        else:
            print_document("Diagnosis", world.state, {"findings": findings}, output)
        if saw_nothing(findings):
            raise NoAnswer("nothing could be checked: your rights do not reach so far")
        return not is_broken(findings)

    finish(answer(work))


async def _live(source: Source, client: KubeClient, name: str, namespace: str) -> tuple[OfflineCluster, list[Finding]]:
    from tessera.inspect.collector import collect_with
    from tessera.inspect.diagnosis import diagnose
    from tessera.inspect.dry_run import Trial
    from tessera.inspect.installation import find_installation
    from tessera.inspect.offline_cluster import OfflineCluster
    from tessera.inspect.state import NotAllowed, State

    installation = await find_installation(client)
    try:
        state = await collect_with(client, installation, source=name, now=time.time, override=source.override)
    except NotAllowed as error:
        text = str(error).splitlines()[0]
        state = State(name, time.time(), setup=source.override(installation.setup), unseen=(text, *installation.unseen))
    world = OfflineCluster(state)
    async with Trial(load(source), timeout=source.request_timeout, user_agent=USER_AGENT) as trial:
        return world, await diagnose(client, trial, installation, world, namespace=namespace)
