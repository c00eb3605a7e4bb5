"""Random lives of a cluster: after every step nothing is over-allocated, and the ledger is what the API shows."""

from __future__ import annotations

import os
import random

import pytest

from tests.model.life import Life, Profile
from tests.model.virtual_time import run

STEPS = int(os.environ.get("MODEL_STEPS", "100000"))
SEED = int(os.environ.get("MODEL_SEED", "1"))
LIFE = 2000
"""steps"""

PROFILES = {"usual": Profile()}


@pytest.mark.parametrize("name", PROFILES)
def test_random_lives(name: str) -> None:
    left = STEPS // len(PROFILES)
    seed = SEED
    while left > 0:
        live(seed, PROFILES[name], min(LIFE, left))
        left -= LIFE
        seed += 1


def live(seed: int, profile: Profile, steps: int) -> None:
    random.seed(seed)  # binding adds jitter to its pauses

    async def main() -> None:
        life = Life(seed, profile)
        try:
            await life.run(steps)
        except BaseException as error:
            last = "\n".join(life.trace)
            error.add_note(f"{last}\nMODEL_SEED={seed}")
            raise

    run(main())
