"""Random lives of a cluster: the model-based test of the scheduler's decisions.

After every step nothing is over-allocated, the ledger is what the API objects give, and every bound pod has exactly one
allocation; at rest nothing is left behind and no pod waits beside room. `MODEL_STEPS` (100000) says how many steps in
all, `MODEL_SEED` (1) with which life to begin. A life that fails says how to live it again.
"""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Iterator

import pytest
import structlog

from tests.model.profiles import PROFILES
from tests.model.simulation import Simulation
from tests.model.virtual_time import run

STEPS = int(os.environ.get("MODEL_STEPS", "100000"))
SEED = int(os.environ.get("MODEL_SEED", "1"))
LIFE = 2000
"""steps"""


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Thousands of warnings about faults that are meant would only cost time."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.reset_defaults()


@pytest.mark.parametrize("name", PROFILES)
def test_whatever_happens_nothing_is_over_allocated_or_left_behind(name: str) -> None:
    left, seed = STEPS // len(PROFILES), SEED
    while left > 0:
        live(name, seed, min(LIFE, left))
        left -= LIFE
        seed += 1


def live(name: str, seed: int, steps: int) -> None:
    random.seed(seed)  # binding adds jitter to its pauses

    async def main() -> None:
        life = Simulation(seed, PROFILES[name])
        try:
            await life.run(steps)
        except Exception as error:
            error.add_note("\n".join(life.trace))
            error.add_note(f"again: MODEL_SEED={seed} MODEL_STEPS={LIFE * len(PROFILES)} pytest tests/model -k {name}")
            raise

    run(main())
