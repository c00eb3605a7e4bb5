"""Profiles by name, as drivers write them and as older allow lists did."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tessera.core.model.devices import MigPlacement, MigSlot
from tessera.host.cards import CardFacts
from tessera.node.modes.base import AllocationRefused
from tessera.node.modes.mig.instances import profile_for
from tests.support.mig_cards import H200, A

FACTS = CardFacts(uuid=A, index=0, name="NVIDIA H200", mig_profiles=H200)
WHOLE_A100 = replace(H200[-1], name="7g.80gb", memory_mib=81920)
TWINS = (replace(H200[0], name="1g.10gb", memory_mib=9728), replace(H200[0], name="1g.11gb", memory_mib=11264))


@pytest.mark.parametrize(
    ("offers", "name", "size", "found"),
    [
        (H200, "1g.18gb", 1, "1g.18gb"),
        (H200, "1g.18gb+me", 1, "1g.18gb+me"),
        (H200, "1g.17gb+me", 1, "1g.18gb+me"),
        (H200, "1g.17gb", 1, "1g.18gb"),
        ((WHOLE_A100,), "7g.79gb", 8, "7g.80gb"),
        (H200, "1g.18gb+gfx", 1, None),
        (H200, "2g.18gb", 2, None),
        (H200, "4g.71gb+me", 4, None),
        (TWINS, "1g.10gb", 1, "1g.10gb"),
        (TWINS, "1g.12gb", 1, "1g.11gb"),
        ((TWINS[0], replace(TWINS[1], memory_mib=10752)), "1g.9gb+me", 1, None),
        ((TWINS[0], replace(TWINS[1], memory_mib=9729)), "1g.9gb", 1, None),
        (H200, "", 1, None),
        (H200, "１g.18gb", 1, None),
        (H200, "9" * 50 + "g.18gb", 1, None),
    ],
)
def test_a_profile_is_found_by_its_name_or_not_at_all(
    offers: tuple[object, ...], name: str, size: int, found: str | None
) -> None:
    facts = replace(FACTS, mig_profiles=offers)  # type: ignore[arg-type]
    slot = MigSlot(name, MigPlacement(0, size))
    if found is None:
        with pytest.raises(AllocationRefused, match="offers no MIG profile"):
            profile_for(facts, slot)
    else:
        assert profile_for(facts, slot).name == found
