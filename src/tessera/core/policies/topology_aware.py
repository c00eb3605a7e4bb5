"""topology-aware: cards ordered as in spread; the choice by links is a rule of fitting (`topology.choose`)."""

from __future__ import annotations

from tessera.core.policies import spread
from tessera.core.policies.base import Policy

POLICY = Policy("topology-aware", cards=spread.POLICY.cards)
