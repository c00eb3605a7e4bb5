from __future__ import annotations

import pytest

from tessera.host.cards import has_media_extensions, name_from_driver, profile_name


@pytest.mark.parametrize(
    ("card_mib", "slices", "memory_mib", "name"),
    [
        (143771, 1, 16384, "1g.18gb"),
        (143771, 1, 33280, "1g.35gb"),
        (143771, 2, 33280, "2g.35gb"),
        (143771, 3, 71168, "3g.71gb"),
        (143771, 7, 143360, "7g.141gb"),
        (40960, 1, 4864, "1g.5gb"),
        (40536, 1, 4864, "1g.5gb"),
        (40960, 1, 9856, "1g.10gb"),
        (40960, 2, 9984, "2g.10gb"),
        (40960, 3, 20096, "3g.20gb"),
        (40960, 4, 20096, "4g.20gb"),
        (40960, 7, 40448, "7g.40gb"),
        (81920, 1, 9728, "1g.10gb"),
        (81251, 2, 19968, "2g.20gb"),
        (81920, 7, 80640, "7g.80gb"),
        (81559, 1, 9984, "1g.10gb"),
        (81559, 1, 20096, "1g.20gb"),
        (81559, 3, 40448, "3g.40gb"),
        (95830, 1, 11264, "1g.12gb"),
        (95830, 3, 47616, "3g.47gb"),
        (24576, 1, 5952, "1g.6gb"),
        (24576, 2, 11968, "2g.12gb"),
        (183359, 1, 22528, "1g.23gb"),
        (183359, 3, 91136, "3g.90gb"),
        (1024, 7, 99999, "7g.1gb"),
        (0, 1, 0, "1g.0gb"),
    ],
)
def test_a_profile_is_called_as_nvidia_smi_calls_it(card_mib: int, slices: int, memory_mib: int, name: str) -> None:
    assert profile_name(slices=slices, memory_mib=memory_mib, card_mib=card_mib) == name


def test_special_engines_are_part_of_the_name() -> None:
    name = profile_name(slices=1, memory_mib=16384, card_mib=143771, attribute="+me")
    assert name == "1g.18gb+me"
    assert has_media_extensions(name)
    assert not has_media_extensions("1g.24gb-me")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("MIG 1g.18gb", "1g.18gb"),
        ("MIG 1g.18gb+me", "1g.18gb+me"),
        ("1g.24gb+me.all", "1g.24gb+me.all"),
        ("MIG 2g.48gb-me", "2g.48gb-me"),
        ("MIG 4g.96gb+gfx", "4g.96gb+gfx"),
        ("", None),
        ("MIG", None),
        ("MIG 1c.1g.18gb", None),
        ("MIG 1g.18gb;rm", None),
        ("MIG 0g.18gb", None),
        ("MIG 1g.\u0661\u0668gb", None),
        ("MIG 1g.18gb\n", None),
        ("x" * 96, None),
    ],
)
def test_a_name_of_the_driver_is_taken_where_it_is_one(text: str, name: str | None) -> None:
    assert name_from_driver(text) == name
