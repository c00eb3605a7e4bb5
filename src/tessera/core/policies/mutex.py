"""mutex: cards that nobody uses; the refusal of used ones is a rule of fitting (`generic.refuse_sharing`)."""

from __future__ import annotations

from tessera.core.policies.base import Policy

POLICY = Policy("mutex", cards=lambda cards, _scores: [card.used for card in cards], numa_first=False)
