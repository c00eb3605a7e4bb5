"""Profiles of simulations: how often each event happens. Most profiles have much of one thing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from tests.model import machines
from tests.model.faults import Fault

USUAL: Mapping[str, float] = MappingProxyType(
    {
        "deliver_pods": 14.0,
        "deliver_nodes": 6.0,
        "deliver_quotas": 3.0,
        "deliver_to_kube": 14.0,
        "list_again": 0.4,
        "schedule": 22.0,
        "give_up_bind": 0.6,
        "simulate": 0.3,
        "restart": 0.3,
        "pause": 0.2,
        "end_kube_scheduler": 0.1,
        "pass_time": 9.0,
        "create_pod": 9.0,
        "create_gang": 0.3,
        "bind_directly": 0.25,
        "delete_pod": 2.5,
        "remove_terminating": 4.0,
        "change_quota": 0.4,
        "end_handover": 8.0,
        "end_init": 1.5,
        "end_pod": 5.0,
        "change_card": 0.8,
        "lose_or_return_node": 0.3,
        "change_plugin": 0.3,
        "report": 0.8,
        "storm": 0.15,
        "set_clock": 0.15,
        "steal_lease": 0.15,
        "replace_evicted": 2.0,
    }
)
"""events and their weights"""
OF_CLAIMS: Mapping[str, float] = MappingProxyType(
    {
        "deliver_claims": 14.0,
        "deliver_slices": 3.0,
        "deliver_to_stock": 6.0,
        "control_claims": 14.0,
        "create_claim": 1.0,
        "delete_claim": 0.8,
        "edit_claim": 0.8,
        "drop_slice": 0.15,
        "start_pod": 8.0,
        "stock_allocate": 3.0,
        "end_sharers": 0.6,
    }
)
"""the same for ResourceClaims"""


@dataclass(frozen=True)
class Profile:
    """The cluster, the faults and the events of a simulation."""

    faults: float = 0.1
    """share of calls that fail"""
    kinds_of_faults: tuple[Fault, ...] = tuple(Fault)
    weights: Mapping[str, float] = field(default_factory=dict)
    """instead of the usual ones"""
    replicas: int = 1
    nodes: int = 5
    kinds: tuple[str, ...] = machines.KINDS
    agents: tuple[str | None, ...] = machines.AGENTS
    recipes: tuple[str, ...] = ()
    """empty = all"""
    claims: bool = False
    """whether the scheduler reads ResourceClaims, and agents offer cards to them"""
    moves: bool = False
    """whether the scheduler moves pods, and workloads own them"""


PROFILES: Mapping[str, Profile] = MappingProxyType(
    {
        "usual": Profile(),
        "faults": Profile(faults=0.4, weights={"give_up_bind": 3.0}),
        "unanswered": Profile(
            faults=0.6,
            kinds_of_faults=(Fault.LOST, Fault.UNHEARD, Fault.LATE, Fault.LATE, Fault.SLOW),
            nodes=3,
            weights={"give_up_bind": 4.0, "pass_time": 12.0, "end_pod": 6.0, "delete_pod": 5.0},
        ),
        "restarts": Profile(faults=0.2, weights={"restart": 2.0, "deliver_quotas": 4.0, "list_again": 2.0}),
        "locks": Profile(
            faults=0.3,
            nodes=3,
            kinds=("gpu and mlu", "gpu and mlu", "xpu"),
            agents=(None, None, "cdi"),
            recipes=(
                "small", "small!", "two cards!", "mlu part", "mlu whole", "gpu and mlu", "xpu slice", "xpu half",
            ),
            weights={"end_handover": 16.0, "change_plugin": 0.1, "pass_time": 14.0, "give_up_bind": 2.0},
        ),
        "mig": Profile(
            nodes=3,
            kinds=("mig", "mig", "gpu"),
            recipes=("small", "medium", "memory only!", "mig small", "mig large", "mig several", "two cards", "init"),
            weights={"end_init": 4.0, "change_card": 2.0},
        ),
        "replicas": Profile(
            faults=0.2,
            kinds_of_faults=(Fault.SLOW, Fault.SLOW, Fault.SLOW, Fault.LATE, Fault.UNHEARD, Fault.LOST),
            replicas=2,
            nodes=2,
            kinds=("gpu",),
            agents=("env",),
            recipes=("large!", "whole!", "whole!", "two cards!", "alone!", "medium!"),
            # Nothing that would excuse a card or a namespace.
            weights={
                "pause": 4.0,
                "end_kube_scheduler": 1.5,
                "restart": 2.0,
                "deliver_pods": 20.0,
                "deliver_quotas": 8.0,
                "deliver_nodes": 8.0,
                "delete_pod": 5.0,
                "remove_terminating": 8.0,
                "end_handover": 16.0,
                "end_pod": 12.0,
                "create_pod": 14.0,
                "lose_or_return_node": 0.0,
                "change_card": 0.0,
                "change_quota": 0.0,
                "bind_directly": 0.0,
            },
        ),
        "preemption": Profile(
            faults=0.15,
            replicas=2,
            nodes=3,
            kinds=("gpu", "gpu", "mig"),
            agents=("env",),
            recipes=(
                "small!", "medium!", "large!", "whole!", "two cards!", "mig small", "medium!^", "large!^", "whole!^",
                "two cards!^", "mig large^", "whole!^^", "two cards!^^", "large!^^", "two containers!^^",
            ),
            # Nothing that would excuse a card or a namespace.
            weights={
                "create_pod": 14.0,
                "delete_pod": 1.5,
                "end_pod": 2.0,
                "remove_terminating": 6.0,
                "end_handover": 16.0,
                "restart": 0.8,
                "pause": 0.8,
                "lose_or_return_node": 0.0,
                "change_card": 0.0,
                "change_quota": 0.0,
                "bind_directly": 0.0,
            },
        ),
        "gangs": Profile(
            faults=0.15,
            nodes=4,
            kinds=("gpu",),
            agents=("env",),
            recipes=("large!", "whole!", "two cards!", "medium!", "small!"),
            # Nothing that takes room away from a gang that is planned.
            weights={
                "create_gang": 6.0,
                "create_pod": 3.0,
                "restart": 2.0,
                "delete_pod": 1.5,
                "end_pod": 6.0,
                "end_handover": 16.0,
                "lose_or_return_node": 0.0,
                "change_card": 0.0,
                "change_quota": 0.0,
                "bind_directly": 0.0,
                "change_plugin": 0.0,
            },
        ),
        "gangs and preemption": Profile(
            faults=0.15,
            replicas=2,
            nodes=3,
            kinds=("gpu",),
            agents=("env",),
            recipes=(
                "small!", "medium!", "large!", "whole!", "two cards!", "medium!^", "whole!^", "two cards!^",
                "large!^^", "whole!^^", "two cards!^^",
            ),
            # Gangs are victims, wait beside what is nominated, and hold places beside it.
            weights={
                "create_gang": 4.0,
                "create_pod": 8.0,
                "delete_pod": 1.5,
                "end_pod": 4.0,
                "remove_terminating": 6.0,
                "end_handover": 16.0,
                "restart": 1.0,
                "pause": 0.5,
                "lose_or_return_node": 0.0,
                "change_card": 0.0,
                "change_quota": 0.0,
                "bind_directly": 0.0,
                "change_plugin": 0.0,
            },
        ),
        "claims": Profile(
            faults=0.25,
            replicas=2,
            nodes=4,
            kinds=("gpu", "gpu", "gpu", machines.STOCK),
            agents=("env",),
            recipes=(
                "small!", "medium!", "large!", "whole!", "two cards!",
                "claim small", "claim large", "claim memory", "claim alone", "claim pair", "claim two", "claim either",
                "claim small", "claim large", "shared s0", "shared s1", "shared s2", "gpu and claim", "gpu and shared",
                "two shared",
            ),
            claims=True,
            # Nothing that would excuse a card.
            weights={
                "pause": 1.0,
                "restart": 1.0,
                "end_kube_scheduler": 0.5,
                "end_handover": 12.0,
                "delete_pod": 4.0,
                "remove_terminating": 6.0,
                "create_gang": 1.5,
                "lose_or_return_node": 0.0,
                "change_card": 0.0,
                "change_quota": 0.2,
                "bind_directly": 0.0,
                "change_plugin": 0.1,
            },
        ),
        "everything": Profile(
            faults=0.15,
            replicas=2,
            nodes=4,
            kinds=("gpu", "gpu", "mig", machines.STOCK),
            agents=("env",),
            recipes=(
                "small!", "small!", "small!", "medium!", "medium!", "large!", "whole!", "whole!", "two cards!",
                "mig small", "mig large", "medium!^", "two cards!^^", "mig large^",
                "claim small", "claim large", "claim alone", "claim two", "shared s0", "gpu and claim",
            ),
            claims=True,
            moves=True,
            # Nothing that would excuse a card, and time enough for pods that wait.
            weights={
                "create_gang": 1.5,
                "delete_pod": 4.0,
                "remove_terminating": 6.0,
                "replace_evicted": 6.0,
                "end_handover": 14.0,
                "pass_long": 4.0,
                "restart": 0.4,
                "pause": 0.4,
                "lose_or_return_node": 0.0,
                "change_card": 0.0,
                "change_quota": 0.0,
                "bind_directly": 0.0,
                "change_plugin": 0.0,
            },
        ),
        "lag": Profile(
            nodes=2,
            kinds=("gpu",),
            recipes=("small", "medium!", "large", "memory only", "per cent!", "whole", "two cards", "init", "alone"),
            weights={
                "deliver_pods": 5.0,
                "deliver_nodes": 2.0,
                "deliver_to_kube": 8.0,
                "delete_pod": 8.0,
                "end_pod": 6.0,
                "list_again": 2.0,
            },
        ),
    }
)  # fmt: skip
