"""The decision journal of the whole product: recorded, served, written to a file, and replayed."""

from __future__ import annotations

import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tessera.inspect.journal_source import FileSource
from tessera.scheduler.settings import JournalSettings
from tessera.wire.journal import Bind, Denied, Placed, Record, Refused, Start, TookOver, Woken, decode_record
from tessera_lab.sandbox.control_plane import ControlPlane
from tessera_lab.sandbox.nodes.node import SimulatedNode, gpu_cards
from tests.support.commands import OWN_PORTS, scheduler
from tests.support.journals import assert_same_ledger, decide_again, replayed
from tests.support.product import Product, gpu_pod, product
from tests.support.scheduler_process import Caller, calling, until


def nodes() -> list[SimulatedNode]:
    return [SimulatedNode(name, gpu_cards(name, 2)) for name in ("n1", "n2")]


async def served(cluster: Product, query: str = "") -> list[Record]:
    async with calling(cluster.running.listeners["extender"].address) as caller:
        status, text = await caller.get(f"/journal{query}")
    assert status == 200
    return [decode_record(line) for line in text.splitlines()]


def of(records: list[Record], kind: type[Any]) -> list[Any]:
    return [record for record in records if isinstance(record, kind)]


async def test_the_journal_of_a_cluster_is_served_to_this_machine_and_replays(tmp_path: Path) -> None:
    async with product(nodes(), tmp_path) as cluster:
        for number in range(6):
            await cluster.plane.create_pod(gpu_pod(f"p{number}", gpu=1, mem=1000, cores=10))
        await cluster.running_pods(*(f"p{number}" for number in range(6)))
        answer = await cluster.post_pod(gpu_pod("typo", gpu=1, cores=500))
        assert answer.status == 403, answer
        await cluster.at_rest()
        records = await served(cluster)
        ledger = cluster.ledger
        placed, binds = of(records, Placed), of(records, Bind)
        assert {record.pod.name for record in placed} == {f"p{number}" for number in range(6)}
        assert {bind.error for bind in binds} == {""}
        assert [record.name for record in of(records, Denied)] == ["typo"]
        assert len(of(records, TookOver)) == 1
        assert_same_ledger(replayed(records), ledger)
        async with calling(cluster.running.listeners["metrics"].address) as caller:
            assert (await caller.get("/journal"))[0] == 404
            _, metrics = await caller.get("/metrics")
        assert f"tessera_journal_bytes {cluster.service.journal.bytes:.1f}" in metrics
        assert "tessera_journal_file_errors_total 0.0" in metrics


async def test_a_pod_that_waits_for_room_is_refused_woken_and_placed_in_the_journal(tmp_path: Path) -> None:
    async with product([SimulatedNode("n1", gpu_cards("n1", 1))], tmp_path) as cluster:
        await cluster.plane.create_pod(gpu_pod("first", gpu=1, cores=100))
        await cluster.running_pods("first")
        await cluster.plane.create_pod(gpu_pod("second", gpu=1, cores=100))
        await cluster.refused("second")
        await cluster.plane.delete_pod("default", "first")
        await cluster.running_pods("second")
        records = [one for one in await served(cluster) if getattr(getattr(one, "pod", None), "name", "") == "second"]
        kinds = [type(record) for record in records]
        assert kinds.index(Refused) < kinds.index(Woken) < kinds.index(Placed) < kinds.index(Bind)


async def test_the_file_has_all_processes_and_replays_after_a_kill(tmp_path: Path) -> None:
    file = tmp_path / "journal.jsonl"
    async with product(nodes(), tmp_path, journal=JournalSettings(file=str(file))) as cluster:
        await cluster.plane.create_pod(gpu_pod("a", gpu=1, mem=1000))
        await cluster.running_pods("a")
        await cluster.until(
            lambda: file.exists() and b'"kind":"bind"' in file.read_bytes(), what="the bind in the file"
        )
        await cluster.restart_scheduler()
        await cluster.plane.create_pod(gpu_pod("b", gpu=1, mem=1000))
        await cluster.running_pods("b")
        await cluster.at_rest()
        ledger = cluster.ledger
        assert await cluster.stop_scheduler() == 0
        records = [record async for record in FileSource(str(file)).records()]
        assert {record.pod.name for record in of(records, Placed)} == {"a", "b"}
        assert len({start.identity for start in of(records, Start)}) == 2
        assert_same_ledger(replayed(records), ledger)
        await cluster.start_scheduler()


async def test_a_reading_that_follows_ends_in_order_when_the_scheduler_stops(tmp_path: Path) -> None:
    async with product(nodes(), tmp_path) as cluster:
        url = f"http://{cluster.running.listeners['extender'].address}/journal?follow=true"
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            assert b'"kind":"start"' in await response.content.readline()
            assert await cluster.stop_scheduler() == 0
            # Cut off, it would raise an error here.
            assert (await response.content.read()).endswith(b"}\n")
        await cluster.start_scheduler()


@contextmanager
def no_room(pid: int, *, beyond: int) -> Iterator[None]:
    """No file of this process may grow beyond so many bytes: a write takes what still fits, and the next one fails."""
    assert sys.platform == "linux"
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (beyond, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, before)


async def decide(plane: ControlPlane, caller: Caller, name: str) -> None:
    pod = await plane.create_pod(gpu_pod(name, gpu=1, mem=1000))
    assert (await caller.filter(pod, ["n1"]))["NodeNames"] == ["n1"]
    assert await caller.bind(pod, "n1") == {"Error": ""}


@pytest.mark.skipif(sys.platform != "linux", reason="it uses what only Linux has")
async def test_a_disk_without_room_stops_no_decision_and_the_file_goes_on_afterwards(tmp_path: Path) -> None:
    file = tmp_path / "journal.jsonl"
    async with (
        ControlPlane(nodes=[SimulatedNode("n1", gpu_cards("n1", 2))]) as plane,
        scheduler(f"--kubeconfig={plane.kubeconfig}", f"--journal-file={file}", *OWN_PORTS) as command,
        calling(await command.address("extender")) as caller,
        calling(await command.address("metrics")) as metrics,
    ):
        await decide(plane, caller, "before")
        await until(lambda: file.exists() and b'"kind":"bind"' in file.read_bytes())
        with no_room(command.pid, beyond=file.stat().st_size + 100):
            await decide(plane, caller, "meanwhile")
            assert (await command.said("journal file not written"))["level"] == "error"
            await decide(plane, caller, "later")
            assert await caller.get("/readyz") == (200, "")
            assert "tessera_journal_file_errors_total 0.0" not in (await metrics.get("/metrics"))[1]
        await command.said("journal file written again")
        await decide(plane, caller, "after")
        command.send(signal.SIGTERM)
        assert await command.end() == 0
    records = [record async for record in FileSource(str(file), strict=True).records()]
    assert [record.pod.name for record in of(records, Placed)] == ["before", "meanwhile", "later", "after"]
    counts, difference = decide_again(records)
    assert (counts.checked, difference) == (4, None)
