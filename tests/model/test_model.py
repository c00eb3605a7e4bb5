"""Random lives of a cluster: the model-based test of the scheduler's decisions.

After every step nothing is over-allocated, the ledger is what the API objects give, and every bound pod has exactly one
allocation; at rest nothing is left behind and no pod waits beside room. `MODEL_STEPS` (12000) says how many steps in
all, `MODEL_SEED` (1) with which life to begin, `MODEL_RACES` (0) how many races for nominated devices there are at
least: filter calls about nodes with devices that are claimed by other pods. A life that fails says how to live it
again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Generator, Iterator

import pytest
import structlog

from tessera.scheduler.eviction.preemption_loop import finish_in_slices
from tests.model.profiles import PROFILES
from tests.model.simulation import Simulation
from tests.model.virtual_time import run

STEPS = int(os.environ.get("MODEL_STEPS", "12000"))
SEED = int(os.environ.get("MODEL_SEED", "1"))
RACES = int(os.environ.get("MODEL_RACES", "0"))
LIFE = 2000
"""steps"""
TELLING_STEPS = 4000
"""of one profile: in fewer, a rare event may be missing by chance"""


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Thousands of warnings about faults that are meant would only cost time."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.reset_defaults()


@pytest.mark.parametrize("name", PROFILES)
def test_whatever_happens_nothing_is_over_allocated_or_left_behind(name: str) -> None:
    steps = left = STEPS // len(PROFILES)
    seed = SEED
    races, went_beside = RACES if name == "preemption" else 0, 0
    while left > 0 or races > 0:
        life = live(name, seed, min(LIFE, left) if left > 0 else LIFE)
        races -= life.api.races
        went_beside += life.api.went_beside
        left -= LIFE
        seed += 1
    must_go_beside = name == "preemption" and steps >= TELLING_STEPS
    assert went_beside or not must_go_beside, "no pod went in beside claimed devices"


def test_searches_pause_at_the_same_steps_in_each_life() -> None:
    """Real time would pause them somewhere else each time, and a fault could not be lived again."""

    async def pauses() -> list[int]:
        done, found = 0, list[int]()

        def search() -> Generator[None, None, None]:
            nonlocal done
            while done < 100:
                done += 1
                yield

        async def look() -> None:
            while done < 100:
                found.append(done)
                await asyncio.sleep(0)

        beside = asyncio.create_task(look())
        await finish_in_slices(search(), seconds=0.002)
        await beside
        return found

    first, second = run(pauses()), run(pauses())
    assert first == second
    assert len(first) > 5


def live(name: str, seed: int, steps: int) -> Simulation:
    random.seed(seed)  # binding adds jitter to its pauses

    async def main() -> Simulation:
        life = Simulation(seed, PROFILES[name])
        try:
            await life.run(steps)
        except Exception as error:
            error.add_note("\n".join(life.trace))
            error.add_note(f"again: MODEL_SEED={seed} MODEL_STEPS={LIFE * len(PROFILES)} pytest tests/model -k {name}")
            raise
        return life

    return run(main())
