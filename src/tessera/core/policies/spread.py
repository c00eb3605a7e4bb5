"""spread: prefer what is least in use."""

from __future__ import annotations

from tessera.core.policies.base import Policy

POLICY = Policy("spread", cards=lambda _cards, scores: scores, nodes=lambda ranking: -ranking.scores, sign_of_score=-1)
