"""The parts of an engine's features that tests look into."""

from __future__ import annotations

from tessera.core.search import finish
from tessera.scheduler.engine import Engine
from tessera.scheduler.eviction.preemption_loop import PreemptionLoop, Preemptor
from tessera.scheduler.features.claims.feature import Claims
from tessera.scheduler.features.gangs.feature import Gangs
from tessera.scheduler.features.gangs.gang import Gang
from tessera.scheduler.features.gangs.preemption import gang_priority
from tessera.scheduler.features.moves.feature import Moves
from tessera.scheduler.features.preemption.feature import PodPreemption
from tessera.scheduler.features.preemption.preemptor import PodPreemptors
from tessera.scheduler.queue.unschedulable_pods import UnschedulablePod


def claims_of(engine: Engine) -> Claims:
    return engine.feature(Claims)


def gangs_of(engine: Engine) -> Gangs:
    return engine.feature(Gangs)


def tick_gangs(engine: Engine) -> None:
    """What a tick does to gangs, at once."""
    finish(engine.feature(Gangs)._tick())


def moves_of(engine: Engine) -> Moves:
    return engine.feature(Moves)


def preemption_loop_of(engine: Engine) -> PreemptionLoop:
    return engine.feature(PodPreemption).loop


def pod_preemptors_of(engine: Engine) -> PodPreemptors:
    return engine.feature(PodPreemption).pods


def preemptor_of(engine: Engine, waiting: UnschedulablePod | Gang) -> Preemptor:
    """A refused pod, or a gang, as the loop sees it."""
    if isinstance(waiting, Gang):
        return engine.feature(Gangs).preemptor(waiting, gang_priority(waiting) or 0)
    return pod_preemptors_of(engine).of(waiting)


async def preempt_for(engine: Engine, waiting: UnschedulablePod | Gang) -> None:
    await preemption_loop_of(engine).preempt(preemptor_of(engine, waiting))
