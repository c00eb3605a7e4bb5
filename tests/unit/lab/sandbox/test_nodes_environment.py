"""What a container finds in its environment, and which ids kubelet hands out for it."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from tessera_lab.sandbox.nodes.allocation import DeviceIds, Unavailable, card_of
from tessera_lab.sandbox.nodes.containers import container_environment, expand_references
from tessera_lab.sandbox.nodes.node import gpu_cards

POD: dict[str, Any] = {
    "metadata": {
        "name": "p",
        "namespace": "space",
        "uid": "u-1",
        "annotations": {"tessera.io/c0.visible-devices": "GPU-a"},
        "labels": {"app": "x"},
    },
    "spec": {"nodeName": "n", "serviceAccountName": "default"},
}


def reference(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


@pytest.mark.parametrize(
    ("env", "allocated", "seen"),
    [
        ([], {"A": "plugin"}, {"A": "plugin"}),
        ([{"name": "A", "value": "pod"}], {"A": "plugin", "B": "plugin"}, {"A": "pod", "B": "plugin"}),
        ([{"name": "A"}], {"A": "plugin"}, {"A": ""}),
        ([reference("A", "metadata.annotations['tessera.io/c0.visible-devices']")], {}, {"A": "GPU-a"}),
        ([reference("A", "metadata.annotations['tessera.io/c1.visible-devices']")], {"A": "other"}, {"A": ""}),
        ([reference("A", "metadata.labels['app']")], {}, {"A": "x"}),
        ([reference("A", "metadata.uid")], {}, {"A": "u-1"}),
        ([reference("A", "metadata.name"), reference("B", "metadata.namespace")], {}, {"A": "p", "B": "space"}),
        ([reference("A", "spec.nodeName"), reference("B", "spec.serviceAccountName")], {}, {"A": "n", "B": "default"}),
        ([reference("A", "status.podIP")], {"A": "plugin"}, {"A": "plugin"}),
        ([{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s"}}}], {}, {}),
        ([reference("U", "metadata.uid"), {"name": "A", "value": "/$(U)/x"}], {}, {"U": "u-1", "A": "/u-1/x"}),
        ([{"name": "A", "value": "$(U)"}, reference("U", "metadata.uid")], {}, {"A": "$(U)", "U": "u-1"}),
        ([{"name": "A", "value": "$(P)"}], {"P": "plugin"}, {"A": "$(P)", "P": "plugin"}),
        ([{"name": "A", "value": "1"}, {"name": "A", "value": "$(A)2"}], {}, {"A": "12"}),
    ],
)
def test_the_pods_own_variables_win_and_refer_only_to_each_other(
    env: list[dict[str, Any]], allocated: dict[str, str], seen: dict[str, str]
) -> None:
    assert container_environment(POD, {"env": env}, allocated) == seen


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("$(A)", "1"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$(B)", "$(B)"),
        ("$A $( $", "$A $( $"),
        ("$(A", "$(A"),
        ("", ""),
    ],
)
def test_expansion_follows_kubelets_rules(text: str, result: str) -> None:
    assert expand_references(text, {"A": "1"}) == result


# -- device ids


def whatever(available: Any, count: int) -> None:
    return None


def offering(count: int = 2, slots: int = 2) -> DeviceIds:
    ids = DeviceIds(random.Random(1))
    ids.offer(gpu_cards("n", count, slots=slots))
    return ids


def test_every_card_is_offered_as_often_as_it_is_split() -> None:
    ids = offering()
    taken = ids.take("pod", 4, resource="r", prefer=whatever)
    assert len(set(taken)) == 4
    assert sorted(card_of(each) for each in taken) == sorted([card.uuid for card in gpu_cards("n", 2)] * 2)


def test_more_devices_than_there_are_is_said_in_kubelets_words() -> None:
    ids = offering()
    ids.take("one", 3, resource="r", prefer=whatever)
    with pytest.raises(Unavailable, match=r"unavailable for nvidia.com/gpu. Requested: 2, Available: 1$"):
        ids.take("two", 2, resource="nvidia.com/gpu", prefer=whatever)
    ids.release("one")
    assert len(ids.take("two", 2, resource="r", prefer=whatever)) == 2


def test_unhealthy_cards_and_a_plugin_that_is_gone_offer_nothing() -> None:
    ids = offering()
    cards = gpu_cards("n", 2, slots=2)
    ids.offer([replace(cards[0], healthy=False), cards[1]])
    assert ids.offered == 2
    ids.offer([])
    assert ids.offered == 0


def test_an_init_containers_ids_serve_the_next_containers() -> None:
    ids = offering(slots=1)
    first = ids.take("pod", 2, resource="r", prefer=whatever, init=True)
    again = ids.take("pod", 1, resource="r", prefer=whatever)
    assert again == first[:1]
    assert ids.take("pod", 1, resource="r", prefer=whatever) == first[1:]
    with pytest.raises(Unavailable):
        ids.take("pod", 1, resource="r", prefer=whatever)


@pytest.mark.parametrize("count", [1, 2])
def test_the_plugins_preference_counts_where_it_is_one(count: int) -> None:
    ids = offering()
    taken = ids.take("pod", count, resource="r", prefer=lambda available, _: available[-1:])
    if count == 1:
        assert taken == (f"{gpu_cards('n', 2)[1].uuid}-1",)
    else:
        assert len(taken) == 2
