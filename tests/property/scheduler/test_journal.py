"""Random lives of the real engine, recorded by its journal, replay to equal decisions and the same ledger.

The journal is so small that records leave it all the time. A follower replays every record as it comes; a reading at
any time replays by itself.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tessera.inspect.replay import JournalReplay
from tessera.scheduler.configuration import chart_sections
from tessera.wire.journal import Placed, Refused
from tests.support.builders import A100_40GB, NodeBuilder, PodBuilder, gpu_pod, node, pod
from tests.support.event_loops import in_fake_time
from tests.support.journals import JournalledWorld, assert_same_ledger, records_of, replayed
from tests.support.stepwise_scheduler import serving_downward_api, using_downward_api

STEPS = 25
READ_EVERY = 6
MEMORY = 25_000
"""bytes: some twenty records"""
NODES = [f"n{number}" for number in range(6)]
POLICIES = ("binpack", "spread", "fragmentation")
HOST = {"cpu": "32", "memory": "64Gi"}


@st.composite
def machines(draw: st.DrawFn, name: str) -> NodeBuilder:
    built = node(name).capacity(**HOST)
    cards = draw(st.integers(1, 4))
    if draw(st.booleans()):
        built = built.gpus(cards, memory=draw(st.sampled_from((16_000, 80_000))), model=draw(st.sampled_from("AB")))
    else:
        built = built.gpus(cards, memory=40_320, mode="mig", profiles=A100_40GB)
    return serving_downward_api(built if draw(st.integers(0, 4)) else built.cordon(f"{name}-0"))


@st.composite
def pods(draw: st.DrawFn, name: str) -> PodBuilder:
    mem, gpu = draw(st.sampled_from((500, 9_000, 30_000, 10**6))), draw(st.integers(1, 3))
    asked = gpu_pod(name, mem=mem, gpu=gpu, cores=draw(st.sampled_from((0, 10, 100))))
    if draw(st.integers(0, 5)) == 0:
        asked = pod(name).init(gpu=1, mem=mem).container(gpu=1, mem=100)
    if draw(st.booleans()):
        asked = asked.policy(node=draw(st.sampled_from(POLICIES)), device=draw(st.sampled_from(POLICIES)))
    return using_downward_api(asked)


@given(st.data())
def test_every_life_replays_equal_and_so_does_every_reading_of_it(data: st.DataObject) -> None:
    live(data)


@in_fake_time
async def live(data: st.DataObject) -> None:
    draw = data.draw
    policy = draw(st.sampled_from(POLICIES))
    names = draw(st.lists(st.sampled_from(NODES), min_size=2, unique=True))
    world = JournalledWorld(
        *(draw(machines(name)) for name in names), memory=MEMORY, node_policy=policy, device_policy=policy
    )
    followed = JournalReplay()
    task = asyncio.create_task(follow(world, followed))
    known: dict[str, PodBuilder] = {}
    for step in range(STEPS):
        action = draw(
            st.sampled_from(
                ("place", "place", "place", "again", "bind", "bind", "delete", "end", "node", "gone", "lead", "expire")
            )
        )
        name = draw(st.sampled_from(sorted(known))) if known else ""
        match action:
            case "place":
                asked = known[f"p{step}"] = draw(pods(f"p{step}"))
                world.create(asked)
                world.filtered(asked, draw(st.lists(st.sampled_from([*NODES, "none"]), min_size=1, unique=True)))
            case "again" if name:
                world.filtered(known[name])
            case "bind" if name:
                await world.bound(known[name], draw(st.sampled_from(NODES)))
                world.watch()
            case "delete" | "end" if name:
                asked = known.pop(name)
                if action == "delete":
                    world.api.delete_pod(f"default/{name}")
                else:
                    world.api.add_pod(asked.ended())
                world.watch()
            case "node":
                world.api.add_node(draw(machines(draw(st.sampled_from(NODES)))))
                world.watch()
            case "gone" if world.api.nodes:
                world.api.delete_node(draw(st.sampled_from(sorted(world.api.nodes))))
                world.watch()
            case "lead":
                world.lead_again()
            case "expire":
                await asyncio.sleep(400.0)
                world.engine.tick()
        if draw(st.integers(0, 15)) == 0:
            changed = msgspec.structs.replace(chart_sections()["nvidia"], default_cores=step)
            world.reload(replace(world.settings, device_sections=chart_sections() | {"nvidia": changed}))
        if draw(st.booleans()):
            await asyncio.sleep(1.0)  # The follower catches up.
        if step % READ_EVERY == 0:
            assert_same_ledger(replayed(records_of(world.journal)), world.ledger)
    world.journal.close()
    await task
    assert_same_ledger(followed, world.ledger)


async def follow(world: JournalledWorld, replay: JournalReplay) -> None:
    async for record in world.journal.read(follow=True):
        assert replay.check(record) is None
        assert not isinstance(record, (Placed, Refused)) or record.candidates is not None
