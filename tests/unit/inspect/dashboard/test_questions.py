"""Questions about cards, nodes, pods and manifests, and how much of them is answered at once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Generator
from itertools import pairwise
from typing import Any, cast

import pytest

from tessera.core.search import finish
from tessera.inspect import offline_cluster as inspected
from tessera.inspect import simulation
from tessera.inspect.dashboard import questions, server, steps
from tessera.inspect.dashboard.source import FixedSource
from tessera.inspect.manifests import Manifest, admit_copy, read_manifests
from tessera.inspect.offline_cluster import OfflineCluster, node_traits
from tessera.inspect.simulation import simulate
from tests.support.builders import cluster, gpu_pod, node
from tests.support.cluster_states import quota, state_of
from tests.support.page import HOST, Page, decoded, pods_of
from tests.unit.inspect.test_simulation import manifest

HOSTILE = '<img src=x onerror=alert(1)>"\u2028\x07' + "x" * 200


def pod_manifest(limits: dict[str, Any], kind: str = "Pod") -> str:
    spec: dict[str, Any] = {"containers": [{"name": "main", "resources": {"limits": limits}}]}
    if kind != "Pod":
        spec = {"replicas": 3, "template": {"spec": spec}}
    return json.dumps({"kind": kind, "metadata": {"name": "trial"}, "spec": spec})


@pytest.fixture
async def page() -> AsyncIterator[Page]:
    nodes = [node("n1").gpus(2, memory=24_000).cordon("n1-1"), node("n2").gpus(1, memory=24_000)]
    here = cluster(*nodes)
    held = here.start(gpu_pod("held", mem=4_000, cores=30), ["n1"])
    state = state_of(nodes, [held, gpu_pod("waits", mem=30_000)], quotas=[quota("poor", {"nvidia.com/gpumem": 1000})])
    page = Page(FixedSource(OfflineCluster(state)))
    yield page
    await page.server.close()


async def tried(page: Page, text: str | bytes) -> tuple[int, Any]:
    response = await page.ask("/api/whatif", method="POST", body=text if isinstance(text, bytes) else text.encode())
    return response.status, decoded(response)


def lines(document: Any) -> str:
    return "\n".join(line["text"] for line in document["lines"])


async def test_a_card_is_told_with_its_holders_and_its_state(page: Page) -> None:
    first = await page.get("/api/card?node=n1&card=n1-0")
    assert "default/held 4000" in lines(first)
    assert first["facts"]["freeMemory"] == "20000 MiB"
    assert (await page.get("/api/card?node=n1&card=n1-1"))["facts"]["cordoned"] == "yes"


async def test_a_node_is_told_with_all_its_cards(page: Page) -> None:
    found = await page.get("/api/node?name=n1")
    assert (found["facts"]["cards"], found["facts"]["closedCards"], found["facts"]["pods"]) == (2, 1, 1)
    assert lines(found).count("n1-") == 2


async def test_a_pod_is_told_as_explain_tells_it(page: Page) -> None:
    assert "placed on n1" in lines(await page.get("/api/pod?namespace=default&name=held"))
    waits = await page.get("/api/pod?namespace=default&name=waits")
    assert "Any one of these changes would make it fit" in lines(waits)
    assert waits["facts"]["verdict"] == "Refused"
    assert waits["history"] == []


@pytest.mark.parametrize(
    "target", ["card?node=n1&card=x", "card", "node?name=x", "node", "pod?namespace=a&name=b", "pod"]
)
async def test_what_does_not_exist_is_not_found(page: Page, target: str) -> None:
    response = await page.ask(f"/api/{target}")
    assert response.status == 404
    assert decoded(response)["error"]


@pytest.mark.parametrize("target", ["state?time=5", "card?node=n1&card=n1-0&time=5", "journal", "pod?name=held&time=1"])
async def test_without_a_journal_there_is_no_past(page: Page, target: str) -> None:
    response = await page.ask(f"/api/{target}")
    assert (response.status, "no journal" in decoded(response)["error"]) == (400, True)


async def test_a_manifest_is_told_where_it_would_go_and_how_many_fit(page: Page) -> None:
    status, found = await tried(page, pod_manifest({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 10_000}))
    assert status == 200
    (one,) = found["pods"]
    assert (one["fits"], one["node"], one["cards"]) == (True, "n1", ["n1-0"])
    assert found["more"] == 4
    assert "needs 10000 MiB; the most free on one card is 4000 of 24000 MiB" in found["stops"]


async def test_all_copies_of_a_workload_are_tried(page: Page) -> None:
    status, found = await tried(page, pod_manifest({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 15_000}, "Deployment"))
    assert status == 200
    assert [one["fits"] for one in found["pods"]] == [True, True, False]
    full = "not enough free memory on the card"
    assert found["pods"][-1]["why"] == (
        f"1 of 2 nodes: {full}; 1 of 2 nodes: an administrator closed the card to new pods; {full}"
    )
    assert found["more"] == 2


async def test_a_quota_stops_a_copy_as_it_would_stop_a_pod(page: Page) -> None:
    poor = json.loads(pod_manifest({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 2_000}))
    poor["metadata"]["namespace"] = "poor"
    _, found = await tried(page, json.dumps(poor))
    assert found["pods"][0]["fits"] is False
    assert found["more"] == 0


async def test_trying_changes_nothing(page: Page) -> None:
    ledger = page.state.source.ledger
    before, position = ledger.state(), ledger.arrays.now
    text = pod_manifest({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 10_000})
    first = await tried(page, text)
    assert await tried(page, text) == first
    assert (ledger.state(), ledger.arrays.now) == (before, position)


async def test_the_page_and_the_command_simulate_alike(page: Page) -> None:
    source = page.state.source
    assert isinstance(source, FixedSource)
    _, found = await tried(page, pod_manifest({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 7_000}))
    command = simulate(source.cluster, manifest(gpu=1, mem=7_000))
    assert (found["more"], found["stops"]) == (command.fits_in_all, command.stop and command.stop.text)
    assert found["pods"][0]["node"] == command.placed[0].node


async def test_a_manifest_without_cards_is_no_question(page: Page) -> None:
    _, found = await tried(page, pod_manifest({"cpu": 1}))
    assert (found["pods"], found["more"]) == ([], None)


BOMB = "a: &a [x, x]\nb: &b [*a, *a]\nkind: Pod\nspec: {containers: [*b]}"


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff\xfe",
        b"{",
        b"[1, 2",
        b"- - - -",
        b"- " * 5_000,
        b"just a word",
        b"kind: Pod",
        b"kind: Pod\nspec: {containers: main}",
        b"kind: Pod\nspec: {nodeSelector: word, containers: [{name: a, resources: {limits: {nvidia.com/gpu: 1}}}]}",
        b"kind: Pod\nspec: {tolerations: 5, containers: [{name: a, resources: {limits: {nvidia.com/gpu: 1}}}]}",
        b"kind: Deployment\nspec: {replicas: many, template: {spec: {containers: [{}]}}}",
        b"kind: Deployment\nspec: {replicas: -1, template: {spec: {containers: [{}]}}}",
        b"kind: Deployment\nspec: {replicas: 1000000000, template: {spec: {containers: [{}]}}}",
        b"kind: List\nitems: 5",
        BOMB.encode(),
        b"---\nkind: Pod\nspec: {containers: [{}]}\n" * 21,
        b"!!python/object/apply:os.system ['true']",
        b"2001-99-99",
        b"kind: JobSet\nspec: {replicatedJobs: [{replicas: x, template: {spec: {parallelism: 1}}}]}",
        b"kind: JobSet\nspec: [1]",
        b"kind: JobSet\nmetadata: [1]\nspec: {replicatedJobs: [{template: {spec: {}}}]}",
        b"kind: JobSet\nspec: {replicatedJobs: 7}",
        b"kind: JobSet\nspec: {replicatedJobs: [{template: [1]}]}",
        b"kind: JobSet\nspec: {}",
        pod_manifest({"nvidia.com/gpu": 1}).replace("trial", "\\ud800").encode(),
    ],
)
async def test_nonsense_is_a_mistake_of_its_author_and_gets_a_sentence(page: Page, text: bytes) -> None:
    status, found = await tried(page, text)
    assert (status, list(found)) == (400, ["error"])
    assert found["error"]


async def test_brackets_are_counted_before_the_parser_looks_for_keys_in_all_of_them(page: Page) -> None:
    status, found = await tried(page, b"[" * 5_000)
    assert (status, "nested more than 100 levels deep" in found["error"]) == (400, True), found


class Slowly:
    """Work that takes until it is released, for one caller at a time."""

    def __init__(self) -> None:
        self.release, self.running = asyncio.Event(), 0

    async def __call__(self, *_: object) -> Any:
        self.running += 1
        assert self.running == 1
        await self.release.wait()
        self.running -= 1
        return {}


async def test_questions_are_answered_one_at_a_time_and_only_so_many_wait(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "MAX_QUESTIONS", 2)
    slow = Slowly()
    monkeypatch.setattr(page.state.source, "explain", slow)
    waiting = [asyncio.create_task(page.ask("/api/pod?namespace=a&name=b")) for _ in range(2)]
    await asyncio.sleep(0)
    refused = await page.ask("/api/pod?namespace=a&name=b")
    assert (refused.status, "try again" in decoded(refused)["error"]) == (503, True)
    monkeypatch.setattr(page.state.source, "explain", Slowly())
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_each_user_tries_one_manifest_at_a_time_and_only_so_many_wait(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "MAX_TRIALS", 2)
    slow, users = Slowly(), iter(["ada", "ada", "bob", "cyd", "ada"])
    monkeypatch.setattr(server, "try_manifests", slow)
    monkeypatch.setattr(page.access, "user_of", lambda _: next(users))
    first = asyncio.create_task(tried(page, "x"))
    await asyncio.sleep(0)
    status, found = await tried(page, "x")
    assert (status, "your last question" in found["error"]) == (503, True)
    second = asyncio.create_task(tried(page, "x"))
    await asyncio.sleep(0)
    status, found = await tried(page, "x")
    assert (status, "many questions" in found["error"]) == (503, True)
    assert (await page.ask("/api/node?name=unknown")).status == 404, "other questions do not wait for them"
    slow.release.set()
    assert [status for status, _ in await asyncio.gather(first, second)] == [200, 200]
    assert (await tried(page, "x"))[0] == 200


def copies(*numbers: int, **spec: object) -> str:
    container = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1}}}
    template = {"spec": {"containers": [container], **spec}}
    found = [
        {"kind": "Deployment", "metadata": {"name": f"d{i}"}, "spec": {"replicas": number, "template": template}}
        for i, number in enumerate(numbers)
    ]
    return "---\n".join(json.dumps(one) + "\n" for one in found)


async def test_a_question_about_too_many_pods_is_refused_with_another_way_to_ask(page: Page) -> None:
    status, found = await tried(page, copies(500, 501))
    assert status == 400
    assert "1001 pods; at most 1000" in found["error"]
    assert "tessera simulate pod" in found["error"]


async def test_a_question_that_takes_too_long_is_refused_and_the_next_one_is_answered(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "SLICE_S", 0.0)
    monkeypatch.setattr(questions, "MAX_S", 0.0)
    status, found = await tried(page, copies(3))
    assert (status, "tessera simulate pod" in found["error"]) == (400, True)
    monkeypatch.undo()
    assert (await tried(page, copies(3)))[0] == 200


async def test_only_what_is_left_beside_the_last_manifest_is_counted(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    admitted: list[str] = []

    def counted(cluster: OfflineCluster, manifest: Manifest, number: int) -> Any:
        admitted.append(manifest.name)
        return admit_copy(cluster, manifest, number)

    monkeypatch.setattr(simulation, "admit_copy", counted)
    status, found = await tried(page, copies(1, 1))
    assert status == 200, found
    assert admitted.count("d0") == 1
    assert admitted.count("d1") > 1


async def test_only_so_many_viewers_are_connected(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_VIEWERS", 1)
    first = asyncio.create_task(page.ask("/api/state"))
    await asyncio.sleep(0)
    assert (await page.ask("/api/state")).status == 503
    assert (await first).status == 200
    assert (await page.ask("/api/state")).status == 200


@pytest.mark.parametrize("target", ["card?node=%s&card=%s", "node?name=%s", "pod?namespace=%s&name=%s"])
async def test_hostile_questions_come_back_as_json_only(page: Page, target: str) -> None:
    from urllib.parse import quote

    response = await page.ask("/api/" + target.replace("%s", quote(HOSTILE)))
    assert (response.status, response.content_type) == (404, "application/json")
    assert HOSTILE in decoded(response)["error"]
    assert b"\n" not in response.body
    assert b"\x07" not in response.body


async def test_hostile_names_of_a_cluster_are_json_strings() -> None:
    names = [HOSTILE, "\x00\x1b[2J", "</script>"]
    nodes = [node(name).gpus(1, model=name) for name in names]
    held = [cluster(one).start(gpu_pod(name, mem=1_000), [one.name]) for name, one in zip(names, nodes, strict=True)]
    page = Page(FixedSource(OfflineCluster(state_of(nodes, held))))
    try:
        state = await page.get("/api/state")
        assert set(state["nodes"]) == set(names)
        assert {card[2] for one in state["nodes"].values() for card in one["cards"]} == set(names)
        assert {pod[1] for pod in pods_of(state).values()} == set(names)
        response = await page.ask("/api/shapes")
        assert response.content_type == "application/json"
    finally:
        await page.server.close()


@pytest.mark.parametrize("target", ["/api/card", "/api/node", "/api/pod", "/api/shapes", "/api/journal"])
async def test_questions_need_the_token_too(page: Page, target: str) -> None:
    assert (await page.ask(target, headers={b"Host": HOST})).status == 401
    assert (await page.ask("/api/whatif", method="POST", body=b"x", headers={b"Host": HOST})).status == 401


async def test_a_query_with_too_many_fields_is_refused(page: Page) -> None:
    target = "/api/node?" + "&".join(f"a{number}=1" for number in range(40))
    assert (await page.ask(target)).status == 400


def test_a_manifest_is_bounded(page: Page) -> None:
    assert page.routes["POST", "/api/whatif"].max_body_bytes == server.MAX_MANIFEST_BYTES
    assert {route.max_body_bytes for (method, _), route in page.routes.items() if method == "GET"} == {0}


def gang(members: int) -> list[Manifest]:
    annotations = {"tessera.io/gang": "g", "tessera.io/gang-size": str(members)}
    container = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1}}}
    template = {"metadata": {"annotations": annotations}, "spec": {"containers": [container]}}
    document = {"kind": "Deployment", "metadata": {"name": "d"}, "spec": {"replicas": members, "template": template}}
    return read_manifests(json.dumps(document), file="f", namespace="default", count=None)


def test_the_nodes_of_a_gang_are_looked_at_once_and_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [node(f"n{number}").gpus(1) for number in range(20)]
    tried_on = OfflineCluster(state_of(nodes, []))
    looked_at = 0

    def counted(found: Any) -> Any:
        nonlocal looked_at
        looked_at += 1
        return node_traits(found)

    monkeypatch.setattr(inspected, "node_traits", counted)
    between = []
    for _ in simulation.simulate_gangs_in_steps(tried_on, gang(30)):
        between.append(looked_at)
    assert looked_at == len(nodes), "not once for each member"
    assert max(after - before for before, after in pairwise([0, *between])) <= 1


@pytest.mark.no_cover
def test_advice_comes_in_steps_of_bounded_work() -> None:
    nodes = [node(f"n{number}").gpus(8, memory=24_000) for number in range(20)]
    tried_on = OfflineCluster(state_of(nodes, []))
    containers = [
        {"name": f"c{i}", "resources": {"limits": {"nvidia.com/gpu": 8, "nvidia.com/gpumem": 13_000 + i}}}
        for i in range(2)
    ]
    document = json.dumps({"kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": containers}})
    [asked] = read_manifests(document, file="f", namespace="default", count=None)
    steps = 0

    def counted() -> Generator[None, None, simulation.Simulation]:
        nonlocal steps
        working = simulation.simulate_in_steps(tried_on, asked, work=10)
        while True:
            try:
                yield next(working)
            except StopIteration as end:
                return cast("simulation.Simulation", end.value)
            steps += 1

    assert finish(counted()) == simulate(OfflineCluster(state_of(nodes, [])), asked)
    assert steps > 100
