"""The gangs that wait, as rows of the page: how many members exist, must come together and fit, and why it waits.

A gang has a row for as long as one of its members waits and the gang is not whole; its members have no rows of their
own then. What a source knows of the reason differs: a scheduler has decided, others plan the gang to find out.
"""

from __future__ import annotations

from tessera.core.ledger import Ledger
from tessera.inspect.state import Json
from tessera.scheduler.engine_view import GangMember, GangView

HELD = "held"
"""the state of a place that is held for a member of a gang"""


def row_uid(gang: GangView) -> str:
    """No pod's: uids of pods have no slash."""
    return f"gang/{gang.namespace}/{gang.group.name}"


def gang_document(gang: GangView, ledger: Ledger, fitting: int | None) -> Json:
    """What its row says beside what a pod's says. `fitting`: members that would fit now, if that is known."""
    return {
        "size": gang.group.size,
        "required": gang.required,
        "exist": gang.present,
        "gated": gang.gated,
        "bound": gang.bound,
        "fit": fitting,
        "until": gang.until,
        "members": [_member(member, ledger) for member in gang.members],
    }


def _member(member: GangMember, ledger: Ledger) -> list[str]:
    """Its name, its state and its node, if it has one."""
    entry = ledger.pod(member.request.uid)
    node = entry.facts.node if entry is not None else ""
    state = entry.state.value if entry is not None else "waits" if member.state == "pending" else member.state
    return [member.request.name, state, node]
