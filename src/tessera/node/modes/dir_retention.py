"""Which folders of containers nobody needs any more.

    in use --(no reason left to keep it)--> unused --(still so after the grace period)--> may go
       ^-----------(handed over, or a reason is back)------'

Reasons: its container lives; a container holds the device ids that it was made for, because pods of equal shape may
have swapped answers; nobody can tell. A folder of an earlier process whose container is gone may have been swapped as
well: it stays until every pod is gone that lived when this process began to look.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tessera.node.handover.claims import Claim
from tessera.node.modes.host_dirs import folder_of_ids, is_of_ids

GRACE_S = 600.0
"""a folder of unknown purpose stays so long; longer than kubelet and its pods need to reappear after a restart"""

NOBODYS: frozenset[str] = frozenset()


class Keeping:
    """Used from the event loop only."""

    def __init__(self, *, grace: float = GRACE_S) -> None:
        self._grace = grace
        self._made_for: dict[str, frozenset[str]] = {}
        """device ids by folder, of handovers of this process"""
        self._missing: frozenset[str] = frozenset()
        """folders that were not there at the last look"""
        self._unused_since: dict[str, float] = {}
        self._first_seen: frozenset[str] | None = None
        """uids of the pods that lived when this process began"""

    def handed_over(self, name: str, device_ids: Collection[str]) -> None:
        """The folder was made anew for whoever holds these ids; nobody else can hold them."""
        ids = frozenset(device_ids)
        for other, theirs in self._made_for.items():
            if theirs == ids:
                self._made_for[other] = NOBODYS
        self._made_for[name] = ids
        self._unused_since.pop(name, None)

    def take_unused(
        self, names: Sequence[str], *, live: Sequence[Claim], held: Collection[Collection[str]] | None, now: float
    ) -> list[str]:
        """Those that may go; they are forgotten. `held`: ids of every container that has some; None = no telling."""
        uids = frozenset(claim.pod.uid for claim in live)
        if self._first_seen is None:
            self._first_seen = uids
        self._forget_missing(frozenset(names))
        if held is None and live:
            self._unused_since.clear()
            return []
        kept = self._kept(names, live, {frozenset(ids) for ids in held or ()}, bool(self._first_seen & uids))
        self._unused_since = {name: self._unused_since.get(name, now) for name in names if name not in kept}
        going = [name for name, since in self._unused_since.items() if now - since >= self._grace]
        for name in going:
            del self._unused_since[name]
            self._made_for.pop(name, None)
        return going

    def _forget_missing(self, there: frozenset[str]) -> None:
        """Removed by somebody else. Missing once may only mean that it is being made."""
        missing = self._made_for.keys() - there
        for name in missing & self._missing:
            del self._made_for[name]
        self._missing = frozenset(missing)

    def _kept(
        self, names: Sequence[str], live: Sequence[Claim], held: Collection[frozenset[str]], earlier_pods: bool
    ) -> set[str]:
        kept = {f"{claim.pod.uid}_{claim.container}" for claim in live}
        kept |= {folder_of_ids(ids) for ids in held}
        kept |= {name for name, ids in self._made_for.items() if ids and ids in held}
        if earlier_pods:
            kept |= {name for name in names if name not in self._made_for and not is_of_ids(name)}
        return kept
