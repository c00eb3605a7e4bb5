"""Random lives of a cluster: after every step nothing is over-allocated, and the ledger is what the API shows."""

from __future__ import annotations

import os
import random

import pytest

from tests.model.faults import Fault
from tests.model.life import Life, Profile
from tests.model.virtual_time import run

STEPS = int(os.environ.get("MODEL_STEPS", "100000"))
SEED = int(os.environ.get("MODEL_SEED", "1"))
LIFE = 2000
"""steps"""

PROFILES = {
    "usual": Profile(),
    "faults": Profile(faults=0.4, weights={"give_up_bind": 3.0}),
    "unanswered": Profile(
        faults=0.6,
        kinds_of_faults=(Fault.LOST, Fault.UNHEARD, Fault.LATE, Fault.LATE, Fault.SLOW),
        nodes=3,
        weights={"give_up_bind": 4.0, "pass_time": 12.0, "end_pod": 4.0, "delete_pod": 5.0},
    ),
    "restarts": Profile(faults=0.2, weights={"restart": 2.0, "deliver_quotas": 4.0, "list_again": 2.0}),
    "locks": Profile(
        faults=0.2,
        nodes=3,
        kinds=("gpu", "gpu and mlu", "xpu"),
        agents=(None, None, "cdi"),
        weights={"end_handover": 16.0, "change_plugin": 0.1, "pass_time": 14.0},
    ),
    "mig": Profile(
        nodes=3,
        kinds=("mig", "mig", "gpu"),
        recipes=("small", "medium", "memory only!", "mig small", "mig large", "mig several", "two cards", "init"),
        weights={"end_init": 4.0, "change_card": 2.0},
    ),
    "lag": Profile(
        nodes=2,
        kinds=("gpu",),
        weights={
            "deliver_pods": 5.0,
            "deliver_nodes": 2.0,
            "deliver_to_kube": 8.0,
            "delete_pod": 8.0,
            "end_pod": 4.0,
            "list_again": 2.0,
        },
    ),
}


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
