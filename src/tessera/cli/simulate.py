"""`tessera simulate`: what would happen, without changing anything. Each question is a command of its own."""

from __future__ import annotations

import click

from tessera.cli import LazyCommand, LazyGroup, sources
from tessera.cli.sources import ClusterSource

COMMANDS: dict[str, LazyCommand] = {
    "pod": LazyCommand("tessera.cli.simulate:pod", "Where pods would go, how many fit, what stops the next."),
    "trace": LazyCommand(
        "tessera_lab.simulator.command:command", "Compare policies on a trace of pods.", needs="tessera_lab"
    ),
}
"""by name"""


@click.group("simulate", cls=LazyGroup, lazy=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Ask what would happen, without changing anything."""


DESCRIPTION = """
A cluster description:
  nodes:
    - name: a100              # with count: a100-1, a100-2
      count: 2
      cards:
        - {model: A100-SXM4-80GB, count: 8, linked: 4, numa: 2}
      labels: {zone: a}
    - name: small
      cards: [{model: my-card, memory: 16384, slots: 4, count: 2}]
  namespaces:
    - {name: team-a, limits: {nvidia.com/gpumem: 40000}}
Or nodes, pods and quotas as `kubectl get nodes,pods,quota -A -o yaml` prints them.
"""


@sources.cluster_command(
    "pod",
    examples=[
        ("tessera simulate pod -f pod.yaml", "where it would go now, and how many copies fit"),
        ("tessera simulate pod -f pod.yaml --count 20 --snapshot cluster.json", "20 copies on a snapshot"),
        ("tessera simulate pod -f pod.yaml --preempt", "which pods would be evicted for it"),
        ("tessera simulate pod -f claim.yaml", "a pod with a ResourceClaimTemplate beside it, or one of the cluster's"),
        ("tessera simulate pod -f jobset.yaml", "whether a gang fits as a whole"),
        ("tessera simulate pod -f pod.yaml --cluster nodes.yaml", "on a cluster that does not exist yet"),
    ],
    codes="  0  all requested copies fit\n"
    "  1  not all of them fit\n"
    "  2  no answer: no access, unreadable file, wrong flags",
    more=DESCRIPTION,
)
@click.option("-f", "--filename", "file", required=True, metavar="FILE",
              help="YAML with pods or workloads, perhaps with ResourceClaims and templates; - reads standard input."
              )  # fmt: skip
@click.option(
    "--count", type=click.IntRange(min=1), default=None, help="How many copies. Default: 1, or the workload's replicas."
)
@click.option(
    "--most", type=click.IntRange(min=0), default=10_000, show_default=True, help="Stop counting at this many copies."
)
@click.option(
    "-n", "--namespace", default="", help="For manifests without one. Default: that of the kubeconfig's context."
)
@click.option("--cluster", "cluster_file", type=click.Path(exists=True, dir_okay=False), metavar="FILE",
              help="Use a cluster described in YAML.")  # fmt: skip
@click.option(
    "--preempt",
    is_flag=True,
    help="Say which pods would be evicted for the first copy, or the gang, that does not fit.",
)
@click.option("--cards", is_flag=True, help="List every card that does not fit the next copy.")
def pod(
    source: ClusterSource,
    file: str,
    count: int | None,
    most: int,
    namespace: str,
    preempt: bool,
    cards: bool,
    output: str,
) -> None:
    """Say where new pods would go, how many fit, and what stops the next one.

    Every copy takes the scheduler's real path: webhook, filter, reservation. Nothing is written anywhere. What only
    kube-scheduler looks at is not considered: cpu, memory, volumes and affinity between pods.
    """
    import msgspec

    from tessera.inspect.manifests import read_claim_manifests, read_manifests
    from tessera.inspect.offline_cluster import OfflineCluster
    from tessera.inspect.render.explanation import gang_lines, simulation_lines
    from tessera.inspect.render.lines import StyledLine
    from tessera.inspect.simulation import simulate, simulate_gangs

    if source.cluster_file and source.snapshot:
        raise click.UsageError("--cluster and --snapshot exclude each other: leave one out")

    async def work() -> bool:
        text = sources.read_input(file)
        home = sources.namespace_of(source, namespace)
        manifests = read_manifests(text, file=file, namespace=home, count=count)
        cluster = OfflineCluster(await sources.read_state(source, namespace=home, for_preemption=preempt))
        for document in read_claim_manifests(text, file=file, namespace=home):
            cluster.put_manifest(document)
        gangs = simulate_gangs(cluster, manifests, preempt=preempt)
        found = [simulate(cluster, manifest, most=most, cards=cards, preempt=preempt) for manifest in manifests]
        width = sources.terminal_width()
        lines = [line for gang in gangs for line in gang_lines(gang)]
        lines = [line for one in found for line in (StyledLine(), *simulation_lines(one, width=width))] + lines
        documents = [{**msgspec.to_builtins(one), "allFit": one.all_fit, "byNode": one.by_node} for one in found]
        for document in documents[:1]:
            document |= {"gangs": msgspec.to_builtins(gangs)} if gangs else {}
        sources.print_answer("Simulations", cluster.state, documents, output=output, lines=lines[1:])
        return all(one.all_fit for one in found) and all(gang.fits for gang in gangs)

    sources.exit_with(sources.run_async(work))
