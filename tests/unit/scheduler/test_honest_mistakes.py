"""What the webhook says to people who wrote something slightly wrong: what they wrote, and what to write."""

from __future__ import annotations

import string
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.core.ledger.ledger import Ledger
from tessera.scheduler.admission.pod_admission import admit
from tessera.scheduler.settings import Settings
from tessera.vendors import mistakes, spelling
from tessera.vendors.mistakes import find_mistakes, vocabulary
from tessera.vendors.node_reader import node_facts, quota_facts
from tessera.wire.objects import Container, Metadata, Pod, PodSpec, ResourceQuota, ResourceRequirements
from tests.support.admission import container, pod, refusal, vendors, verdict
from tests.support.builders import node

SLICE = container(gpu="1", mem="3000")


def with_annotations(*, made: Any = SLICE, **annotations: str) -> Any:
    document = pod(made)
    document["metadata"]["annotations"] = annotations
    return document


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        (
            "hami.io/gpu-schedular-policy",
            "binpack",
            "annotation hami.io/gpu-schedular-policy is unknown and has no effect; did you mean "
            "hami.io/gpu-scheduler-policy?",
        ),
        (
            "nvidia.com/use-gputpye",
            "L4",
            "annotation nvidia.com/use-gputpye is unknown and has no effect; did you mean nvidia.com/use-gputype?",
        ),
        (
            "nvidia.com/gpu-scheduler-policy",
            "binpack",
            "annotation nvidia.com/gpu-scheduler-policy is unknown and has no effect; did you mean "
            "hami.io/gpu-scheduler-policy?",
        ),
        (
            "hami.io/gpu-scheduler-policy",
            "binpak",
            'annotation hami.io/gpu-scheduler-policy: "binpak" has no effect: write "binpack"',
        ),
        (
            "nvidia.com/numa-bind",
            "yes",
            'annotation nvidia.com/numa-bind: "yes" has no effect: write "true" or "false"',
        ),
    ],
)
def test_what_has_no_effect_is_a_warning_with_the_nearest_right_word(key: str, value: str, said: str) -> None:
    answer = verdict(with_annotations(**{key: value}))
    assert answer.allowed
    assert said in answer.warnings


@pytest.mark.parametrize(
    ("mode", "meant"),
    [("migg", '"mig"'), ("hamicore", '"hami-core"'), ("HAMI-CORE", '"hami-core"'), ("slice", '"mps" or')],
)
def test_a_mode_that_no_card_can_have_is_refused(mode: str, meant: str) -> None:
    said = refusal(with_annotations(**{"nvidia.com/vgpu-mode": mode}))
    assert said.startswith(f'annotation nvidia.com/vgpu-mode: "{mode}" cannot be honoured: write ')
    assert meant in said


@pytest.mark.parametrize("mode", ["mig", "hami-core", "mps", "none", "hami-core,mps"])
def test_a_mode_that_cards_can_have_is_no_mistake(mode: str) -> None:
    assert verdict(with_annotations(**{"nvidia.com/vgpu-mode": mode})).allowed


def test_a_misspelt_resource_is_a_warning() -> None:
    answer = verdict(pod(container(limits={"nvidia.com/gpus": "1"})))
    assert answer.allowed
    assert answer.warnings == ("container main: resource nvidia.com/gpus is unknown; did you mean nvidia.com/gpu?",)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            {"gpu": "1", "cores": "150"},
            "nvidia.com/gpucores: 150 cannot be used: a whole card is 100: write a number from 1 to 100",
        ),
        (
            {"gpu": "1", "mem": "2000m"},
            "nvidia.com/gpumem: 2000m cannot be used: no process starts in 2 MiB of a card: write 2048 for 2 GiB",
        ),
        (
            {"gpu": "0", "mem": "2000"},
            "nvidia.com/gpu: 0 cannot be used: nvidia.com/gpumem of no card is nothing: write 1 or more, or remove "
            "nvidia.com/gpumem",
        ),
        (
            {"gpu": "1", "mem": "2Gi"},
            "nvidia.com/gpumem: 2Gi cannot be used: write a plain number of MiB, such as 2048",
        ),
    ],
)
def test_an_amount_that_cannot_be_meant_is_refused_with_what_to_write(asked: dict[str, Any], said: str) -> None:
    assert refusal(pod(container(**asked))) == f"container main: {said}"


@pytest.mark.parametrize(
    "asked", [{"gpu": "1", "cores": "100"}, {"gpu": "0"}, {"gpu": "1", "mem": "64"}, {"gpu": "1", "mem": "1"}]
)
def test_amounts_that_can_be_meant_are_taken(asked: dict[str, Any]) -> None:
    """1 MiB among them: HAMi's pods use it for a card's time alone."""
    assert verdict(pod(container(**asked))).allowed


@pytest.mark.parametrize(
    ("hard", "said"),
    [
        ({"limits.nvidia.com/gpumem": "30Gi"}, "limits nothing: it means 32,212,254,720 MiB"),
        ({"nvidia.com/gpumem": "30720"}, "nvidia.com/gpumem limits nothing without the prefix limits."),
    ],
)
def test_the_broken_quota_of_the_namespace_is_mentioned(hard: dict[str, str], said: str) -> None:
    ledger = Ledger(vendors())
    ledger.observe_node(node_facts(node("n1").gpus(2).api(), vendors()))
    document = {"metadata": {"name": "q", "namespace": "team"}, "spec": {"hard": hard}}
    ledger.observe_quota(quota_facts(msgspec.convert(document, ResourceQuota), vendors()))

    def warnings(namespace: str) -> tuple[str, ...]:
        how = Settings()
        return admit(pod(SLICE), namespace=namespace, vendors=vendors(), settings=how, ledger=ledger).warnings

    assert any(text.startswith("quota q of namespace team: ") and said in text for text in warnings("team"))
    assert not any("quota" in text for text in warnings("other"))


# -- spelling


@given(st.data())
def test_every_known_name_is_found_from_one_wrong_letter(data: st.DataObject) -> None:
    names = {name for vendor in vendors().values() for name in vendor.names.all}
    known = sorted(name for name in names if len(name.partition("/")[2]) > 4)
    name = data.draw(st.sampled_from(known))
    start = name.index("/") + 2  # the first letter has to be right
    places = [place for place in range(start, len(name)) if name[place].isalpha()]
    place = data.draw(st.sampled_from(places))
    letter = data.draw(st.sampled_from(string.ascii_lowercase.replace(name[place].lower(), "")))
    wrong = name[:place] + letter + name[place + 1 :]
    words = vocabulary(vendors()).resources
    if not words.is_unknown(wrong):
        return
    meant = words.nearest(wrong)
    assert meant is None or meant in known
    if not any(letter.isdigit() for letter in name):
        assert meant is not None


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("gpus", "gpu"),
        ("gup", "gpu"),
        ("vgpu", None),
        ("gpu", "gpu"),
        ("", None),
        ("x" * (spelling.MAX_CHARACTERS + 1), None),
        ("use-gputpye", "use-gputype"),
        ("use-gpuyptes", None),
    ],
)
def test_near_is_one_edit_or_two_in_longer_words(word: str, meant: str | None) -> None:
    assert spelling.nearest(word, ["gpu", "use-gputype"]) == meant


def test_what_a_pod_can_cost_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[str] = []
    nearest = spelling.nearest

    def counted(word: str, known: Any) -> str | None:
        compared.append(word)
        return nearest(word, known)

    monkeypatch.setattr(spelling, "nearest", counted)
    annotations = {f"nvidia.com/use-gputyp{number}": "x" for number in range(1000)}
    limits: dict[str, str | int | float] = {f"nvidia.com/gpux{number}": "1" for number in range(1000)}
    many = Pod(
        Metadata(name="p", annotations=annotations),
        PodSpec(containers=[Container(name="c", resources=ResourceRequirements(limits=limits))]),
    )
    find_mistakes(many, vendors())
    assert len(compared) <= 2 * mistakes.MAX_UNKNOWN
