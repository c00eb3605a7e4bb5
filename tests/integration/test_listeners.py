"""Which listener serves what: the webhook over TLS, filter and bind for this machine only, or one for all."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from ssl import SSLContext, SSLError

import aiohttp
import pytest
import trustme

from tessera.http11.request_reader import MAX_BODY_BYTES
from tessera.http11.server import KEEP_ALIVE_S
from tessera.scheduler.process import Process
from tessera.scheduler.settings import Listeners, Settings
from tessera.services.listener import Listener, health_routes
from tessera.services.value_types import Address
from tessera_lab.sandbox.control_plane import ControlPlane
from tessera_lab.sandbox.nodes.node import SimulatedNode, gpu_cards
from tests.support.admission import SAMPLES
from tests.support.event_loops import in_fake_time, on_uvloop
from tests.support.product import gpu_pod
from tests.support.scheduler_process import LOOPBACK, calling, running, trusting, write_authority, write_pair

ANYWHERE = Address("0.0.0.0", 0)
SEPARATE = Listeners(extender=LOOPBACK, webhook=LOOPBACK, metrics=LOOPBACK)
SINGLE = Listeners(extender=None, webhook=None, metrics=LOOPBACK, single=LOOPBACK)
REVIEW = (SAMPLES / "kubectl-gpu.request.json").read_bytes()
WEB_POD = {"metadata": {"name": "web", "namespace": "default", "uid": "u"}, "spec": {"containers": [{"name": "c"}]}}
GO_KEEPS_IDLE = 90.0
"""seconds after which kube-scheduler and the apiserver close idle connections"""


def own_address() -> str:
    """This machine's address on some network; nothing is sent to find it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("198.51.100.1", 9))
        except OSError:
            pytest.skip("this machine has no address but the loopback")
        return str(probe.getsockname()[0])


class World:
    """A scheduler on a cluster of one node, and the certificates around it."""

    def __init__(self, folder: Path) -> None:
        self.authority, self.clients, self.strangers = trustme.CA(), trustme.CA(), trustme.CA()
        self.folder = folder

    @asynccontextmanager
    async def start(
        self, listeners: Listeners, *, tls: bool = True, client_ca: bool = False
    ) -> AsyncIterator[dict[str, Address]]:
        """The addresses of the listeners."""
        names = ("127.0.0.1", *({own_address()} if ANYWHERE in (listeners.single, listeners.extender) else ()))
        if client_ca:
            listeners = replace(listeners, client_ca=write_authority(self.folder / "clients.crt", self.clients))
        settings = Settings(listeners=listeners, tls=write_pair(self.folder, self.authority, *names) if tls else None)
        async with ControlPlane(nodes=[SimulatedNode("n1", gpu_cards("n1", 1))]) as plane:
            self.pod = await plane.create_pod(gpu_pod("p", gpu=1, mem=1000))
            async with running(plane, settings) as process:
                self.process: Process = process
                yield {name: listener.address for name, listener in process.listeners.items()}

    def context(self, shown: trustme.CA | None = None) -> SSLContext:
        return trusting(self.authority, showing=shown.issue_cert("scheduler@example.com") if shown else None)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@on_uvloop
async def test_every_listener_serves_its_own_routes_and_health(world: World) -> None:
    served: dict[str, dict[str, int]] = {}
    async with world.start(SEPARATE) as at:
        for name, address in at.items():
            async with calling(address, world.context() if name == "webhook" else None) as caller:
                requests = {"/filter": b"{}", "/bind": b"{}", "/webhook": REVIEW}
                served[name] = {path: (await caller.send("POST", path, body))[0] for path, body in requests.items()}
                served[name] |= {path: (await caller.get(path))[0] for path in ("/metrics", "/healthz", "/readyz")}
    health = {"/healthz": 200, "/readyz": 200}
    nothing = dict.fromkeys(("/filter", "/bind", "/webhook", "/metrics"), 404) | health
    assert served == {
        "extender": nothing | {"/filter": 200, "/bind": 200},
        "webhook": nothing | {"/webhook": 200},
        "metrics": nothing | {"/metrics": 200},
    }


@on_uvloop
async def test_the_webhook_speaks_tls_only(world: World) -> None:
    async with world.start(SEPARATE) as at:
        async with calling(at["webhook"], world.context()) as caller:
            answer = await caller.post("/webhook?timeout=10s", REVIEW)
            assert answer["response"]["allowed"] is True
        async with calling(at["webhook"]) as caller:
            with pytest.raises(aiohttp.ClientError):
                await caller.post("/webhook", REVIEW)
        async with calling(at["webhook"], trusting(world.strangers)) as caller:
            with pytest.raises(aiohttp.ClientConnectorCertificateError):
                await caller.post("/webhook", REVIEW)


@pytest.mark.parametrize("tls", [True, False])
@on_uvloop
async def test_hamis_single_listener_serves_everything_but_metrics(world: World, tls: bool) -> None:
    async with (
        world.start(SINGLE, tls=tls) as at,
        calling(at["single"], world.context() if tls else None) as caller,
    ):
        assert set(at) == {"single", "metrics"}
        assert (await caller.post("/webhook", REVIEW))["response"]["allowed"] is True
        assert (await caller.filter(world.pod, ["n1"]))["NodeNames"] == ["n1"]
        assert await caller.bind(world.pod, "n1") == {"Error": ""}
        assert await caller.get("/healthz") == (200, "")
        assert await caller.get("/readyz") == (200, "")
        assert (await caller.get("/metrics"))[0] == 404


@pytest.mark.parametrize("listeners", [SINGLE, SEPARATE, replace(SEPARATE, extender_tls=True)])
@pytest.mark.parametrize("tls", [True, False])
@on_uvloop
async def test_a_site_that_makes_its_name_point_to_this_machine_is_refused_without_tls(
    world: World, listeners: Listeners, tls: bool
) -> None:
    if listeners.extender_tls and not tls:
        return
    is_plain = not tls or (listeners.single is None and not listeners.extender_tls)
    async with world.start(listeners, tls=tls) as at:
        address = at.get("single") or at["extender"]
        url, context = f"http{'' if is_plain else 's'}://{address}", False if is_plain else world.context()
        async with aiohttp.ClientSession(headers={"Host": "rebound.example"}) as client:
            for method, path, body in (("POST", "/filter", b"{}"), ("POST", "/bind", b"{}"), ("GET", "/journal", None)):
                async with client.request(method, f"{url}{path}", data=body, ssl=context) as answer:
                    assert (answer.status == 403) is is_plain
            async with client.get(f"{url}/healthz", ssl=context) as answer:
                assert answer.status == 200


@pytest.mark.parametrize("name", ["single", "extender"])
@pytest.mark.parametrize("tls", [True, False])
@on_uvloop
async def test_filter_and_bind_are_refused_from_another_address(world: World, name: str, tls: bool) -> None:
    listeners = replace(SINGLE, single=ANYWHERE)
    if name == "extender":
        listeners = replace(SEPARATE, extender=ANYWHERE, extender_tls=tls)
    async with world.start(listeners, tls=tls) as at:
        port = at[name].port
        async with calling(Address(own_address(), port), world.context() if tls else None) as caller:
            for path in ("/filter", "/bind"):
                status, text = await caller.send("POST", path, b"{}")
                assert (status, text.startswith("filter and bind answer this machine only")) == (403, True)
            assert await caller.get("/healthz") == (200, "")
            if name == "single":
                assert (await caller.post("/webhook", REVIEW))["response"]["allowed"] is True
        assert world.process.service.ledger.pods() == []
        async with calling(Address("127.0.0.1", port), world.context() if tls else None) as caller:
            assert (await caller.filter(world.pod, ["n1"]))["NodeNames"] == ["n1"]


@pytest.mark.parametrize("name", ["single", "extender"])
@on_uvloop
async def test_a_certificate_of_the_configured_authority_opens_filter_and_bind(world: World, name: str) -> None:
    listeners = replace(SINGLE, single=ANYWHERE)
    if name == "extender":
        listeners = replace(SEPARATE, extender=ANYWHERE, extender_tls=True)
    async with world.start(listeners, client_ca=True) as at:
        elsewhere = Address(own_address(), at[name].port)
        async with calling(elsewhere, world.context()) as caller:
            assert (await caller.send("POST", "/filter", b"{}"))[0] == 403
        async with calling(elsewhere, world.context(world.strangers)) as caller:
            with pytest.raises((aiohttp.ClientError, SSLError)):
                await caller.send("POST", "/filter", b"{}")
        async with calling(elsewhere, world.context(world.clients)) as caller:
            assert (await caller.filter(world.pod, ["n1"]))["NodeNames"] == ["n1"]
            assert await caller.bind(world.pod, "n1") == {"Error": ""}


@on_uvloop
async def test_an_authority_of_clients_changes_nothing_for_this_machine_and_the_webhook(world: World) -> None:
    async with world.start(replace(SEPARATE, extender_tls=True), client_ca=True) as at:
        async with calling(at["extender"], world.context()) as caller:
            assert (await caller.filter(world.pod, ["n1"]))["NodeNames"] == ["n1"]
        async with calling(at["webhook"], world.context()) as caller:
            assert (await caller.post("/webhook", REVIEW))["response"]["allowed"] is True


@on_uvloop
async def test_the_loopback_of_ipv6_is_this_machine_too(world: World) -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    async with world.start(replace(SEPARATE, extender=Address("::1", 0)), tls=False) as at:
        assert str(at["extender"]) == f"[::1]:{at['extender'].port}"
        async with calling(at["extender"]) as caller:
            assert (await caller.filter(world.pod, ["n1"]))["NodeNames"] == ["n1"]


@on_uvloop
async def test_without_a_certificate_there_is_no_webhook_and_without_addresses_no_listener(world: World) -> None:
    async with world.start(replace(SEPARATE, metrics=None), tls=False) as at:
        assert set(at) == {"extender"}


@on_uvloop
async def test_five_mebibytes_are_read_and_more_than_eight_are_refused(world: World) -> None:
    names = ["n1", *(f"{i:0250}" for i in range(5 * 2**20 // 253))]
    review = json.loads(REVIEW)
    review["request"]["object"]["metadata"]["annotations"]["note"] = "x" * 5 * 2**20
    async with world.start(SINGLE) as at, calling(at["single"], world.context()) as caller:
        answer = await caller.filter(WEB_POD, names)
        assert answer["NodeNames"] == names
        assert (await caller.filter(world.pod, names))["NodeNames"] == ["n1"]
        answer = await caller.post("/webhook", review)
        assert "at most 4194304" in answer["response"]["status"]["message"], "it is read, and answered"
        for path in ("/filter", "/bind", "/webhook"):
            assert (await caller.send("POST", path, b" " * (MAX_BODY_BYTES + 1)))[0] == 413
        assert (await caller.filter(WEB_POD, ["n1"]))["NodeNames"] == ["n1"]


@in_fake_time
async def test_an_idle_connection_outlives_the_patience_of_gos_clients() -> None:
    listener = Listener(LOOPBACK, health_routes(str), grace=1.0)
    await listener.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.address.port)
    time = asyncio.get_running_loop().time
    for _ in range(2):
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        asked = time()
        await asyncio.sleep(GO_KEEPS_IDLE)
        assert not reader.at_eof()
    assert await reader.read() == b""
    assert GO_KEEPS_IDLE < KEEP_ALIVE_S <= time() - asked < KEEP_ALIVE_S + 5
    writer.close()
    await writer.wait_closed()
    await listener.stop()
