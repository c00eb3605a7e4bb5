"""Cards that a node agent registers in an annotation of the node.

A missing or empty annotation means no cards. One that cannot be read is a `NodeProblem`, never no cards.
"""

from __future__ import annotations

from tessera.core.devices import Device
from tessera.vendors.base import NodeProblem
from tessera.wire.errors import WireError
from tessera.wire.objects import Node
from tessera.wire.registration import decode_registration

EMPTY = ("", "null")
"""what agents write for no cards besides `[]`: nothing in the text form, Go's nil slice in the JSON form"""


def registered_cards(node: Node, key: str, *, vendor: str) -> tuple[Device, ...] | NodeProblem:
    """The devices of `vendor` that annotation `key` registers."""
    text = node.annotations.get(key, "")
    if text.strip() in EMPTY:
        return ()
    try:
        return decode_registration(text, vendor=vendor)
    except WireError as error:
        return NodeProblem(f"{key}: {error}")
