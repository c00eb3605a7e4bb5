"""binpack: fill what is already in use, keep the rest whole."""

from __future__ import annotations

from tessera.core.policies.base import Policy

POLICY = Policy(
    "binpack",
    cards=lambda _cards, scores: [-score for score in scores],
    nodes=lambda ranking: ranking.scores,
    sign_of_score=1,
    low_numa_first=True,
)
