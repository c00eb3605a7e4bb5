"""How long pods wait, as the page of a scheduler counts it."""

from __future__ import annotations

from tessera.inspect.dashboard.documents import NO_ORIGIN, PodOrigin
from tessera.inspect.dashboard.scheduler_page import MAX_REFUSED, Refusals
from tessera.wire.objects import Metadata, OwnerReference, Pod


def test_refusals_are_bounded_without_a_viewer_and_the_longest_silent_pod_is_forgotten() -> None:
    refusals = Refusals()
    for number in range(MAX_REFUSED):
        refusals.add(f"uid-{number}", None, float(number))
    refusals.add("uid-0", None, 1e6)
    refusals.add("uid-new", None, 1e6)
    assert refusals.get("uid-0") == (PodOrigin(since=0.0), 2)
    assert refusals.get("uid-1") == (NO_ORIGIN, None)
    assert refusals.get("uid-new") == (PodOrigin(since=1e6), 1)


def test_a_pod_waits_since_it_was_created_and_has_its_owner() -> None:
    refusals, owner = Refusals(), OwnerReference(kind="Job", name="train", controller=True)
    metadata = Metadata(name="train-0", creation_timestamp="1970-01-01T00:01:40Z", owner_references=[owner])
    refusals.add("u", Pod(metadata=metadata), 500.0)
    refusals.add("u", None, 600.0)
    assert refusals.get("u") == (PodOrigin("Job", "train", 100.0, 100.0), 2)
