"""The commands for people with the rights that RBAC gives them: the chart's reader role, `view`, and no more."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import structlog
from click.testing import CliRunner

from tessera.cli import main
from tessera.kube.access import load_access
from tessera.kube.client import KubeClient
from tessera.kube.resources import PODS
from tessera_lab.sandbox.api.kinds import Json
from tessera_lab.sandbox.nodes.node import SimulatedFleet, SimulatedNode, gpu_cards
from tests.e2e.chart_install import ChartInstall, install
from tests.e2e.cluster import make_namespace
from tests.e2e.control_plane import ACCOUNTS, ControlPlane
from tests.e2e.replica import until
from tests.support.product import gpu_pod

CARDS = gpu_cards("gpu-1", 1)
MINE, OTHER = "mine", "other"
"""namespaces"""
READER, OVERSEER, VIEWER = "reader", "overseer", "viewer"
"""service accounts: with the reader role, with `view` for the whole cluster, and with `view` for one namespace"""


@pytest.fixture(scope="module")
def installed(own_plane: ControlPlane, helm: Path) -> ChartInstall:
    """Without its webhook, which nothing serves here."""
    settings = "annotationGuard.enabled=false,readerRole.aggregateToView=true"
    return install(own_plane, helm, settings=settings, without="MutatingWebhookConfiguration")


@pytest.fixture(scope="module")
def people(installed: ChartInstall) -> dict[str, Path]:
    """Kubeconfigs, on a cluster with one card and a pod of each namespace on it."""
    plane = installed.plane
    asyncio.run(fill(plane))
    for name in (READER, OVERSEER, VIEWER):
        plane.kubectl("create", "serviceaccount", name, f"--namespace={ACCOUNTS}")
    for kind, name, role in (
        ("clusterrolebinding", READER, "tessera-reader"),
        ("clusterrolebinding", OVERSEER, "view"),
        ("rolebinding", VIEWER, "view"),
    ):
        where = [f"--namespace={MINE}"] if kind == "rolebinding" else []
        subject = f"--serviceaccount={ACCOUNTS}:{name}"
        plane.kubectl("create", kind, name, *where, f"--clusterrole={role}", subject)
    return {name: plane.kubeconfig_of_account(name) for name in (READER, OVERSEER, VIEWER)}


async def fill(plane: ControlPlane) -> None:
    async with KubeClient(load_access(kubeconfig=str(plane.kubeconfig()), environ={})) as api:
        await SimulatedFleet(api, [SimulatedNode("gpu-1", CARDS)]).register()
        for namespace in (MINE, OTHER):
            await make_namespace(api, namespace)
            await api.create(PODS.path(namespace), holding(f"of-{namespace}", namespace), dict)


def holding(name: str, namespace: str) -> Json:
    made = gpu_pod(name, gpu=1, mem=30000, namespace=namespace)
    made["metadata"]["annotations"] = {"hami.io/vgpu-devices-allocated": f"{CARDS[0].uuid},NVIDIA,30000,0:;"}
    made["spec"]["nodeName"] = "gpu-1"
    return made


async def answered(kubeconfig: Path, *arguments: str) -> tuple[int, str]:
    before = structlog.get_config()
    given = [*arguments, "--kubeconfig", str(kubeconfig)]
    try:
        found = await asyncio.to_thread(CliRunner().invoke, main, given, catch_exceptions=False)
    finally:
        structlog.configure(**before)
    return found.exit_code, found.output


@pytest.mark.parametrize("who", [READER, OVERSEER])
async def test_the_reader_role_is_all_that_a_full_answer_needs(
    installed: ChartInstall, people: dict[str, Path], tmp_path: Path, who: str
) -> None:
    async def is_added() -> bool:
        return "tessera-scheduler-device" in installed.plane.kubectl("get", "clusterrole", "view", "--output=yaml")

    await until(is_added, what="the controller manager to add the role to view")
    file = tmp_path / "p.yaml"
    file.write_text(
        "{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: [{name: main, image: i, resources: "
        "{limits: {nvidia.com/gpu: 1, nvidia.com/gpumem: 30000}}}]}}"
    )
    for arguments, expected, says in (
        (("explain", f"{MINE}/of-{MINE}"), 0, "placed on gpu-1"),
        (("top",), 0, f"of-{OTHER}"),
        (("simulate", "pod", "-n", MINE, "-f", str(file)), 1, "needs 30000 MiB"),
    ):
        code, text = await answered(people[who], *arguments)
        assert code == expected, text
        assert says in text
        assert "not readable" not in text


async def test_a_viewer_of_one_namespace_is_told_what_is_left_out(people: dict[str, Path]) -> None:
    code, text = await answered(people[VIEWER], "explain", f"{MINE}/of-{MINE}")
    assert code == 0, text
    assert "30000 MiB" in text
    for what in ("nodes", f"pods outside namespace {MINE}", "the webhook configuration"):
        assert f"not readable: {what} (you may not" in text
    code, text = await answered(people[VIEWER], "top", "pods", "-n", MINE)
    assert code == 0, text
    assert (f"of-{MINE}" in text, f"of-{OTHER}" in text) == (True, False)
    code, text = await answered(people[VIEWER], "explain", f"{OTHER}/of-{OTHER}")
    assert code == 2, text
    assert f"you may not list pods in namespace {OTHER}" in text
