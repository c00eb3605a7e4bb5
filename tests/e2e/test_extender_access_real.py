"""Only kube-scheduler on the same machine may call filter and bind, on any listener."""

from __future__ import annotations

import socket
import ssl

import aiohttp
import pytest

from tessera_lab.sandbox.nodes.node import SimulatedNode, gpu_cards
from tessera_lab.sandbox.objects import node_of
from tests.e2e.cluster import Cluster, cluster
from tests.e2e.control_plane import ControlPlane
from tests.support.product import gpu_pod

VERBS = ("filter", "bind")


def own_address() -> str:
    """Of this machine on some network; nothing is sent to find it, and what is said from it stays on the machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no address but the loopback")
        return str(probe.getsockname()[0])


async def answer(url: str, body: object, *, speaker: str = "") -> tuple[int, str]:
    """Status and text; `speaker` is the address that the call comes from."""
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    connector = aiohttp.TCPConnector(ssl=trusting, local_addr=(speaker, 0) if speaker else None)
    async with aiohttp.ClientSession(connector=connector) as session, session.post(url, json=body) as got:
        return got.status, await got.text()


def question(found: Cluster, verb: str) -> object:
    """What would give the pod its node."""
    metadata = found.pod("p")["metadata"]
    if verb == "filter":
        return {"Pod": found.pod("p"), "NodeNames": ["n1"]}
    return {"PodName": "p", "PodNamespace": metadata["namespace"], "PodUID": metadata["uid"], "Node": "n1"}


async def test_filter_and_bind_called_from_elsewhere_are_refused(plane: ControlPlane) -> None:
    speaker = own_address()
    async with cluster(plane, [SimulatedNode("n1", gpu_cards("n1", 1))], scheduling=False) as found:
        await found.create(gpu_pod("p", gpu=1, mem=100))
        for verb in VERBS:
            status, text = await answer(f"{found.replica.extender_url}/{verb}", question(found, verb), speaker=speaker)
            assert status == 403, text
            assert "this machine only" in text
        assert (await found.replica.scrape()).value("tessera_reservations") == 0
        assert node_of(found.pod("p")) == ""
        for verb in VERBS:
            status, text = await answer(f"{found.replica.extender_url}/{verb}", question(found, verb))
            assert status == 200, text
        await found.running("p")
        await found.at_rest()


async def test_what_others_can_reach_neither_filters_nor_binds(plane: ControlPlane) -> None:
    async with cluster(plane, [SimulatedNode("n1", gpu_cards("n1", 1))], scheduling=False) as found:
        await found.create(gpu_pod("p", gpu=1, mem=100))
        for url in (f"https://127.0.0.1:{found.replica.webhook_port}", found.replica.metrics_url):
            for verb in VERBS:
                status, text = await answer(f"{url}/{verb}", question(found, verb))
                assert status == 404, text
        assert (await found.replica.scrape()).value("tessera_reservations") == 0
        assert node_of(found.pod("p")) == ""
