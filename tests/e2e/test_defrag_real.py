"""`tessera defrag run` with a real kube-apiserver and a stock kube-scheduler: moved, held, bound; budget, death."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from tessera.kube.errors import ApiError
from tessera.kube.resources import DEPLOYMENTS, LEASES, NODES
from tessera.lab.sandbox.api.kinds import Json
from tessera.lab.sandbox.nodes.cards import gpu_cards
from tessera.lab.sandbox.nodes.node import SimulatedNode
from tessera.lab.sandbox.objects import node_of, phase_of
from tessera.wire.keys import MOVE_PREFIX
from tests.e2e.cluster import Cluster, cluster
from tests.e2e.cluster_check import Scrape
from tests.e2e.control_plane import ACCOUNTS, ControlPlane
from tests.e2e.processes import Program
from tests.e2e.replica import until
from tests.support.ports import free_ports
from tests.support.product import container, gpu_pod

NODE_POLICY = "hami.io/node-scheduler-policy"
LEASE = "tessera-defrag"
NOT_FOUND = 404


def nodes(count: int) -> list[SimulatedNode]:
    return [SimulatedNode(f"n{number}", gpu_cards(f"n{number}", 1), agent="env") for number in range(count)]


class Defragmenter:
    """`tessera defrag run`, as a process."""

    def __init__(self, plane: ControlPlane, label: str, *flags: str) -> None:
        [port] = free_ports(1)
        self._url = f"http://127.0.0.1:{port}/metrics"
        self.program = Program(
            f"defrag-{label}",
            [
                *(sys.executable, "-m", "tessera", "defrag", "run", "--log-format=json"),
                f"--kubeconfig={plane.kubeconfig_of_account('tessera-defrag')}",
                f"--metrics-bind-address=127.0.0.1:{port}",
                f"--lease-namespace={ACCOUNTS}",
                *("--interval=500ms", "--patience=0s", "--lease-duration=6s"),
                *flags,
            ],
            folder=plane.logs,
            environ={},
        )

    async def scrape(self) -> Scrape:
        async with aiohttp.ClientSession() as session, session.get(self._url) as answer:
            return Scrape(await answer.text())

    async def leads(self) -> bool:
        assert self.program.is_running, self.program.words()
        try:
            return (await self.scrape()).value("tessera_defrag_leader") == 1
        except aiohttp.ClientError:
            return False


@asynccontextmanager
async def defragmenter(found: Cluster, *flags: str) -> AsyncIterator[Defragmenter]:
    made = Defragmenter(found.plane, found.namespace, *flags)
    try:
        await found.api.delete(LEASES.path(ACCOUNTS, LEASE))  # Of an earlier test, with its record.
    except ApiError as error:
        if error.status != NOT_FOUND:
            raise
    made.program.start()
    try:
        await until(made.leads, what="the Lease")
        yield made
    finally:
        made.program.kill()


async def deploy(found: Cluster, name: str, *, mem: int, grace_s: int = 1) -> None:
    """One pod, on the emptiest node."""
    main = container("main", gpu=1, mem=mem)
    template = {
        "metadata": {"labels": {"app": name}, "annotations": {NODE_POLICY: "spread"}},
        "spec": {"containers": [main], "terminationGracePeriodSeconds": grace_s},
    }
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": name}}, "template": template}
    answer = await found.tenant.post(DEPLOYMENTS.path(found.namespace), {"metadata": {"name": name}, "spec": spec})
    assert answer.status == 201, answer.body
    await found.wait_for(lambda: name in running(found), what=f"{name} to run")


def running(found: Cluster) -> dict[str, Json]:
    """The running pods of Deployments, by the Deployment's name."""
    pods = [pod for pod in found.pods if phase_of(pod) == "Running" and "deletionTimestamp" not in pod["metadata"]]
    return {pod["metadata"]["labels"]["app"]: pod for pod in pods if "app" in pod["metadata"].get("labels", {})}


def uids(found: Cluster) -> dict[str, str]:
    return {name: pod["metadata"]["uid"] for name, pod in running(found).items()}


async def holds(found: Cluster) -> list[str]:
    shown = (await found.api.list(NODES.path(), dict[str, Any])).items
    return [key for node in shown for key in node["metadata"].get("annotations", {}) if key.startswith(MOVE_PREFIX)]


def whole(name: str) -> Json:
    return gpu_pod(name, gpu=1, cores=100)


async def no_holds(found: Cluster) -> None:
    async def none() -> bool:
        return not await holds(found)

    await until(none, what="no place to be held")


async def test_the_fewest_pods_move_and_the_waiting_pod_gets_the_card(plane: ControlPlane) -> None:
    async with cluster(plane, nodes(3)) as found:
        for name, mem in (("a", 10_000), ("b", 12_000), ("c", 30_000), ("d", 8_000), ("e", 9_000)):
            await deploy(found, name, mem=mem)
        before, places = uids(found), {name: node_of(pod) for name, pod in running(found).items()}
        await found.create(whole("waiting"))
        await found.refused("waiting")
        alone = {name for name, place in places.items() if list(places.values()).count(place) == 1}
        assert alone == {"c"}, "the others share two cards"
        async with defragmenter(found) as process:
            await found.running("waiting")
            await found.wait_for(lambda: len(running(found)) == 5, what="all to run again")
            await no_holds(found)
            scrape = await process.scrape()
        moved = {name for name, uid in uids(found).items() if uid != before[name]}
        assert moved == {"c"}
        assert node_of(found.pod("waiting")) == places["c"]
        assert node_of(running(found)["c"]) in {places[name] for name in ("a", "b", "d", "e")}
        assert scrape.value("tessera_defrag_moves_total") == 1
        await found.at_rest()
        assert found.wrong_slices() == []


async def test_a_waiting_gang_gets_the_cards_that_two_moves_free(plane: ControlPlane) -> None:
    async with cluster(plane, nodes(4)) as found:
        for number in range(4):
            await deploy(found, f"d{number}", mem=20_000 + number)
        before = uids(found)
        for number in range(2):
            member = whole(f"m{number}")
            member["metadata"]["annotations"] = {"tessera.io/gang": "g", "tessera.io/gang-size": "2"}
            await found.create(member)
        await found.refused("m0")
        await found.refused("m1")
        async with defragmenter(found) as process:
            await found.running("m0", "m1")
            await found.wait_for(lambda: len(running(found)) == 4, what="all to run again")
            await no_holds(found)
            assert (await process.scrape()).value("tessera_defrag_moves_total") == 2
        assert len(set(before.values()) & set(uids(found).values())) == 2
        await found.at_rest()
        assert found.wrong_slices() == []


async def test_one_eviction_per_hour_is_one_whatever_happens_to_the_process(plane: ControlPlane) -> None:
    async with cluster(plane, nodes(3)) as found:
        for name in ("a", "b", "c"):
            await deploy(found, name, mem=5_000)
        before = uids(found)
        await found.create(whole("first"), whole("second"))
        await found.refused("second")
        async with defragmenter(found, "--evictions-per-hour=1") as process:
            await found.wait_for(
                lambda: "Running" in {phase_of(found.pod(name)) for name in ("first", "second")}, what="one to run"
            )
            process.program.kill()
            process.program.start()
            await until(process.leads, what="the Lease")

            async def has_looked() -> bool:
                scrape = await process.scrape()
                return (
                    scrape.value("tessera_defrag_waiting") == 1 and scrape.value("tessera_defrag_evictions_left") == 0
                )

            await until(has_looked, what="a round of the new process")
        assert sum(uid != before[name] for name, uid in uids(found).items()) == 1
        assert sorted(phase_of(found.pod(name)) for name in ("first", "second")) == ["Pending", "Running"]


async def test_a_death_in_the_middle_of_a_move_leaves_nothing_behind(plane: ControlPlane) -> None:
    async with cluster(plane, nodes(2)) as found:
        for name in ("a", "b"):
            await deploy(found, name, mem=5_000, grace_s=3)
        before = uids(found)
        await found.create(whole("waiting"))
        await found.refused("waiting")
        async with defragmenter(found, "--step-timeout=10s") as process:
            await found.wait_for(lambda: uids(found) != before, what="an eviction")
            process.program.kill()
            assert len(await holds(found)) == 2, "for the successor, and for the pod that waits"
        await found.running("waiting")
        await no_holds(found)
        await found.wait_for(lambda: len(running(found)) == 2, what="both to run again")
        assert sum(uid != before[name] for name, uid in uids(found).items()) == 1
        await found.at_rest()
