"""One log line per placement, refusal and denial.

A pod that is refused again for the same reason is not logged again: the line of its placement says how often it was
refused. Where the reason changes, it is logged only once the pod was refused twice as often as at its last line: in a
backlog the most frequent reason changes back and forth. Lines are made after the decision, by the thread that writes
them.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

import structlog

from tessera.core.model.grants import Placement
from tessera.core.model.misfits import Misfit
from tessera.core.model.requests import PodRequest
from tessera.core.search.selection import Refused, Selected
from tessera.scheduler.observer import BindDecision, FilterDecision, SchedulerObserver
from tessera.services.logs import deferral
from tessera.wire.objects import Pod

log = structlog.get_logger(__name__)

REMEMBERED = 16_384
"""refused pods; one that is forgotten is logged again"""


class LoggedRefusal(NamedTuple):
    reason: str
    refusals: int


class DecisionLog(SchedulerObserver):
    """Logs the decisions of one scheduler."""

    def __init__(self) -> None:
        self._defer = deferral()
        self._refused: OrderedDict[str, LoggedRefusal] = OrderedDict()
        """by uid, the last line"""

    def on_filter_decision(self, event: FilterDecision) -> None:
        answer, refusals = event.answer, event.refusals
        if isinstance(answer, Selected):
            if refusals:
                self._refused.pop(event.request.uid, None)
            self._defer(_log_placed, event.request, answer.placement, refusals)
        elif isinstance(answer, Refused) and self._is_news(event.request.uid, answer, refusals):
            self._defer(_log_refused, event.request, answer, refusals)

    def on_bind_decision(self, event: BindDecision) -> None:
        if not isinstance(event.answer, Misfit):
            self._refused.pop(event.request.uid, None)
        self._defer(_log_bind, event)

    def on_denied(self, namespace: str, name: str, message: str) -> None:
        log.info("pod denied", pod=f"{namespace}/{name}", reason=message)

    def on_pod(self, uid: str, pod: Pod | None) -> None:
        if pod is None:
            self._refused.pop(uid, None)

    def _is_news(self, uid: str, refused: Refused, refusals: int) -> bool:
        known, reason = self._refused.get(uid), _reason(refused)
        if known is not None and (known.reason == reason or refusals < 2 * known.refusals):
            return False
        self._refused[uid] = LoggedRefusal(reason, refusals)
        self._refused.move_to_end(uid)
        if len(self._refused) > REMEMBERED:
            self._refused.popitem(last=False)
        return True


def _log_placed(request: PodRequest, placement: Placement, refusals: int) -> None:
    pod, score = f"{request.namespace}/{request.name}", round(placement.score, 3)
    more = {"refusals": refusals} if refusals else {}
    log.info("pod placed", pod=pod, node=placement.node, score=score, **more)


def _log_refused(request: PodRequest, refused: Refused, refusals: int) -> None:
    pod, nodes = f"{request.namespace}/{request.name}", sum(count for _, count in refused.verdicts)
    log.info("pod refused", pod=pod, reason=_reason(refused), nodes=nodes, refusals=refusals)


def _log_bind(event: BindDecision) -> None:
    pod, answer = f"{event.request.namespace}/{event.request.name}", event.answer
    if isinstance(answer, Misfit):
        log.info("pod refused", pod=pod, node=event.node, reason=answer.text)
    else:
        log.info("pod placed", pod=pod, node=event.node)


def _reason(refused: Refused) -> str:
    """The most frequent one."""
    counts = refused.reason_counts
    return counts[0][0] if counts else ""
