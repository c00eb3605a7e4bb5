from __future__ import annotations

import json
from typing import Any

import pytest

from tessera.wire.objects import Pod, decode_object
from tessera.wire.pod_groups import (
    MAX_MEMBERS,
    BadPodGroup,
    GangPolicy,
    GroupObject,
    PodGroup,
    PodGroupObject,
    PodGroupSpec,
    SchedulingPolicy,
    read_pod_group,
)


def pod(*, annotations: Any = None, labels: Any = None, **spec: Any) -> Pod:
    document = {"metadata": {"annotations": annotations, "labels": labels}, "spec": spec}
    return decode_object(json.dumps(document), Pod)


GANG = {"tessera.io/gang": "g", "tessera.io/gang-size": "8"}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, None),
        ({"app": "x"}, None),
        (GANG, PodGroup("g", 8, 8)),
        ({**GANG, "tessera.io/gang-min": "6"}, PodGroup("g", 8, 6)),
        ({**GANG, "tessera.io/gang-topology": "rack"}, PodGroup("g", 8, 8, "rack")),
        ({"kueue.x-k8s.io/pod-group-name": "k", "kueue.x-k8s.io/pod-group-total-count": "3"}, PodGroup("k", 3, 3)),
        ({"scheduling.x-k8s.io/pod-group": "c"}, PodGroup("c", where=GroupObject.COSCHEDULING)),
        ({"scheduling.k8s.io/group-name": "v"}, PodGroup("v", where=GroupObject.VOLCANO)),
        ({"scheduling.k8s.io/group-name": "v", "tessera.io/gang-size": "4"}, PodGroup("v", 4, 4)),
        ({"scheduling.k8s.io/group-name": "v", "tessera.io/gang-min": "4"}, PodGroup("v", 4, 4)),
        ({"scheduling.x-k8s.io/pod-group": "c", **GANG}, PodGroup("g", 8, 8)),
    ],
)
@pytest.mark.parametrize("where", ["annotations", "labels"])
def test_every_spelling_is_read_from_annotations_and_labels(
    where: str, given: dict[str, str], expected: PodGroup | None
) -> None:
    assert read_pod_group(pod(**{where: given})) == expected


def test_an_annotation_wins_over_a_label() -> None:
    assert read_pod_group(pod(annotations={"tessera.io/gang-size": "4"}, labels=GANG)) == PodGroup("g", 4, 4)


def test_the_servers_own_group_is_read() -> None:
    found = read_pod_group(pod(schedulingGroup={"podGroupName": "w"}))
    assert found == PodGroup("w", where=GroupObject.KUBERNETES)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"tessera.io/gang": "g"}, 'the gang "g" needs tessera.io/gang-size: the number of its members'),
        ({**GANG, "tessera.io/gang-size": "0"}, f"write a whole number from 1 to {MAX_MEMBERS}"),
        ({**GANG, "tessera.io/gang-size": "8 pods"}, f"write a whole number from 1 to {MAX_MEMBERS}"),
        ({**GANG, "tessera.io/gang-size": "99999999999999999999"}, f"write a whole number from 1 to {MAX_MEMBERS}"),
        ({**GANG, "tessera.io/gang-size": "٣"}, f"write a whole number from 1 to {MAX_MEMBERS}"),
        ({**GANG, "tessera.io/gang-min": "9"}, "tessera.io/gang-min is 9, more than tessera.io/gang-size 8"),
        ({**GANG, "tessera.io/gang-topology": "r" * 400}, "write the name of a node label"),
        ({"kueue.x-k8s.io/pod-group-name": "k"}, "needs kueue.x-k8s.io/pod-group-total-count"),
        ({"tessera.io/gang-size": "3"}, "tessera.io/gang-size has no effect without tessera.io/gang: NAME"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_what_to_write(given: dict[str, str], text: str) -> None:
    found = read_pod_group(pod(annotations=given))
    assert isinstance(found, BadPodGroup)
    assert text in found.text


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (PodGroupSpec(min_member=3), 3),
        (PodGroupSpec(scheduling_policy=SchedulingPolicy(GangPolicy(5))), 5),
        (PodGroupSpec(min_member=0), None),
        (PodGroupSpec(min_member=MAX_MEMBERS + 1), None),
        (PodGroupSpec(scheduling_policy=SchedulingPolicy(None)), None),
        (PodGroupSpec(), None),
    ],
)
def test_the_minimum_is_read_from_the_objects_of_all_groups(spec: PodGroupSpec, expected: int | None) -> None:
    assert PodGroupObject(spec).minimum == expected
