"""The text is kept and mended, and written in small pieces."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tessera.core.model.devices import NodeFacts
from tessera.scheduler.metrics import exposition as module
from tessera.scheduler.metrics.exposition import Exposition
from tests.support.builders import cluster, gpu_pod, node
from tests.support.metric_samples import shown


async def test_what_changed_between_two_scrapes_is_shown() -> None:
    world = cluster(node("n1").gpus(1), node("n2").gpus(1))
    exposition = Exposition(world.ledger)
    family = ("hami_gpu_shared_count", "node")
    assert await shown(exposition, *family) == {"n1": 0, "n2": 0}
    world.observe(gpu_pod("p").on("n2", "n2-0,NVIDIA,1,1:;"))
    assert await shown(exposition, *family) == {"n1": 0, "n2": 1}
    world.ledger.forget_node("n2")
    world.add(node("n3").gpus(1))
    assert await shown(exposition, *family) == {"n1": 0, "n3": 0}
    world.ledger.observe_node(NodeFacts("n3"))
    assert await shown(exposition, *family) == {"n1": 0}


@pytest.fixture
def _tiny_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RENDER_BYTES", 1)
    monkeypatch.setattr(module, "JOIN_BYTES", 1)


@pytest.mark.usefixtures("_tiny_pieces")
async def test_the_loop_has_its_turn_between_pieces() -> None:
    world = cluster(*(node(f"n{i}").gpus(1) for i in range(50)))
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    text = await Exposition(world.ledger).render()
    counting.cancel()
    assert turns >= 50 + 7 * 50
    assert text == await Exposition(world.ledger).render()


@pytest.mark.usefixtures("_tiny_pieces")
async def test_a_node_that_changes_or_goes_in_the_middle_is_shown_as_it_was_at_one_moment() -> None:
    world = cluster(*(node(f"n{i}").gpus(1) for i in range(4)))
    exposition = Exposition(world.ledger)
    stream = exposition.stream()
    pieces = [await anext(stream)]
    world.observe(gpu_pod("p").on("n3", "n3-0,NVIDIA,5,5:;"))
    world.ledger.forget_node("n2")
    pieces += [piece async for piece in stream]
    text = b"".join(pieces).decode()
    values = {
        (one.name, one.labels["node"]): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }
    assert {values["hami_gpu_shared_count", f"n{i}"] for i in range(4)} == {0}
    assert ("hami_vgpu_core_allocated_ratio", "n3") not in values
    assert await shown(exposition, "hami_gpu_shared_count", "node") == {"n0": 0, "n1": 0, "n3": 1}


@pytest.mark.usefixtures("_tiny_pieces")
@pytest.mark.parametrize("known_before", [False, True])
async def test_a_node_that_goes_while_others_are_written_is_left_out(known_before: bool) -> None:
    world = cluster(*(node(f"n{i}").gpus(1) for i in range(4)))
    exposition = Exposition(world.ledger)
    if known_before:
        await exposition.render()
        world.observe(*(gpu_pod(f"p{i}").on(f"n{i}", f"n{i}-0,NVIDIA,5,5:;") for i in range(4)))
    first = asyncio.create_task(shown(exposition, "hami_gpu_shared_count", "node"))
    await asyncio.sleep(0)
    for name in ("n0", "n1", "n2", "n3"):
        world.ledger.forget_node(name)
    assert len(await first) <= 2
    assert await shown(exposition, "hami_gpu_shared_count", "node") == {}


@pytest.mark.usefixtures("_tiny_pieces")
async def test_several_scrapes_at_a_time_are_all_complete() -> None:
    world = cluster(*(node(f"n{i}").gpus(2) for i in range(20)))
    exposition = Exposition(world.ledger)
    answers = await asyncio.gather(*(exposition.render() for _ in range(3)))
    assert set(answers) == {await Exposition(world.ledger).render()}
