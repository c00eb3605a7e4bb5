"""Biren: whole or shared cards by number alone."""

from __future__ import annotations

from tessera.vendors.base import AnnotationKeys, Family
from tessera.vendors.parts.counted import Counted, CountedSection
from tessera.wire.keys import NODE_LOCK


class Biren(Counted):
    key = "Biren"
    keys = AnnotationKeys(
        register="hami.io/node-biren-register",
        handshake="hami.io/node-handshake-biren",
        to_allocate="hami.io/Biren-devices-to-allocate",
        allocated="hami.io/Biren-devices-allocated",
        use_uuids=("birentech.com/use-gpuuuid",),
        avoid_uuids=("birentech.com/nouse-gpuuuid",),
        lock=NODE_LOCK,
    )


FAMILY = Family(
    title="Biren",
    section="biren",
    chart=CountedSection(resource_count_name="birentech.com/gpu"),
    build=lambda section, _: [Biren(section.names)],
)
