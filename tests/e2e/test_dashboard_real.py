"""The dashboard with the chart's rights on a real apiserver: who may see it, and what a reader's page follows."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tessera.http11.router import Request
from tessera.inspect.dashboard.live_source import follow_cluster
from tessera.inspect.dashboard.scheduler_page import PATH
from tessera.kube.access import load_access
from tessera.kube.client import KubeClient
from tessera.kube.resources import PODS
from tessera.scheduler.access_review import AccessReview, get_on_path
from tessera_lab.sandbox.nodes.node import SimulatedFleet, SimulatedNode, gpu_cards
from tests.e2e.chart_install import SCHEDULER, ChartInstall, install
from tests.e2e.cluster import make_namespace
from tests.e2e.control_plane import ACCOUNTS, ControlPlane
from tests.e2e.replica import WAIT_S, until
from tests.e2e.test_reader_role_real import holding

VIEWER, STRANGER, READER = "dashboard-viewer", "stranger", "dashboard-reader"
"""service accounts"""


@pytest.fixture(scope="module")
def installed(own_plane: ControlPlane, helm: Path) -> ChartInstall:
    settings = "annotationGuard.enabled=false,scheduler.dashboard.enabled=true"
    found = install(own_plane, helm, settings=settings, without="MutatingWebhookConfiguration")
    for name in (VIEWER, STRANGER, READER):
        found.plane.kubectl("create", "serviceaccount", name, f"--namespace={ACCOUNTS}")
    for name, role in ((VIEWER, "tessera-dashboard"), (READER, "tessera-reader")):
        subject = f"--serviceaccount={ACCOUNTS}:{name}"
        found.plane.kubectl("create", "clusterrolebinding", name, f"--clusterrole={role}", subject)
    return found


def token_of(installed: ChartInstall, name: str) -> str:
    return installed.plane.kubectl("create", "token", name, f"--namespace={ACCOUNTS}").strip()


async def test_only_callers_with_the_charts_role_are_let_in(installed: ChartInstall) -> None:
    account = installed.plane.kubeconfig_of_account(SCHEDULER)
    async with KubeClient(load_access(kubeconfig=str(account), environ={})) as client:
        review = AccessReview(client, get_on_path(PATH))

        async def status(token: str) -> int:
            refusal = await review.refuse(Request(headers={b"Authorization": f"Bearer {token}".encode()}))
            return 200 if refusal is None else refusal.status

        assert await status(token_of(installed, VIEWER)) == 200
        assert await status(token_of(installed, STRANGER)) == 403
        assert await status(token_of(installed, READER)) == 403
        assert await status("made.up.token") == 401
        # A token of an account that was deleted is refused once the verdict is no longer kept.
        token = token_of(installed, VIEWER)
        installed.plane.kubectl("delete", "serviceaccount", VIEWER, f"--namespace={ACCOUNTS}")

        async def is_refused() -> bool:
            return await status(token) == 401

        await until(is_refused, what="the apiserver to know that the account is gone")


async def test_the_reader_role_is_all_that_a_live_page_needs(installed: ChartInstall) -> None:
    plane = installed.plane
    async with KubeClient(load_access(kubeconfig=str(plane.kubeconfig()), environ={})) as admin:
        await SimulatedFleet(admin, [SimulatedNode("gpu-1", gpu_cards("gpu-1", 1))]).register()
        await make_namespace(admin, "mine")
        reader = load_access(kubeconfig=str(plane.kubeconfig_of_account(READER)), environ={})
        async with (
            KubeClient(reader) as client,
            follow_cluster(client, name="real", namespace="default", override=lambda setup: setup) as source,
        ):
            assert source.view.ledger.node_names() == ("gpu-1",)
            await admin.create(PODS.path("mine"), holding("held", "mine"), dict)
            async with asyncio.timeout(WAIT_S):
                while not source.view.ledger.pods():
                    await asyncio.sleep(0.05)
            assert "may not watch" not in source.problem
            assert "not readable" not in source.problem
