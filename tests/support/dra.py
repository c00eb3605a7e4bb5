"""A node whose agent serves ResourceClaims: a kubelet that finds drivers in its registry, and claims as a scheduler
leaves them.

    async with claim_node(folder) as node:
        claim = await node.claim("c", node.part(0, memory=4096, cores=30))
        devices = await node.prepare(claim)
        env = node.env(claim)
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from grpc import aio

from tessera.kube.resources import RESOURCE_CLAIMS
from tessera.node.dra.driver import REGISTRATION_SOCKET
from tessera.node.dra.prepared_claims import PREFIX
from tessera.node.kubelet.endpoint import open_channel, unary
from tessera.wire.kubelet import dra_pb2 as messages
from tessera.wire.kubelet import methods
from tessera.wire.kubelet import plugin_registration_pb2 as registration
from tessera.wire.resource_api import API_VERSION, DRIVER
from tessera_lab.sandbox.api.kinds import RESOURCE_SLICES as SLICE_KIND
from tests.support.agent import NODE, PATIENCE_S, TWO_CARDS, AgentNode, Json, agent_node
from tests.support.kubelet import plugins_folder

CALL_S = 60.0


class DraKubelet:
    """Registers the driver whose socket appears in its registry, again whenever there is a new socket."""

    def __init__(self, registry: Path) -> None:
        self.socket = registry / REGISTRATION_SOCKET
        self.infos: list[registration.PluginInfo] = []
        """of every registration"""
        self.refusal = ""
        """why the next ones are refused"""
        self._known: tuple[int, int] | None = None

    async def run(self) -> None:
        while True:
            await asyncio.sleep(0.005)
            with suppress(OSError):
                found = self.socket.stat()
                if (found.st_ino, found.st_mtime_ns) != self._known:
                    with suppress(aio.AioRpcError):
                        await self._register()
                        self._known = found.st_ino, found.st_mtime_ns

    async def _register(self) -> None:
        async with open_channel(self.socket) as channel:
            info = await unary(channel, methods.GET_INFO)(registration.InfoRequest(), timeout=CALL_S)
            status = registration.RegistrationStatus(plugin_registered=not self.refusal, error=self.refusal)
            # First: once it is told, the agent counts as ready.
            self.infos.append(info)
            await unary(channel, methods.NOTIFY_STATUS)(status, timeout=CALL_S)

    async def call(self, method: methods.Method[Any, Any], request: Any) -> Any:
        async with open_channel(Path(self.infos[-1].endpoint)) as channel:
            return await unary(channel, method)(request, timeout=CALL_S)


class ClaimNode:
    """The node and its kubelet. The agent may be killed and started again (`agent`)."""

    def __init__(self, agent: AgentNode, kubelet: DraKubelet) -> None:
        self.agent = agent
        self.kubelet = kubelet

    # -- ResourceSlices

    def slices(self) -> list[Json]:
        """As the API shows them, in order of names."""
        found = [each.object for each in self.agent.plane.server.cluster.store.list(SLICE_KIND)]
        return sorted(found, key=lambda each: str(each["metadata"]["name"]))

    def devices(self) -> dict[str, Json]:
        """Of all slices, by name."""
        return {each["name"]: each for found in self.slices() for each in found["spec"].get("devices", ())}

    def name(self, index: int) -> str:
        """Of the device of a whole card."""
        return self.agent.card(index).uuid.lower()

    async def published(self, predicate: Callable[[dict[str, Json]], object] = bool) -> None:
        await self.agent.until(lambda: predicate(self.devices()), what="the devices to be published")

    # -- claims

    def part(self, index: int, *, memory: int, cores: int = 0, request: str = "gpu") -> Json:
        """A part of a card as kube-scheduler writes it; memory in MiB."""
        consumed = {"memory": f"{memory}Mi", "cores": str(cores), "shares": "1"}
        return self.whole(self.name(index), request=request, shareID=str(uuid.uuid4()), consumedCapacity=consumed)

    def whole(self, device: str, *, request: str = "gpu", **more: Any) -> Json:
        return {"request": request, "driver": DRIVER, "pool": NODE, "device": device, **more}

    async def claim(self, name: str, *results: Json) -> messages.Claim:
        """A claim, allocated if there are results."""
        requests = [{"name": each, "exactly": {"deviceClassName": DRIVER}} for each in _requests(results)]
        body = {
            "apiVersion": API_VERSION,
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"devices": {"requests": requests}},
        }
        made = await self.agent.plane.client.create(RESOURCE_CLAIMS.path("default"), body, dict[str, Any])
        if results:
            await self.allocate(name, *results)
        return messages.Claim(namespace="default", name=name, uid=made["metadata"]["uid"])

    async def allocate(self, name: str, *results: Json) -> None:
        status = {"allocation": {"devices": {"results": list(results)}} if results else None}
        path = RESOURCE_CLAIMS.path("default", name, "status")
        await self.agent.plane.client.patch(path, {"status": status})

    async def reserve(self, claim: messages.Claim, pod: Json) -> None:
        """For a pod, as kube-scheduler does."""
        consumer = {"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
        path = RESOURCE_CLAIMS.path("default", claim.name, "status")
        await self.agent.plane.client.patch(path, {"status": {"reservedFor": [consumer]}})

    async def pod(self, name: str, claims: Mapping[str, str], *containers: list[Json]) -> Json:
        """A pod with these claims, by its own names for them, and the references of each container."""
        spec = {
            "resourceClaims": [{"name": own, "resourceClaimName": claim} for own, claim in claims.items()],
            "containers": [
                {"name": f"c{number}", "image": "x", "resources": {"claims": references}}
                for number, references in enumerate(containers)
            ],
        }
        return await self.agent.plane.create_pod({"metadata": {"name": name, "namespace": "default"}, "spec": spec})

    async def delete_claim(self, name: str) -> None:
        await self.agent.plane.client.delete(RESOURCE_CLAIMS.path("default", name))

    # -- kubelet's calls

    async def prepare_all(self, *claims: messages.Claim) -> Mapping[str, messages.NodePrepareResourceResponse]:
        answer = await self.kubelet.call(methods.PREPARE, messages.NodePrepareResourcesRequest(claims=claims))
        found: Mapping[str, messages.NodePrepareResourceResponse] = answer.claims
        return found

    async def prepare(self, claim: messages.Claim) -> list[messages.Device]:
        """Its devices; must succeed."""
        answer = (await self.prepare_all(claim))[claim.uid]
        assert not answer.error, answer.error
        return list(answer.devices)

    async def refusal(self, claim: messages.Claim) -> str:
        answer = (await self.prepare_all(claim))[claim.uid]
        assert answer.error, answer.devices
        return str(answer.error)

    async def unprepare(self, *claims: messages.Claim) -> None:
        answer = await self.kubelet.call(methods.UNPREPARE, messages.NodeUnprepareResourcesRequest(claims=claims))
        assert {uid: each.error for uid, each in answer.claims.items()} == {each.uid: "" for each in claims}

    # -- what containers get

    @property
    def cdi(self) -> Path:
        return Path(self.agent.flags["cdi-dir"])

    def specs(self) -> list[str]:
        """The uids of claims with a CDI spec."""
        return sorted(each.stem.removeprefix(PREFIX) for each in self.cdi.glob(f"{PREFIX}*.json"))

    def spec(self, claim: messages.Claim) -> Json:
        found: Json = json.loads((self.cdi / f"{PREFIX}{claim.uid}.json").read_text())
        return found

    def edits(self, claim: messages.Claim, request: str = "gpu") -> Json:
        (found,) = (each for each in self.spec(claim)["devices"] if each["name"] == f"{claim.uid}-{request}")
        edits: Json = found["containerEdits"]
        return edits

    def env(self, claim: messages.Claim, request: str = "gpu") -> dict[str, str]:
        return dict(each.split("=", 1) for each in self.edits(claim, request)["env"])


def _requests(results: tuple[Json, ...]) -> list[str]:
    return list(dict.fromkeys(each["request"].partition("/")[0] for each in results)) or ["gpu"]


@asynccontextmanager
async def claim_node(
    folder: Path,
    *,
    cards: Mapping[str, Any] = TWO_CARDS,
    node: Mapping[str, Any] | None = None,
    flags: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
    start: bool = True,
) -> AsyncIterator[ClaimNode]:
    """A node whose agent serves claims."""
    async with AsyncExitStack() as stack:
        sockets = stack.enter_context(plugins_folder())
        (sockets / "r").mkdir()
        own = {"dra": "true", "plugin-registry-dir": str(sockets / "r"), "dra-plugin-dir": str(sockets / "d")}
        agent = await stack.enter_async_context(
            agent_node(folder, cards=cards, node=node, flags={**own, **(flags or {})}, environ=environ, start=False)
        )
        kubelet = DraKubelet(sockets / "r")
        task = asyncio.create_task(kubelet.run())
        stack.push_async_callback(_ended, task)
        found = ClaimNode(agent, kubelet)
        if start:
            async with asyncio.timeout(PATIENCE_S):
                await agent.start()
                await found.published()
                if agent.configuration().settings.serves_pods:
                    await agent.kubelet.listed()
        yield found


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
