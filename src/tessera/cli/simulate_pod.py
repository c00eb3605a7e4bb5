"""`tessera simulate pod`: where a pod would go, how many more fit, and what stops the next one."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from tessera.cli.sources import (
    CONTEXT,
    Source,
    answer,
    examples,
    finish,
    namespace_of,
    open_state,
    output_option,
    print_document,
    print_lines,
    source_options,
    terminal_width,
)

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


@click.command(
    "pod",
    context_settings=CONTEXT,
    epilog=examples(
        [
            ("tessera simulate pod -f pod.yaml", "where it would go now, and how many of it fit"),
            ("tessera simulate pod -f pod.yaml --count 20 --snapshot cluster.json", "on a snapshot, 20 of them"),
            ("tessera simulate pod -f pod.yaml --cluster nodes.yaml", "on a cluster that does not exist yet"),
        ],
        "  0  all copies asked for would be placed\n"
        "  1  not all of them\n"
        "  2  no answer: no access, unreadable file, wrong flags",
        DESCRIPTION,
    ),
)
@click.option("-f", "--filename", "file", required=True, metavar="FILE", help="Pods or workloads in YAML; - is stdin.")
@click.option("--count", type=click.IntRange(min=1), default=None, help="Copies. Default: 1, or a workload's replicas.")
@click.option(
    "--most", type=click.IntRange(min=0), default=10_000, show_default=True, help="Count no further than this."
)
@click.option("-n", "--namespace", default="", help="Where the manifest names none. Default: the context's.")
@click.option("--cluster", "cluster_file", type=click.Path(exists=True, dir_okay=False), metavar="FILE",
              help="Ask a cluster described in YAML.")  # fmt: skip
@click.option("--cards", is_flag=True, help="List every card that refuses the next one.")
@output_option()
@source_options
def command(source: Source, file: str, count: int | None, most: int, namespace: str, cards: bool, output: str) -> None:
    """Say where pods would go that nobody has created, how many fit, and what stops the next one.

    Every copy takes the scheduler's own way: webhook, filter, reservation. Nothing is written anywhere. It does not
    know what only kube-scheduler looks at: cpu, memory, volumes and affinity between pods.
    """
    from tessera.inspect.manifests import read_manifests
    from tessera.inspect.offline_cluster import OfflineCluster
    from tessera.inspect.render.explanation import made_from
    from tessera.inspect.render.lines import Line
    from tessera.inspect.render.simulation import simulated
    from tessera.inspect.simulation import simulate
    from tessera.inspect.state import InspectionError

    if source.cluster_file and source.snapshot:
        raise click.UsageError("--cluster and --snapshot are both clusters: leave one out")

    async def work() -> bool:
        try:
            text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
        except (OSError, UnicodeError) as error:
            raise InspectionError(f"cannot read {file}: {error}") from error
        manifests = read_manifests(text, file=file, namespace=namespace_of(source, namespace), count=count)
        world = OfflineCluster(await open_state(source))
        found = [simulate(world, manifest, most=most, cards=cards) for manifest in manifests]
        if output == "text":
            for position, one in enumerate(found):
                print_lines([Line()] if position else [])
                print_lines(simulated(one, width=terminal_width()))
            print_lines(made_from(world.state))
        else:
            print_document("Simulations", world.state, [summarised(one) for one in found], output)
        return all(one.all_fit for one in found)

    def summarised(one: object) -> object:
        import msgspec

        from tessera.inspect.simulation import Simulation

        assert isinstance(one, Simulation)
        return {**msgspec.to_builtins(one), "allFit": one.all_fit, "byNode": one.by_node}

    finish(answer(work))
