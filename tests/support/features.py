"""The parts of an engine's features that tests look into."""

from __future__ import annotations

from tessera.core.steps import finish
from tessera.scheduler.engine import Engine
from tessera.scheduler.features.claims.feature import Claims
from tessera.scheduler.features.gangs.feature import Gangs
from tessera.scheduler.features.gangs.preemptor import GangPreemptor
from tessera.scheduler.features.moves.feature import Moves
from tessera.scheduler.features.preemption.feature import PodPreemption
from tessera.scheduler.features.preemption.preemptor import Preemptor


def claims_of(engine: Engine) -> Claims:
    return engine.feature(Claims)


def gangs_of(engine: Engine) -> Gangs:
    return engine.feature(Gangs)


def tick_gangs(engine: Engine) -> None:
    """What a tick does to gangs, at once."""
    finish(engine.feature(Gangs)._tick())


def gang_preemptor_of(engine: Engine) -> GangPreemptor:
    return engine.feature(Gangs).preemptor


def moves_of(engine: Engine) -> Moves:
    return engine.feature(Moves)


def preemptor_of(engine: Engine) -> Preemptor:
    return engine.feature(PodPreemption).preemptor
