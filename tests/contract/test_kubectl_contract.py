"""A real kubectl from PATH: everyday commands work and print what they should."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.contract.client import Client, Json
from tests.contract.conftest import Space
from tests.contract.manifests import binding, deployment, pod

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl on PATH")

PATIENCE_S = 60


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str


Kubectl = Callable[..., Coroutine[Any, Any, Said]]


@pytest.fixture
def kubectl(kubeconfig: Json, space: Space, tmp_path: Path) -> Kubectl:
    """Runs one command in the test's namespace, with nothing of this machine's own configuration."""
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(kubeconfig))
    path.chmod(0o600)
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "KUBECONFIG": str(path)}

    async def run(*arguments: str, given: object = None) -> Said:
        process = await asyncio.create_subprocess_exec(
            "kubectl",
            f"--namespace={space.name}",
            *arguments,
            env=environment,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(PATIENCE_S):
            out, err = await process.communicate(yaml.safe_dump(given).encode() if given is not None else b"")
        return Said(process.returncode or 0, out.decode(), err.decode())

    return run


def manifest(**metadata: Any) -> Json:
    return {"apiVersion": "v1", "kind": "Pod"} | pod(**metadata)


async def test_apply_creates_changes_and_refuses(kubectl: Kubectl, api: Client, space: Space) -> None:
    assert (await kubectl("apply", "-f", "-", given=manifest())).out == "pod/p created\n"
    labelled = manifest(labels={"a": "1"})
    labelled["spec"]["containers"][0]["image"] = "busybox:2"
    said = await kubectl("apply", "-f", "-", given=labelled)
    assert (said.out, said.err) == ("pod/p configured\n", "")
    found = (await api.get(space.pods("p"))).body
    assert found["metadata"]["labels"] == {"a": "1"}
    assert found["spec"]["containers"][0]["image"] == "busybox:2"
    labelled["spec"]["containers"][0]["command"] = ["sh"]
    said = await kubectl("apply", "-f", "-", given=labelled)
    assert said.code == 1
    assert "pod updates may not change fields other than" in said.err


async def test_get_and_describe(kubectl: Kubectl, api: Client, space: Space) -> None:
    made = await api.made(space.pods(), pod())
    about = {"kind": "Pod", "name": "p", "namespace": space.name, "uid": made["metadata"]["uid"]}
    event = {"metadata": {"name": "p.1"}, "involvedObject": about, "reason": "Because", "message": "of this"}
    await api.made(space.of("events"), event | {"type": "Warning", "source": {"component": "contract"}})
    said = await kubectl("get", "pods")
    assert [line.split()[:4] for line in said.out.splitlines()] == [
        ["NAME", "READY", "STATUS", "RESTARTS"],
        ["p", "0/1", "Pending", "0"],
    ]
    said = await kubectl("describe", "pod", "p")
    assert said.code == 0
    assert "nvidia.com/gpumem:  3k" in said.out
    assert "Because" in said.out
    assert "of this" in said.out


async def test_wait_and_delete_see_what_happens(kubectl: Kubectl, api: Client, space: Space, node: Json) -> None:
    await api.made(space.pods(), pod())
    await api.post(space.pods("p", "binding"), binding(node["metadata"]["name"]))
    waiting = asyncio.create_task(kubectl("wait", "--for=condition=Ready", "pod/p", "--timeout=30s"))
    ready = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    await api.patch(space.pods("p", "status"), ready)
    assert (await waiting).out == "pod/p condition met\n"
    deleting = asyncio.create_task(kubectl("delete", "pod", "p"))
    async with api.watch(space.pods()) as watch:
        while "deletionTimestamp" not in ((await watch.next()) or {})["object"]["metadata"]:
            pass
    await api.delete(space.pods("p"), gracePeriodSeconds="0")
    said = await deleting
    assert said.code == 0
    assert said.out.startswith('pod "p" deleted')


async def test_typed_commands_work_too(kubectl: Kubectl, api: Client, space: Space, node: Json) -> None:
    assert (await kubectl("create", "configmap", "c", "--from-literal=a=b")).code == 0
    assert (await kubectl("create", "secret", "generic", "s", "--from-literal=a=b")).code == 0
    assert (await kubectl("create", "quota", "q", "--hard=limits.nvidia.com/gpumem=9999999")).code == 0
    assert (await api.get(space.of("configmaps", "c"))).body["data"] == {"a": "b"}
    secret = (await api.get(space.of("secrets", "s"))).body
    assert (secret["data"], secret["type"]) == ({"a": "Yg=="}, "Opaque")
    assert (await kubectl("auth", "can-i", "create", "pods")).out == "yes\n"
    name = node["metadata"]["name"]
    assert (await kubectl("label", "node", name, "gpu=on")).code == 0
    assert (await kubectl("annotate", "node", name, "tessera.io/x=y")).code == 0
    assert (await kubectl("cordon", name)).code == 0
    found = (await api.get(f"/api/v1/nodes/{name}")).body
    assert found["metadata"]["labels"]["gpu"] == "on"
    assert found["spec"]["unschedulable"] is True


async def test_workloads_are_applied_scaled_described_and_deleted(kubectl: Kubectl, api: Client, space: Space) -> None:
    body: Json = {"apiVersion": "apps/v1", "kind": "Deployment"} | deployment()
    assert (await kubectl("apply", "-f", "-", given=body)).out == "deployment.apps/d created\n"
    body["spec"]["template"]["spec"]["containers"][0]["image"] = "busybox:2"
    said = await kubectl("apply", "-f", "-", given=body)
    assert (said.out, said.err) == ("deployment.apps/d configured\n", "")
    assert (await kubectl("scale", "deployment/d", "--replicas=3")).out == "deployment.apps/d scaled\n"
    found = (await api.get(space.deployments("d"))).body["spec"]
    image = found["template"]["spec"]["containers"][0]["image"]
    assert (found["replicas"], image) == (3, "busybox:2")
    assert [line.split()[:2] for line in (await kubectl("get", "deploy")).out.splitlines()] == [
        ["NAME", "READY"],
        ["d", "0/3"],
    ]
    said = await kubectl("describe", "deployment", "d")
    assert (said.code, "3 desired" in said.out) == (0, True)
    assert (await kubectl("delete", "deployment", "d")).code == 0


async def test_typed_commands_make_workloads(kubectl: Kubectl, api: Client, space: Space) -> None:
    command = ("--", "sh", "-c", "true")
    assert (await kubectl("create", "deployment", "d", "--image=busybox:1", "--replicas=2", *command)).code == 0
    found = (await api.get(space.deployments("d"))).body["spec"]
    (container,) = found["template"]["spec"]["containers"]
    assert (found["replicas"], found["selector"]) == (2, {"matchLabels": {"app": "d"}})
    assert (container["image"], container["command"]) == ("busybox:1", ["sh", "-c", "true"])
    assert (await kubectl("create", "job", "j", "--image=busybox:1", *command)).code == 0
    found = (await api.get(space.jobs("j"))).body["spec"]["template"]["spec"]
    assert (found["restartPolicy"], found["containers"][0]["image"]) == ("Never", "busybox:1")
