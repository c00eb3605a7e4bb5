"""The features of the scheduler. Their order is that in which each point asks them.

Gangs come before claims: the plan of a gang has a place for a member whatever its claims ask for.
"""

from __future__ import annotations

from collections.abc import Callable

from tessera.scheduler.features.claims.feature import Claims
from tessera.scheduler.features.gangs.feature import Gangs
from tessera.scheduler.features.moves.feature import Moves
from tessera.scheduler.features.preemption.feature import PodPreemption
from tessera.scheduler.framework import Feature, Pipeline

FEATURES: tuple[Callable[[Pipeline], Feature], ...] = (Gangs, Claims, Moves, PodPreemption)
