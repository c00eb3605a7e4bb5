"""How long pods wait, as the page of a scheduler counts it."""

from __future__ import annotations

from tessera.inspect.dashboard.scheduler_page import MOST_REFUSED, Refusals


def test_refusals_are_bounded_without_a_viewer_and_the_longest_silent_pod_is_forgotten() -> None:
    refusals = Refusals()
    for number in range(MOST_REFUSED):
        refusals.add(f"uid-{number}", float(number))
    refusals.add("uid-0", 1e6)
    refusals.add("uid-new", 1e6)
    assert len(refusals) == MOST_REFUSED
    assert refusals.get("uid-0") == (0.0, 2)
    assert refusals.get("uid-1") == (None, None)
    assert refusals.get("uid-new") == (1e6, 1)
