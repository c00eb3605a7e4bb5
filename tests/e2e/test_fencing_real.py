"""A write that outlives its decider gives no card twice; `python -m tests.e2e.fencing` does it a hundred times."""

from __future__ import annotations

import pytest

from tests.e2e.control_plane import ControlPlane
from tests.e2e.fencing import KINDS, run


@pytest.mark.parametrize("kind", KINDS)
async def test_a_write_that_outlives_its_decider_gives_no_card_twice(plane: ControlPlane, kind: str) -> None:
    found = await run(plane, kind, 1)
    assert found.over_allocated == 0
