"""What kube-scheduler and kube-apiserver really sent, sent to a running scheduler: they must accept every answer.

The cluster is the embedded one, with a GPU node of every name that was recorded; the scheduler is a process of its own
behind HAMi's single listener.
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
import trustme

from tessera.wire.registration import encode_registration_json
from tessera_lab.sandbox.api.kinds import PODS
from tessera_lab.sandbox.control_plane import ControlPlane
from tessera_lab.sandbox.nodes.node import REGISTER, SimulatedNode, gpu_cards
from tests.support.admission import patched
from tests.support.commands import scheduler
from tests.support.scheduler_process import Caller, calling, trusting, write_pair

pytestmark = pytest.mark.asyncio(loop_scope="module")

SAMPLES = Path(__file__).parents[1] / "samples"
NODES = ["node-real", *(f"fake-{number}" for number in range(1000))]

Json = dict[str, Any]


# -- what Go's types of these answers have, field by field; nothing else may be there


class FilterResult(msgspec.Struct, forbid_unknown_fields=True):
    """ExtenderFilterResult of k8s.io/kube-scheduler/extender/v1."""

    Nodes: Json | None
    NodeNames: list[str] | None
    FailedNodes: dict[str, str] | None
    FailedAndUnresolvableNodes: dict[str, str] | None
    Error: str


class BindingResult(msgspec.Struct, forbid_unknown_fields=True):
    """ExtenderBindingResult."""

    Error: str


class Status(msgspec.Struct, forbid_unknown_fields=True):
    """The part of metav1.Status that an answer uses."""

    code: int
    reason: str = ""
    message: str = ""


class Response(msgspec.Struct, forbid_unknown_fields=True):
    """AdmissionResponse."""

    uid: str
    allowed: bool
    status: Status
    patchType: str | None = None
    patch: str | None = None
    warnings: list[str] = []


class Review(msgspec.Struct, forbid_unknown_fields=True):
    """AdmissionReview, as an answer."""

    kind: str
    apiVersion: str
    response: Response


def recorded(folder: str, name: str) -> bytes:
    return (SAMPLES / folder / f"{name}.request.json").read_bytes()


@dataclass
class World:
    """The running cluster."""

    plane: ControlPlane
    caller: Caller

    async def filter(self, body: bytes) -> FilterResult:
        return msgspec.convert(await self.caller.post("/filter", body), FilterResult)

    async def bind(self, body: bytes) -> BindingResult:
        return msgspec.convert(await self.caller.post("/bind", body), BindingResult)

    async def review(self, body: bytes) -> Review:
        return msgspec.convert(await self.caller.post("/webhook?timeout=10s", body), Review)

    def store(self, pod: Json) -> None:
        """Let the API server have the very pod that was recorded, uid and all."""
        self.plane.server.cluster.store.put(PODS, {"apiVersion": "v1", "kind": "Pod", **pod})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    authority = trustme.CA()
    files = write_pair(tmp_path_factory.mktemp("tls"), authority)
    async with ControlPlane(nodes=[SimulatedNode(name, gpu_cards(name, 8)) for name in NODES]) as plane:
        arguments = (
            f"--kubeconfig={plane.kubeconfig}",
            "--http_bind=127.0.0.1:0",
            "--metrics-bind-address=127.0.0.1:0",
            f"--cert_file={files.certificate}",
            f"--key_file={files.key}",
        )
        async with scheduler(*arguments) as command:
            address = await command.address("single")
            async with calling(address, trusting(authority)) as caller:
                yield World(plane, caller)
        assert not [event for event in command.events if event["level"] == "error"]


@pytest.mark.parametrize("name", ["filter-0", "filter-2", "filter-1000-nodes"])
async def test_a_recorded_filter_is_answered_with_one_of_its_nodes(world: World, name: str) -> None:
    body = recorded("extender", name)
    answer = await world.filter(body)
    assert answer.Error == ""
    assert answer.NodeNames is not None
    [chosen] = answer.NodeNames
    assert chosen in json.loads(body)["NodeNames"]
    assert (answer.Nodes, answer.FailedNodes, answer.FailedAndUnresolvableNodes) == (None, None, None)
    assert (await world.filter(body)).NodeNames == [chosen]


async def test_recorded_nodes_without_a_registration_are_refused_one_by_one(world: World) -> None:
    answer = await world.filter(recorded("extender", "nodes_filter-0"))
    assert answer.FailedNodes == dict.fromkeys(["fake-0", "fake-1", "fake-2", "node-real"], "node unregistered")
    assert (answer.Nodes, answer.NodeNames, answer.Error) == (None, None, "")


async def test_a_recorded_node_that_is_registered_comes_back_as_it_was_sent(world: World) -> None:
    request = json.loads(recorded("extender", "nodes_filter-0"))
    given = {node["metadata"]["name"]: node for node in request["Nodes"]["items"]}
    given["fake-2"]["metadata"]["annotations"][REGISTER] = encode_registration_json(gpu_cards("fake-2", 1))
    answer = await world.filter(json.dumps(request).encode())
    assert answer.Nodes == {"metadata": {}, "items": [given["fake-2"]]}
    assert (answer.NodeNames, answer.Error) == (None, "")


async def test_the_recorded_bind_binds_the_recorded_pod(world: World) -> None:
    pod = json.loads(recorded("extender", "filter-0"))["Pod"]
    world.store(pod)
    await world.filter(recorded("extender", "filter-0"))
    assert await world.bind(recorded("extender", "bind-0")) == BindingResult(Error="")
    bound = world.plane.pod("default", "gpu1")
    assert bound is not None
    assert (bound["spec"]["nodeName"], bound["metadata"]["uid"]) == ("node-real", pod["metadata"]["uid"])
    annotations = bound["metadata"]["annotations"]
    assert annotations["hami.io/vgpu-node"] == "node-real"
    assert ",NVIDIA,3000,30:" in annotations["hami.io/vgpu-devices-allocated"]
    assert annotations["note"] == "sample"
    await world.plane.wait_for(
        lambda: {event["reason"] for event in world.plane.events("default", "gpu1")} >= {"BindingSucceed"},
        what="the event",
    )


@pytest.mark.parametrize(("name", "memory"), [("kubectl-gpu", "3k"), ("generateName", "3k"), ("deployment", "1500")])
async def test_a_recorded_gpu_pod_is_admitted_to_the_profile_of_tessera(world: World, name: str, memory: str) -> None:
    body = recorded("admission", name)
    asked = json.loads(body)["request"]
    answer = await world.review(body)
    assert (answer.kind, answer.apiVersion) == ("AdmissionReview", "admission.k8s.io/v1")
    response = answer.response
    assert (response.uid, response.allowed, response.status) == (asked["uid"], True, Status(code=200))
    assert response.patchType == "JSONPatch"
    # One of the recorded pods asks for cores.
    assert [text for text in response.warnings if "gpucores is best effort" not in text] == []
    assert response.patch is not None
    made = patched(asked["object"], json.loads(base64.b64decode(response.patch)))
    assert made["spec"]["schedulerName"] == "hami-scheduler"
    [container] = made["spec"]["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpumem"] == memory
    assert "CUDA_DEVICE_MEMORY_LIMIT_0" in {variable["name"] for variable in container["env"]}
    assert {**made, "spec": None} == {**asked["object"], "spec": None}


async def test_a_recorded_pod_without_devices_is_left_as_it_is(world: World) -> None:
    body = recorded("admission", "plain")
    response = (await world.review(body)).response
    assert (response.uid, response.allowed) == (json.loads(body)["request"]["uid"], True)
    assert (response.patch, response.patchType, response.warnings) == (None, None, [])


async def test_every_recorded_request_is_sent_here() -> None:
    sent = {"filter-0", "filter-2", "filter-1000-nodes", "nodes_filter-0", "bind-0"}
    sent |= {"kubectl-gpu", "generateName", "deployment", "plain"}
    never = {"preempt-0"}  # a verb that the extender does not offer
    assert {path.name.partition(".")[0] for path in SAMPLES.glob("*/*.request.json")} == sent | never
