"""numa: cards of the same NUMA node one after the other, the highest first."""

from __future__ import annotations

from tessera.core.policies.base import Policy

POLICY = Policy("numa", cards=lambda cards, _scores: [-card.device.numa for card in cards])
