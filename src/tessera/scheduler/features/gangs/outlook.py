"""Which gangs can never fit: judged one after the other, in slices, and said in the refusals of their members.

A gang is judged once it is complete and does not fit, and again after `VALID_S` or when nodes, quotas or its
members have changed. A judgement takes up to half a second of processor time on large clusters, so `PAUSE_S` lie
between two of them; namespaces take turns.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

from tessera.core.empty_cluster import EmptyCluster
from tessera.core.gang_trial import GangMember
from tessera.scheduler.features.gangs.gang import Gang, GangState, Outlook
from tessera.scheduler.pod_cycle import PodCycles
from tessera.scheduler.preemption_loop import finish_in_slices
from tessera.scheduler.unschedulable_pods import MAX_WORK

PAUSE_S = 5.0
VALID_S = 300.0
SLICE_S = 0.005
REMEMBERED_S = 3600.0


class GangOutlook:
    """Finds gangs that would not fit an empty cluster either."""

    def __init__(self, cycles: PodCycles) -> None:
        self._cycles = cycles
        self._cluster: EmptyCluster | None = None
        self._not_before = -math.inf
        self._last: dict[str, float] = {}
        """namespace -> when one of its gangs was judged last"""

    def fits(self, gang: Gang) -> bool:
        """Whether it is known that the gang would fit if all other pods were gone."""
        return self._is_known(gang) and gang.outlook is not None and not gang.outlook.shortage

    def shortage(self, gang: Gang) -> str:
        """Why it can never fit; empty if it can, or is not judged."""
        return gang.outlook.shortage if self._is_known(gang) and gang.outlook is not None else ""

    def is_wanted(self, gang: Gang) -> bool:
        """Whether the gang is to be judged: it is complete, does not fit, and nothing is known of it."""
        return (
            gang.state is GangState.WAITING
            and gang.fitting is not None
            and not (self._is_known(gang) and gang.outlook is not None and self._now() < gang.outlook.until)
            and gang.present() >= gang.required
        )

    async def judge(self, gangs: Sequence[Gang]) -> None:
        """One of these, of the namespace that has waited longest for it, unless the last judgement was a moment ago."""
        now = self._now()
        if not gangs or now < self._not_before:
            return
        self._last = {name: at for name, at in self._last.items() if at > now - REMEMBERED_S}
        gang = min(gangs, key=lambda gang: (self._last.get(gang.namespace, -math.inf), gang.since))
        if self._cluster is None:
            self._cluster = EmptyCluster(self._cycles.ledger)
        self._not_before, self._last[gang.namespace] = math.inf, now
        state, members = self._state(gang), gang.pending()
        placed = gang.present() - len(members)
        asking = [GangMember(member.request, member.candidates) for member in members[: gang.group.size]]
        required = min(max(gang.required - placed, 0), len(asking))
        try:
            steps = self._cluster.shortage(asking, required=required, work=MAX_WORK)
            shortage = await finish_in_slices(steps, seconds=SLICE_S)
        finally:
            self._not_before = self._now() + PAUSE_S
        gang.outlook = Outlook(shortage, state, self._now() + VALID_S)
        gang.tried = None  # The next plan says so.

    def forget(self) -> None:
        """The vendors have changed."""
        self._cluster = None

    def end_if_idle(self) -> None:
        """A copy of the cluster is kept only while gangs are judged."""
        if self._now() > self._not_before + VALID_S:
            self._cluster = None

    def _is_known(self, gang: Gang) -> bool:
        known = gang.outlook
        return known is not None and known.state == self._state(gang)

    def _state(self, gang: Gang) -> Hashable:
        ledger = self._cycles.ledger
        return ledger.facts_revision, ledger.quotas.revision, gang.present(), gang.required

    def _now(self) -> float:
        return self._cycles.clock.monotonic()
