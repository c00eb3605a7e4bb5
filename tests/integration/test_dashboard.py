"""The page beside a running scheduler: of a live cluster with a user's rights, and of the scheduler itself over TLS."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import ssl
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import trustme
from click.testing import CliRunner

from tessera.cli import main
from tessera.inspect.dashboard import live_source
from tessera.inspect.dashboard.journal import FollowedJournal
from tessera.inspect.dashboard.live_source import LiveSource, follow_cluster
from tessera.inspect.dashboard.scheduler_page import SchedulerPage
from tessera.inspect.dashboard.server import serve_page
from tessera.inspect.installation import at_url
from tessera.inspect.journal_source import SchedulerSource
from tessera.inspect.snapshots import encode_snapshot, write_bundle
from tessera.inspect.state import ListForbidden
from tessera.kube.access import Access, load_access
from tessera.kube.client import KubeClient
from tessera.scheduler.process import Process
from tessera.scheduler.settings import Listeners, Settings
from tessera.wire.journal import Record
from tessera_lab.sandbox.api.faults import Drop, Fail
from tessera_lab.sandbox.control_plane import ControlPlane
from tessera_lab.sandbox.nodes.node import SimulatedNode, gpu_cards
from tests.support.builders import NOW, node
from tests.support.builders import gpu_pod as builders_pod
from tests.support.cluster_states import LARGE_NOW, large_state
from tests.support.event_loops import in_real_time
from tests.support.journals import RecordedCluster
from tests.support.page import merged, pods_of
from tests.support.product import Product, gpu_pod, product
from tests.support.scheduler_process import LOOPBACK, until, write_pair

US = "tessera-dashboard"


def nodes() -> list[SimulatedNode]:
    return [SimulatedNode("n1", gpu_cards("n1", 2)), SimulatedNode("n2", gpu_cards("n2", 1))]


@asynccontextmanager
async def followed(plane: ControlPlane) -> AsyncIterator[LiveSource]:
    access = load_access(kubeconfig=str(plane.kubeconfig), environ={})
    async with (
        KubeClient(access, user_agent=US) as client,
        follow_cluster(client, name="sandbox", namespace="default", override=lambda setup: setup) as source,
    ):
        yield source


class Viewer:
    """A page of a browser, without the browser."""

    def __init__(self, session: aiohttp.ClientSession, address: str) -> None:
        self._session = session
        self._url, _, token = address.partition("#token=")
        self.headers = {"Authorization": f"Bearer {token}"}

    async def get(self, target: str) -> Any:
        async with self._session.get(f"{self._url}api/{target}", headers=self.headers) as response:
            assert response.status == 200, await response.text()
            return await response.json()

    async def until(self, condition: Callable[[Any], object]) -> Any:
        """The state, once that is true of it."""
        state = await self.get("state")
        while not condition(state):
            state = merged(state, await self.get(f"state?since={state['version']}"))
        return state


@asynccontextmanager
async def viewed(source: LiveSource) -> AsyncIterator[Viewer]:
    async with serve_page(source) as address, aiohttp.ClientSession() as session:
        yield Viewer(session, address)


def granted(state: Any) -> dict[str, int]:
    return {name: sum(len(card[10]) for card in one["cards"]) for name, one in state["nodes"].items()}


async def test_a_bind_reaches_a_viewer_of_the_live_cluster(tmp_path: Path) -> None:
    async with product(nodes(), tmp_path) as cluster, followed(cluster.plane) as source, viewed(source) as viewer:
        state = await viewer.get("state")
        assert granted(state) == {"n1": 0, "n2": 0}
        assert (state["source"]["live"], state["source"]["problem"]) == (True, "")
        await cluster.post_pod(gpu_pod("a", gpu=1, mem=1000))
        await viewer.until(lambda state: "a" in [pod[1] for pod in pods_of(state).values()])
        pod = await viewer.get("pod?namespace=default&name=a")
        assert "placed on" in pod["lines"][0]["text"]
        await cluster.plane.delete_pod("default", "a")
        await cluster.until(lambda: not source.view.ledger.pods())
        assert cluster.writes(US) == []


async def test_a_viewer_of_the_live_cluster_goes_back_through_the_journal_of_its_scheduler(tmp_path: Path) -> None:
    async with product(nodes(), tmp_path) as cluster:
        access = load_access(kubeconfig=str(cluster.plane.kubeconfig), environ={})
        async with (
            KubeClient(access, user_agent=US) as client,
            KubeClient(Access(cluster.scheduler.extender_url), user_agent=US) as scheduler,
        ):
            journal = FollowedJournal(lambda: SchedulerSource(scheduler, at_url(cluster.scheduler.extender_url)))
            await journal.timeline()
            follow = follow_cluster(
                client, name="sandbox", namespace="default", override=lambda setup: setup, journal=journal
            )
            async with follow as source, viewed(source) as viewer:
                before = time.time()
                await cluster.post_pod(gpu_pod("a", gpu=1, mem=1000))
                await cluster.running_pods("a")
                found = await viewer.get(f"journal?from={before}&to={time.time() + 1}")
                assert {"placed", "bind"} <= {one["kind"] for one in found["records"] if one["pod"] == "default/a"}
                assert sum(granted(await viewer.get(f"state?time={before}")).values()) == 0
                assert sum(granted(await viewer.get(f"state?time={time.time()}")).values()) == 1


async def test_the_page_and_the_scheduler_have_the_same_ledger(tmp_path: Path) -> None:
    async with product(nodes(), tmp_path) as cluster, followed(cluster.plane) as source:
        for number in range(4):
            await cluster.post_pod(gpu_pod(f"p{number}", gpu=1, mem=1000 * (number + 1)))
        await cluster.running_pods(*(f"p{number}" for number in range(4)))
        await cluster.at_rest()
        ours = source.view.ledger
        await cluster.until(lambda: ours.state() == cluster.ledger.state())


async def test_a_pod_that_waits_is_known_and_leaves_when_it_is_deleted(tmp_path: Path) -> None:
    async with product(nodes(), tmp_path) as cluster, followed(cluster.plane) as source:
        await cluster.post_pod(gpu_pod("large", gpu=1, mem=900_000))
        await cluster.until(lambda: [pod.name for pod in source.waiting()] == ["large"])
        (waits,) = source.waiting()
        assert waits.candidates.names == ("n1", "n2")
        assert waits.origin.since is not None
        await cluster.plane.delete_pod("default", "large")
        await cluster.until(lambda: not list(source.waiting()))


async def test_a_lost_connection_is_told_and_so_is_its_return(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_source, "LOST_S", 0.0)
    async with product(nodes(), tmp_path) as cluster, followed(cluster.plane) as source:
        faults = cluster.plane.server.faults
        faults.next(Drop(), agent=US, times=1_000)
        faults.cut_watches(agent=US)
        await cluster.until(lambda: "the connection to the apiserver is lost" in source.problem)
        assert source.view.ledger.node_names() == ("n1", "n2")
        await cluster.post_pod(gpu_pod("meanwhile", gpu=1, mem=1000))
        await cluster.running_pods("meanwhile")
        faults.clear()
        await cluster.until(lambda: source.problem == "" and source.view.ledger.pods())


def forbid(cluster: Product, path: str) -> None:
    cluster.plane.server.faults.next(Fail(403), method="GET", path=path, agent=US, times=10_000)


async def test_a_user_who_sees_one_namespace_only_is_told_what_is_missing(tmp_path: Path) -> None:
    async with product(nodes(), tmp_path) as cluster:
        forbid(cluster, "^/api/v1/pods")
        forbid(cluster, "^/api/v1/resourcequotas")
        async with followed(cluster.plane) as source:
            assert "pods outside namespace default (you may not list them)" in source.problem
            assert "quotas outside namespace default" in source.problem
            await cluster.post_pod(gpu_pod("a", gpu=1, mem=1000))
            await cluster.until(lambda: source.view.ledger.pods())


async def test_a_user_who_may_not_see_nodes_gets_the_pods_and_is_told(tmp_path: Path) -> None:
    async with product(nodes(), tmp_path) as cluster:
        forbid(cluster, "^/api/v1/nodes")
        async with followed(cluster.plane) as source, viewed(source) as viewer:
            state = await viewer.get("state")
            assert state["nodes"] == {}
            assert "nodes (you may not list them)" in state["source"]["problem"]


async def test_a_user_who_may_not_see_pods_gets_no_page(tmp_path: Path) -> None:
    async with product(nodes(), tmp_path) as cluster:
        forbid(cluster, "/pods")
        with pytest.raises(ListForbidden, match="tessera-reader"):
            async with followed(cluster.plane):
                pass


async def test_a_problem_that_appears_is_told_to_viewers(tmp_path: Path) -> None:
    async with product(nodes(), tmp_path) as cluster, followed(cluster.plane) as source, viewed(source) as viewer:
        assert (await viewer.get("state"))["source"]["problem"] == ""
        source._unwatched.add("pods")
        await viewer.until(lambda state: "you may not watch pods" in state["source"]["problem"])


# -- the scheduler's own page


class Served:
    """The page of a scheduler over TLS."""

    def __init__(self, process: Process, authority: trustme.CA, session: aiohttp.ClientSession) -> None:
        self.process = process
        self.authority = authority
        self._session = session
        self._context = ssl.create_default_context(cadata=authority.cert_pem.bytes().decode())

    async def ask(self, target: str, token: str = "", **how: Any) -> aiohttp.ClientResponse:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        url = f"https://127.0.0.1:{self.process.listeners['dashboard'].address.port}/{target}"
        method = how.pop("method", "GET")
        response = await self._session.request(method, url, headers=headers, ssl=self._context, **how)
        await response.read()
        return response


@asynccontextmanager
async def served(plane: ControlPlane, folder: Path) -> AsyncIterator[Served]:
    authority = trustme.CA()
    files = write_pair(folder, authority)
    listeners = Listeners(extender=LOOPBACK, webhook=None, metrics=None, dashboard=LOOPBACK)
    access = load_access(kubeconfig=str(plane.kubeconfig), environ={})
    async with KubeClient(access, user_agent="tessera-scheduler") as client, aiohttp.ClientSession() as session:
        process = Process(Settings(listeners=listeners, tls=files), client, page=SchedulerPage())
        task = asyncio.create_task(process.run())
        try:
            await until(lambda: task.done() or not process.service.engine.missing())
            yield Served(process, authority, session)
        finally:
            process.stopping.set()
            assert await asyncio.wait_for(task, 60) == 0


@pytest.fixture
async def page(tmp_path: Path) -> AsyncIterator[Served]:
    async with ControlPlane(nodes=nodes()) as plane, served(plane, tmp_path) as page:
        await plane.start_scheduling(f"http://{page.process.listeners['extender'].address}")
        yield page


async def settled(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)


async def test_the_scheduler_serves_its_page_to_callers_whom_the_apiserver_allows(page: Served) -> None:
    await settled(lambda: len(page.process.service.ledger.node_names()) == 2)
    assert (await page.ask("")).status == 200
    assert (await page.ask("api/state")).status == 401
    response = await page.ask("api/state", "ada")
    state = await response.json()
    assert (state["source"]["kind"], state["source"]["live"], granted(state)) == ("scheduler", True, {"n1": 0, "n2": 0})
    assert (await page.ask("filter", method="POST")).status == 404
    for target in ("", "main.js", "api/state", "nothing", "healthz"):
        headers = (await page.ask(target)).headers
        assert "default-src 'none'" in headers["Content-Security-Policy"], target
        assert headers["X-Content-Type-Options"] == "nosniff", target


async def test_the_scheduler_answers_questions_without_changing_its_ledger(page: Served) -> None:
    ledger = page.process.service.ledger
    await settled(lambda: len(ledger.node_names()) == 2)
    before, position = ledger.state(), ledger.arrays.now
    manifest = json.dumps({"kind": "Pod", **gpu_pod("trial", gpu=1, mem=1000)})
    found = await (await page.ask("api/whatif", "ada", method="POST", data=manifest)).json()
    assert (found["pods"][0]["fits"], found["more"] > 10) == (True, True)
    shapes = await (await page.ask("api/shapes", "ada")).json()
    assert any(one["count"] == 3 for one in shapes)
    assert (await page.ask("api/node?name=n1", "ada")).status == 200
    assert (await page.ask("api/pod?namespace=default&name=none", "ada")).status == 404
    assert (await page.ask("api/whatif", "ada", method="POST", data="x" * 100_000)).status == 413
    assert (ledger.state(), ledger.arrays.now) == (before, position)


async def test_the_journal_is_served_beside_the_page_to_callers_with_a_right_of_its_own(page: Served) -> None:
    await settled(lambda: len(page.process.service.ledger.node_names()) == 2)
    assert (await page.ask("journal")).status == 401
    records = [json.loads(line) for line in (await (await page.ask("journal", "ada")).text()).splitlines()]
    assert records[0]["kind"] == "start"
    assert {record["name"] for record in records if record["kind"] == "node"} == {"n1", "n2"}


async def test_pods_that_wait_are_shown_as_the_scheduler_knows_them(tmp_path: Path) -> None:
    async with ControlPlane(nodes=nodes()) as plane, served(plane, tmp_path) as page:
        engine = page.process.service.engine
        await settled(lambda: len(engine.ledger.node_names()) == 2)
        await plane.start_scheduling(f"http://{page.process.listeners['extender'].address}")
        large = {"apiVersion": "v1", "kind": "Pod", **gpu_pod("large", gpu=1, mem=900_000)}
        large["spec"]["schedulerName"] = "hami-scheduler"
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "u", "controller": True}
        large["metadata"]["ownerReferences"] = [owner]
        made = await plane.client.create("/api/v1/namespaces/default/pods", large, dict[str, Any])
        await settled(lambda: len(engine.unschedulable))
        (waits,) = (await (await page.ask("api/state", "ada")).json())["waiting"].values()
        assert (waits["name"], waits["asks"]) == ("large", "1 x 900000 MiB")
        created = datetime.fromisoformat(made["metadata"]["creationTimestamp"]).timestamp()
        assert (waits["since"], waits["owner"]) == (created, ["Job", "train"])
        assert waits["attempts"] >= 1
        pod = await (await page.ask("api/pod?namespace=default&name=large", "ada")).json()
        assert re.search("900000 MiB", json.dumps(pod["lines"]))


async def test_while_the_apiserver_does_not_answer_no_caller_is_let_in(tmp_path: Path) -> None:
    async with ControlPlane(nodes=nodes()) as plane, served(plane, tmp_path) as page:
        plane.server.faults.next(Fail(500), path="tokenreviews", times=2)
        assert (await page.ask("api/state", "ada")).status == 503
        plane.server.faults.clear()
        plane.server.faults.next(Fail(500), path="subjectaccessreviews", times=1)
        assert (await page.ask("api/state", "ada")).status == 503
        assert (await page.ask("api/state", "ada")).status == 200


async def test_the_scheduler_shows_its_own_past(page: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = page.process.service.engine
    await settled(lambda: len(engine.ledger.node_names()) == 2)
    client = page.process.service.client
    first = {"apiVersion": "v1", "kind": "Pod", **gpu_pod("first", gpu=1, mem=1000)}
    first["spec"]["schedulerName"] = "hami-scheduler"
    before = time.time()
    await client.create("/api/v1/namespaces/default/pods", first)
    await settled(lambda: engine.ledger.pods())
    found = await (await page.ask("api/journal", "ada")).json()
    placed = next(record for record in found["records"] if record["kind"] == "placed")
    assert placed["pod"] == "default/first"
    state = await (await page.ask(f"api/state?time={before}", "ada")).json()
    assert (pods_of(state), sorted(granted(state))) == ({}, ["n1", "n2"])
    # What happens later is there as well, without reading everything again.
    second = {"apiVersion": "v1", "kind": "Pod", **gpu_pod("second", gpu=1, mem=1000)}
    second["spec"]["schedulerName"] = "hami-scheduler"
    await client.create("/api/v1/namespaces/default/pods", second)
    await settled(lambda: len(engine.ledger.pods()) == 2)
    state = await (await page.ask(f"api/state?time={time.time() + 1}", "ada")).json()
    assert sorted(pod[1] for pod in pods_of(state).values()) == ["first", "second"]
    state = await (await page.ask(f"api/state?time={before}", "ada")).json()
    assert pods_of(state) == {}
    history = (await (await page.ask("api/pod?namespace=default&name=second", "ada")).json())["history"]
    assert "placed" in [record["kind"] for record in history]


# -- the command


@asynccontextmanager
async def command(*arguments: str) -> AsyncIterator[str]:
    """`tessera dashboard` in a process of its own, which ends well with Ctrl-C; gives the page's address."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tessera", "dashboard", *arguments), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        line = (await asyncio.wait_for(process.stdout.readline(), 60)).decode()
        found = re.fullmatch(r"The page is at (\S+)\n", line)
        assert found is not None, line
        await process.stdout.readline()
        yield found[1]
        process.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(process.wait(), 60) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@in_real_time
async def test_the_command_serves_a_live_cluster(tmp_path: Path) -> None:
    async with product(nodes(), tmp_path) as cluster:
        await cluster.post_pod(gpu_pod("a", gpu=1, mem=1000))
        await cluster.running_pods("a")
        async with (
            command("--kubeconfig", str(cluster.plane.kubeconfig)) as address,
            aiohttp.ClientSession() as session,
        ):
            state = await Viewer(session, address).get("state")
            assert (state["source"]["live"], sum(granted(state).values())) == (True, 1)


async def _each(records: list[Record]) -> AsyncIterator[Record]:
    for record in records:
        yield record


@in_real_time
async def test_the_command_serves_snapshots_and_journals(tmp_path: Path) -> None:
    snapshot, journal = tmp_path / "snapshot.json", tmp_path / "journal.jsonl"
    snapshot.write_bytes(encode_snapshot(large_state(nodes=3, waiting=1)))
    here = RecordedCluster().add(node("r1").gpus(1))
    here.decide(builders_pod("a", mem=1_000))
    journal.write_bytes(here.text())
    async with aiohttp.ClientSession() as session:
        async with command("--journal", str(journal)) as address:
            viewer = Viewer(session, address)
            assert granted(await viewer.get("state")) == {"r1": 1}
            assert granted(await viewer.get(f"state?time={NOW + 1}")) == {"r1": 0}
        bundle = tmp_path / "bundle.tgz"
        await write_bundle(str(bundle), large_state(nodes=3, waiting=1), _each(here.records), key=None)
        async with command("--snapshot", str(bundle)) as address:
            viewer = Viewer(session, address)
            assert len((await viewer.get("state"))["nodes"]) == 3
            assert len((await viewer.get("journal"))["records"]) == 1
        async with command("--snapshot", str(snapshot), "--journal", str(journal)) as address:
            viewer = Viewer(session, address)
            state = await viewer.get("state")
            assert (state["source"]["live"], len(state["nodes"]), len(pods_of(state))) == (False, 3, 48)
            assert state["time"] == LARGE_NOW
            assert len((await viewer.get("journal"))["records"]) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--journal", "{file}"), "not a journal"),
        (("--snapshot", "{file}"), "{file}"),
        (("--journal", "{file}", "--context", "x"), "leave out --kubeconfig"),
        (("--kubeconfig", "/nowhere"), "/nowhere"),
        (("--port", "70000"), "70000"),
    ],
)
def test_what_cannot_be_served_is_said_with_exit_code_2(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    file = tmp_path / "broken"
    file.write_text('{"kind": "nothing"}\n')
    found = CliRunner().invoke(main, ["dashboard", *(word.format(file=file) for word in arguments)])
    assert (found.exit_code, said.format(file=file) in found.output) == (2, True), found.output
