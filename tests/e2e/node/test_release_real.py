"""The chart, installed by Helm on a real node: what an administrator types, and what a tenant gets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tessera.inspect.installation import behind_apiserver
from tessera.inspect.journal_source import SchedulerSource
from tessera.kube.access import load_access
from tessera.kube.client import KubeClient
from tessera.kube.resources import PODS
from tessera.node.modes.hami_core import LIBRARY_HOME
from tessera.wire.journal import Placed
from tessera_lab.sandbox.api.kinds import Json
from tessera_lab.sandbox.objects import phase_of
from tests.contract.client import client, read_kubeconfig
from tests.e2e.cluster import clean_up, end_tasks, make_namespace
from tests.e2e.control_plane import ControlPlane
from tests.e2e.node.cluster import PATIENCE_S, Node, environments
from tests.e2e.node.control_plane import NODE
from tests.e2e.node.environment_check import wrong_environments
from tests.e2e.node.release import (
    CARDS,
    SPLIT,
    VALUES,
    Release,
    default_scheduler,
    lives,
    load_images,
    obstacle,
)
from tests.e2e.node.shapes import talking
from tests.e2e.processes import LOOK_S
from tests.e2e.replica import until
from tests.support.product import container, pod

TENANT = "e2e-release"
MIB, CORES = 2000, 20
"""of each pod"""
OTHER_SETTINGS = ",".join(
    [
        "devicePlugin.deviceSplitCount=20",
        # HAMi's.
        "scheduler.defaultSchedulerPolicy.nodeSchedulerPolicy=binpack",
        "scheduler.defaultSchedulerPolicy.gpuSchedulerPolicy=spread",
    ]
)


@asynccontextmanager
async def installed(
    node: Node, tools: Mapping[str, Path], values: Json = VALUES, *, tenant: str = TENANT
) -> AsyncIterator[Release]:
    """The chart's release, and a namespace for tenants. Both are gone afterwards."""
    if reason := obstacle(node):
        pytest.skip(reason)
    plane = node.plane
    await asyncio.to_thread(load_images, node, tools)
    access = load_access(kubeconfig=str(plane.kubeconfig()), environ={})
    async with KubeClient(access) as api:
        release = Release(plane, tools["helm"], api, values)
        with default_scheduler(plane):
            plane.kubectl("label", "node", NODE, "gpu=on")
            await make_namespace(api, tenant)
            try:
                await release.install()
                yield release
            finally:
                await release.helm("uninstall", "--ignore-not-found")
                await clean_up(api, tenant, ())
                plane.kubectl("label", "node", NODE, "gpu-")


def deployment(name: str, replicas: int, *, tenant: str = TENANT) -> Json:
    """Of pods that print their environment and stay."""
    template = talking(pod(name, container("main", gpu=1, mem=MIB, cores=CORES)))
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": tenant},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": template["spec"]},
        },
    }


@asynccontextmanager
async def admitted_all_the_time(plane: ControlPlane) -> AsyncIterator[None]:
    """Asks for a pod again and again meanwhile, without creating it."""
    refusals: list[str] = []
    manifest = talking(pod("asked", container("main", gpu=1, mem=MIB)))
    manifest["metadata"] = {"name": "asked"}

    async def ask() -> None:
        async with client(read_kubeconfig(plane.kubeconfig("tenant"))) as tenant:
            while True:
                answer = await tenant.post(PODS.path(TENANT), manifest, dryRun="All")
                if answer.status != 201:
                    refusals.append(answer.message)
                # As fast as possible, it would take most of the machine from what it watches.
                await asyncio.sleep(LOOK_S)

    asking = asyncio.create_task(ask())
    yield
    assert not asking.done(), asking.exception()
    await end_tasks([asking])
    assert refusals == []


async def running(api: KubeClient, count: int, *, tenant: str = TENANT) -> list[Json]:
    """All pods of the tenant, when so many run and no others are there."""
    found: list[Json] = []

    async def all_run() -> bool:
        nonlocal found
        found = list((await api.list(PODS.path(tenant), dict[str, Any])).items)
        return [phase_of(each) for each in found] == ["Running"] * count

    try:
        await until(all_run, what=f"{count} pods to run", within_s=PATIENCE_S)
    except TimeoutError as error:
        raise AssertionError([(each["metadata"]["name"], each["status"]) for each in found]) from error
    return found


async def test_a_deployment_on_the_installed_chart_gets_its_slices_and_outlives_the_release(
    node: Node, tools: Mapping[str, Path]
) -> None:
    plane = node.plane
    audited = sum(1 for _ in plane.audited())
    async with installed(node, tools) as release:
        await release.shares(CARDS * SPLIT)
        agents, schedulers = await release.pods("device-plugin"), await release.pods("scheduler")
        assert (len(agents), len(schedulers)) == (1, 2)
        path = f"/apis/apps/v1/namespaces/{TENANT}/deployments"
        await release.api.create(path, deployment("first", 3))
        pods = await running(release.api, 3)
        assert [*wrong_environments(pods, await environments(plane, pods), hook=LIBRARY_HOME)] == []
        alive = lives(pods)
        said = await release.diagnosis()
        assert "e2e-tessera-scheduler has 2 ready replica(s)" in said
        assert "0 broken, 0 warnings, 0 not checked" in said, said

        # With a kubeconfig that has a token and rights, through the apiserver's proxy.
        journal = SchedulerSource(release.api, behind_apiserver(release.api))
        placed = [record.pod.name async for record in journal.records() if isinstance(record, Placed)]
        assert sorted(placed) == sorted(each["metadata"]["name"] for each in pods)

        # Another version: scheduler and agent are replaced, and the webhook answers all the time.
        async with admitted_all_the_time(plane):
            await release.api.create(path, deployment("second", 2))
            await release.upgrade(OTHER_SETTINGS)
        pods = await running(release.api, 5)
        assert lives(pods).items() >= alive.items()
        alive = lives(pods)
        await release.shares(CARDS * 20)
        assert not agents.keys() & (await release.pods("device-plugin")).keys()
        assert not schedulers.keys() & (await release.pods("scheduler")).keys()

        async with admitted_all_the_time(plane):
            await release.helm("rollback", "1")
        await release.shares(CARDS * SPLIT)
        await release.api.create(path, deployment("third", 1))
        pods = await running(release.api, 6)
        assert lives(pods).items() >= alive.items()
        alive = lives(pods)
        assert [*wrong_environments(pods, await environments(plane, pods), hook=LIBRARY_HOME)] == []

        await release.helm("uninstall")
        await release.gone()
        assert lives(await running(release.api, 6)) == alive
    asked = list(plane.audited())[audited:]
    allowed = {(each.verb, each.resource) for each in asked if each.allowed}
    assert {(each.verb, each.resource) for each in asked} == allowed, "the chart's roles are not enough"
