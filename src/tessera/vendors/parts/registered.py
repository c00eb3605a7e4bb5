"""Cards of vendors whose node agent registers them in an annotation of the node.

An annotation that is absent or empty means no cards; one that cannot be read is a problem of the node, never no cards.
"""

from __future__ import annotations

from tessera.core.devices import Device
from tessera.vendors.base import NodeProblem
from tessera.wire.errors import WireError
from tessera.wire.objects import Node
from tessera.wire.registration import decode_registration

EMPTY = ("", "null")
"""what agents write for no cards, beside `[]`: nothing in the text form, a nil slice of Go in the JSON form"""


def registered_cards(node: Node, key: str, *, vendor: str) -> tuple[Device, ...] | NodeProblem:
    """What annotation `key` registers, as devices of `vendor`."""
    text = node.annotations.get(key, "")
    if text.strip() in EMPTY:
        return ()
    try:
        return decode_registration(text, vendor=vendor)
    except WireError as error:
        return NodeProblem(f"{key}: {error}")
