"""Scheduler, kube-scheduler and apiserver end at any moment; certificates and leaders change: nothing is lost."""

from __future__ import annotations

import asyncio
import signal
import ssl
import subprocess

import pytest

from tessera.core.ledger.audit import audit
from tessera.kube.resources import SECRETS
from tessera.services.value_types import Address
from tessera_lab.sandbox.api.kinds import Json
from tessera_lab.sandbox.nodes.node import AgentKind, SimulatedNode, gpu_cards
from tessera_lab.sandbox.objects import node_of
from tests.e2e.cluster import Cluster, cluster
from tests.e2e.cluster_check import replayed
from tests.e2e.conftest import NewPlane
from tests.e2e.control_plane import ACCOUNTS, ControlPlane, renamed
from tests.e2e.replica import SECRET, SERVICE, FromFiles, Replica, SelfMade, until
from tests.support.product import container, gpu_pod, pod
from tests.support.scheduler_process import shown_certificate, trusting

COUNT = 40


def node(name: str, count: int = 2, *, agent: AgentKind = "env") -> SimulatedNode:
    return SimulatedNode(name, gpu_cards(name, count), agent=agent)


def nodes(third: AgentKind = "hami") -> list[SimulatedNode]:
    return [node("n1"), node("n2", agent="answer"), node("n3", agent=third)]


def pods(count: int = COUNT) -> list[Json]:
    """Enough for more than half of the cards, in sizes that all differ."""
    return [
        gpu_pod(f"p{number:02}", gpu=1, mem=4000 + 41 * number, cores=number % 5)
        if number % 3
        else pod(f"p{number:02}", container("a", gpu=1, mem=2000 + number), container("b", gpu=1, mem=3000 + number))
        for number in range(count)
    ]


def names(manifests: list[Json]) -> list[str]:
    return [manifest["metadata"]["name"] for manifest in manifests]


async def bound(found: Cluster, count: int) -> None:
    await found.wait_for(lambda: sum(map(bool, map(node_of, found.pods))) >= count, what=f"{count} bound pods")


async def all_is_well(found: Cluster, manifests: list[Json]) -> None:
    await found.running(*names(manifests))
    await found.at_rest()
    assert found.wrong_slices() == []


async def test_a_scheduler_killed_with_pods_in_flight_loses_nothing_and_grants_nothing_twice(
    plane: ControlPlane,
) -> None:
    waiting = pods()
    async with cluster(plane, nodes(), scheduling=False) as found:
        await found.create(*waiting)
        found.replica.kube_scheduler.start()
        for count in (1, COUNT // 4, COUNT // 2):
            await bound(found, count)
            await found.replica.restart_tessera()
            assert audit(await replayed(found.api)) == []
        await all_is_well(found, waiting)


async def test_a_kube_scheduler_killed_with_pods_in_flight_loses_nothing(plane: ControlPlane) -> None:
    waiting = pods()
    async with cluster(plane, nodes(), scheduling=False) as found:
        await found.create(*waiting)
        for count in (COUNT // 4, COUNT // 2):
            found.replica.kube_scheduler.start()
            await bound(found, count)
            found.replica.kube_scheduler.kill()
        found.replica.kube_scheduler.start()
        await all_is_well(found, waiting)


async def test_an_apiserver_that_is_killed_and_comes_back_costs_nothing(planes: NewPlane) -> None:
    waiting = pods()
    own = planes()
    # Without HAMi's plugin: its Allocate reads the API, so kubelet rejects a pod whose Allocate comes in the meantime.
    async with cluster(own, nodes("answer"), scheduling=False) as found:
        await found.create(*waiting)
        found.replica.kube_scheduler.start()
        await bound(found, COUNT // 4)
        own.kill_apiserver()
        own.start_apiserver()
        await asyncio.to_thread(own.wait_until_ready)
        await all_is_well(found, waiting)
        # And it goes on as before.
        await found.run(gpu_pod("after", gpu=1, mem=100))
    own.stop()


# -- certificates


async def test_certificate_files_may_change_while_pods_are_created(
    plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> None:
    files = FromFiles(tmp_path_factory.mktemp("webhook") / "tls.pem")
    waiting = pods(24)
    async with cluster(plane, nodes(), certificates=files) as found:
        address = Address("127.0.0.1", found.replica.webhook_port)
        for some in (waiting[:8], waiting[8:16], waiting[16:]):
            await found.create(*some[:4])
            fresh = ssl.PEM_cert_to_DER_cert(files.renew().decode())
            found.replica.tessera.send(signal.SIGHUP)
            await found.create(*some[4:])

            async def is_shown(expected: bytes = fresh) -> bool:
                return await shown_certificate(address, trusting(files.authority)) == expected

            await until(is_shown, what="the fresh certificate to be shown")
        await all_is_well(found, waiting)


async def test_the_scheduler_makes_its_own_certificates_and_new_ones_while_pods_are_created(
    plane: ControlPlane,
) -> None:
    """The apiserver reaches the webhook as in a cluster: through a Service, by the name in the certificate."""
    here = (f"--namespace={ACCOUNTS}", "service", SERVICE)
    plane.kubectl("create", *here[:2], "externalname", SERVICE, "--external-name=localhost")
    try:
        async with cluster(plane, nodes(), certificates=SelfMade()) as found:
            await found.run(gpu_pod("before", gpu=1, mem=100))
            first = await shown(found)
            await found.api.delete(SECRETS.path(ACCOUNTS, SECRET))
            found.replica.tessera.send(signal.SIGHUP)

            async def renewed() -> bool:
                answer = await found.post(gpu_pod("meanwhile", gpu=1, mem=100), dryRun="All")
                assert answer.status == 201, answer.body
                return await shown(found) != first

            await until(renewed, what="another certificate")
            await found.run(gpu_pod("after", gpu=1, mem=100))
            await found.at_rest()
    finally:
        plane.kubectl("delete", *here)
        plane.kubectl("delete", here[0], "secret", SECRET)


async def shown(found: Cluster) -> bytes:
    """The certificate of the webhook, without verification."""
    unverified = ssl.create_default_context()
    unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE
    return await shown_certificate(Address("127.0.0.1", found.replica.webhook_port), unverified)


# -- leaders


def can_rename() -> bool:
    done = subprocess.run([*renamed("e2e"), "true"], capture_output=True, check=False)
    return done.returncode == 0


async def test_when_the_leaders_machine_dies_the_other_replica_goes_on(plane: ControlPlane) -> None:
    if not can_rename():
        pytest.skip("two replicas need two names of the machine: unshare --uts, which needs root")
    waiting = pods()
    async with cluster(plane, nodes(), scheduling=False, host="host-a") as found:
        await found.create(*waiting)
        first = found.replica
        second = Replica(plane, label="b", certificates=FromFiles(plane.folder / "webhook-b.pem"), host="host-b")
        try:
            second.tessera.start()
            await second.ready()
            first.kube_scheduler.start()
            await bound(found, 1)
            assert not await leads(second)
            first.kill()
            second.kube_scheduler.start()
            await until(lambda: leads(second), what="the other replica to lead")
            found.replica = second
            await all_is_well(found, waiting)
        finally:
            second.kill()


async def leads(replica: Replica) -> bool:
    return (await replica.scrape()).value("tessera_leader") == 1
