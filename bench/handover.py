"""100 pods of mixed shapes on one simulated node: the time from the first creation until all run with their slices.

Everything is in this process: API server, scheduling loop, node and the real scheduler with its webhook over TLS. The
budget is wall time; processor time is printed beside it, because a busy machine does not change that one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path

import uvloop

from tessera_lab.sandbox.nodes.node import SimulatedNode, gpu_cards
from tests.support.ledger_replay import wrong_slices
from tests.support.product import mixed_pods, product

MAX_S = 5.0


async def measure(pods: int, agent: str) -> dict[str, float]:
    node = SimulatedNode("n1", gpu_cards("n1", 8, slots=64), agent=agent, shuffled=True, pods=2 * pods)
    with tempfile.TemporaryDirectory() as folder:
        async with product([node], Path(folder)) as cluster:
            manifests = mixed_pods(pods)
            began, worked = time.perf_counter(), time.process_time()
            await asyncio.gather(*(cluster.plane.create_pod(manifest) for manifest in manifests))
            await cluster.running_pods(*(manifest["metadata"]["name"] for manifest in manifests))
            taken, work = time.perf_counter() - began, time.process_time() - worked
            wrong = len(list(wrong_slices(cluster.plane)))
    return {"pods": pods, "seconds": round(taken, 3), "processor_s": round(work, 3), "wrong_slices": wrong}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.handover", description=__doc__.split("\n")[0])
    parser.add_argument("--pods", type=int, default=100, help="default %(default)s")
    parser.add_argument("--agent", choices=("env", "answer", "hami"), default="env", help="default %(default)s")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--check", action="store_true", help=f"fail above {MAX_S:g} s or with a wrong slice")
    chosen = parser.parse_args(arguments)
    found = uvloop.run(measure(chosen.pods, chosen.agent))
    if chosen.json:
        print(json.dumps(found))
    else:
        print(
            "{pods:.0f} pods handed over in {seconds} s ({processor_s} s of work), {wrong_slices} wrong".format(**found)
        )
    broken = found["seconds"] > MAX_S or found["wrong_slices"] > 0
    return 1 if chosen.check and broken else 0


if __name__ == "__main__":
    sys.exit(main())
