"""How much of a free part of a card will never be sold, if pods keep coming as they do.

`waste_table` answers for every free memory and free cores, in `GRAIN` steps. A part that no slice fits is all waste.
Where slices fit, the next one that comes takes its room and the rest is judged again; with a small chance (`NOBODY`)
nobody comes and the part stays as it is. Depends on the outlook alone, never on a node.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from tessera.core.demand_forecast import GRAIN, DemandForecast
from tessera.core.policies.base import Floats

NOBODY = 0.02
"""weight of the case that no pod comes for a part, against 1 for all pods together"""


@lru_cache(maxsize=8)
def waste_table(outlook: DemandForecast) -> Floats:
    """By free memory and free cores, both 0 to `GRAIN`: the expected waste, in cards."""
    steps = np.arange(GRAIN + 1)
    # `DemandForecast.worth` of all parts at once.
    worth = (outlook.memory_part * steps[:, None] + (1.0 - outlook.memory_part) * steps) / GRAIN
    table: Floats = np.zeros_like(worth)
    for memory in steps.tolist():
        chance = np.full(GRAIN + 1, NOBODY)
        waste = NOBODY * worth[memory]
        for part in outlook.slices:
            if part.memory <= memory:
                chance[part.cores :] += part.weight
                waste[part.cores :] += part.weight * table[memory - part.memory, : GRAIN + 1 - part.cores]
        table[memory] = waste / chance
    table.flags.writeable = False
    return table


@lru_cache(maxsize=8)
def waste_rows(outlook: DemandForecast) -> list[list[float]]:
    """The same as plain numbers, for those who look up a few; not to be changed."""
    rows: list[list[float]] = waste_table(outlook).tolist()
    return rows
