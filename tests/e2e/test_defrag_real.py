"""Moves with a real kube-apiserver and a stock kube-scheduler: moved, held, bound; budget, death; by request."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import yaml

from tessera.kube.errors import ApiError, is_not_found
from tessera.kube.resources import DEPLOYMENTS, LEASES
from tessera_lab.sandbox.api.kinds import Json
from tessera_lab.sandbox.nodes.node import SimulatedNode, gpu_cards
from tessera_lab.sandbox.objects import node_of, phase_of
from tests.e2e.cluster import Cluster, cluster
from tests.e2e.control_plane import ACCOUNTS, ControlPlane
from tests.e2e.replica import until
from tests.support.product import container, gpu_pod

NODE_POLICY = "hami.io/node-scheduler-policy"
LEASE = "tessera-defrag"


def nodes(count: int) -> list[SimulatedNode]:
    return [SimulatedNode(f"n{number}", gpu_cards(f"n{number}", 1), agent="env") for number in range(count)]


@asynccontextmanager
async def moving(plane: ControlPlane, count: int, *flags: str) -> AsyncIterator[Cluster]:
    """A cluster whose scheduler moves pods for pods that wait. None of an earlier test is recorded."""
    schedule = ("--defrag", "--defrag-interval=500ms", "--defrag-patience=0s", f"--defrag-lease-namespace={ACCOUNTS}")
    async with cluster(plane, nodes(count), *schedule, *flags) as found:
        try:
            await found.api.delete(LEASES.path(ACCOUNTS, LEASE))
        except ApiError as error:
            if not is_not_found(error):
                raise
        yield found


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


def whole(name: str) -> Json:
    return gpu_pod(name, gpu=1, cores=100)


async def moves_made(found: Cluster, number: int) -> None:
    async def are_made() -> bool:
        return (await found.replica.scrape()).value("tessera_defrag_moves_total") == number

    await until(are_made, what=f"{number} moves to be counted")


async def test_the_fewest_pods_move_and_the_waiting_pod_gets_the_card(plane: ControlPlane) -> None:
    async with moving(plane, 3) as found:
        for name, mem in (("a", 10_000), ("b", 12_000), ("c", 30_000), ("d", 8_000), ("e", 9_000)):
            await deploy(found, name, mem=mem)
        before, places = uids(found), {name: node_of(pod) for name, pod in running(found).items()}
        alone = {name for name, place in places.items() if list(places.values()).count(place) == 1}
        assert alone == {"c"}, "the others share two cards"
        await found.create(whole("waiting"))
        await found.running("waiting")
        await found.wait_for(lambda: len(running(found)) == 5, what="all to run again")
        await moves_made(found, 1)
        moved = {name for name, uid in uids(found).items() if uid != before[name]}
        assert moved == {"c"}
        assert node_of(found.pod("waiting")) == places["c"]
        assert node_of(running(found)["c"]) in {places[name] for name in ("a", "b", "d", "e")}
        await found.at_rest()
        assert found.wrong_slices() == []


async def test_a_waiting_gang_gets_the_cards_that_two_moves_free(plane: ControlPlane) -> None:
    async with moving(plane, 4) as found:
        for number in range(4):
            await deploy(found, f"d{number}", mem=20_000 + number)
        before = uids(found)
        for number in range(2):
            member = whole(f"m{number}")
            member["metadata"]["annotations"] = {"tessera.io/gang": "g", "tessera.io/gang-size": "2"}
            await found.create(member)
        await found.running("m0", "m1")
        await found.wait_for(lambda: len(running(found)) == 4, what="all to run again")
        await moves_made(found, 2)
        assert len(set(before.values()) & set(uids(found).values())) == 2
        await found.at_rest()
        assert found.wrong_slices() == []


async def test_one_eviction_per_hour_is_one_whatever_happens_to_the_process(plane: ControlPlane) -> None:
    async with moving(plane, 3, "--defrag-evictions-per-hour=1") as found:
        for name in ("a", "b", "c"):
            await deploy(found, name, mem=5_000)
        before = uids(found)
        await found.create(whole("first"), whole("second"))
        await found.wait_for(
            lambda: "Running" in {phase_of(found.pod(name)) for name in ("first", "second")}, what="one to run"
        )
        await found.wait_for(lambda: len(running(found)) == 3, what="all to run again")
        await found.replica.restart_tessera()

        async def has_looked() -> bool:
            scrape = await found.replica.scrape()
            return scrape.value("tessera_defrag_waiting") == 1 and scrape.value("tessera_defrag_evictions_left") == 0

        await until(has_looked, what="a round of the new process")
        assert sum(uid != before[name] for name, uid in uids(found).items()) == 1
        assert sorted(phase_of(found.pod(name)) for name in ("first", "second")) == ["Pending", "Running"]


async def test_a_death_in_the_middle_of_a_move_leaves_nothing_behind(plane: ControlPlane) -> None:
    async with moving(plane, 2) as found:
        for name in ("a", "b"):
            await deploy(found, name, mem=5_000, grace_s=3)
        before = uids(found)
        await found.create(whole("waiting"))
        await found.wait_for(lambda: uids(found) != before, what="an eviction")
        await found.replica.restart_tessera()
        await found.running("waiting")
        await found.wait_for(lambda: len(running(found)) == 2, what="both to run again")
        await found.at_rest()
        assert found.wrong_slices() == []


def tessera(plane: ControlPlane, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tessera", "defrag", *arguments, f"--kubeconfig={plane.kubeconfig()}"]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def token_of(plane: ControlPlane, account: str) -> str:
    found = yaml.safe_load(plane.kubeconfig_of_account(account).read_text())
    return str(found["users"][0]["user"]["token"])


async def test_a_person_who_may_evict_pods_has_a_plan_made_and_another_does_not(plane: ControlPlane) -> None:
    async with cluster(plane, nodes(2)) as found:
        for name in ("a", "b"):
            await deploy(found, name, mem=5_000)
        before = uids(found)
        plan = plane.folder / f"plan-{found.namespace}.json"
        plan.write_text(tessera(plane, "plan", "-o", "json").stdout)
        url = found.replica.extender_url
        refused = await asyncio.to_thread(
            tessera, plane, "apply", str(plan), "--url", url, "--token", token_of(plane, "default")
        )
        assert (refused.returncode, uids(found)) == (2, before), refused.stderr
        assert "it needs `create` on pods/eviction in all namespaces" in refused.stderr
        applied = await asyncio.to_thread(
            tessera, plane, "apply", str(plan), "--url", url, "--token", token_of(plane, "tessera-scheduler")
        )
        assert applied.returncode == 0, applied.stderr
        await found.wait_for(lambda: len(running(found)) == 2, what="both to run again")
        assert len({node_of(pod) for pod in running(found).values()}) == 1
        assert sum(uid != before[name] for name, uid in uids(found).items()) == 1
