"""The parts of an engine's features that tests look into."""

from __future__ import annotations

from tessera.scheduler.engine import Engine
from tessera.scheduler.features.claims.feature import Claims
from tessera.scheduler.features.gangs.coordinator import GangCoordinator
from tessera.scheduler.features.gangs.feature import Gangs
from tessera.scheduler.features.gangs.preemptor import GangPreemptor
from tessera.scheduler.features.preemption.feature import PodPreemption
from tessera.scheduler.features.preemption.preemptor import Preemptor


def claims_of(engine: Engine) -> Claims:
    return engine.feature(Claims)


def gangs_of(engine: Engine) -> GangCoordinator:
    return engine.feature(Gangs).coordinator


def gang_preemptor_of(engine: Engine) -> GangPreemptor:
    return engine.feature(Gangs).preemptor


def preemptor_of(engine: Engine) -> Preemptor:
    return engine.feature(PodPreemption).preemptor
