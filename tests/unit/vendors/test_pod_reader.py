"""Pods of the API as the core sees them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tessera.core.model.grants import Grant, Span
from tessera.core.model.requests import MAX_ANNOTATION, MAX_REQUESTS, Constraint, PodRequest, Request, Role, Weights
from tessera.vendors import pod_reader as reading_pods
from tessera.vendors.drafts import BadPod
from tessera.vendors.pod_reader import PodReader, decode_scoring_weights, pod_request
from tessera.wire.errors import WireError
from tests.support.builders import PodBuilder, gpu_pod, pod, vendors

WEIGHTS = "hami.io/device-scoring-weights"


# -- what they ask


def test_every_container_has_its_entry_in_order_of_position() -> None:
    request = pod().container(gpu=1, mem=5).container().init().sidecar(gpu=2, mem=7).request()
    assert [(ask.name, ask.role, len(ask.requests)) for ask in request.containers] == [
        ("init0", Role.INIT, 0),
        ("init1", Role.SIDECAR, 1),
        ("c0", Role.APP, 1),
        ("c1", Role.APP, 0),
    ]
    assert request.asks_for_devices
    assert request.vendors == ("NVIDIA",)


def test_a_pod_without_devices_asks_for_none() -> None:
    request = pod().container(limits={"cpu": "1"}).container().request()
    assert not request.asks_for_devices
    assert (request.vendors, request.constraints) == ((), ())


def test_a_container_may_ask_several_vendors_in_order_of_their_keys() -> None:
    limits = {"kunlunxin.com/xpu": 1, "hygon.com/dcunum": 1, "nvidia.com/gpu": 1}
    (ask,) = pod().container(limits=limits).request().containers
    assert [request.vendor for request in ask.requests] == ["DCU", "NVIDIA", "kunlun"]


def test_requests_stand_in_for_limits() -> None:
    (ask,) = pod().container(requests={"nvidia.com/gpu": 2, "nvidia.com/gpumem": 5}).request().containers
    assert ask.requests == (Request("NVIDIA", 2, memory=5),)


@pytest.mark.parametrize(
    "resources",
    [
        {"gpu": "many"},
        {"gpu": -1},
        {"gpu": "1.5"},
        {"gpu": 2**31},
        {"gpu": 1, "mem": "2Gi"},
        {"gpu": 1, "mem": "-1"},
        {"gpu": 1, "mem": "９"},
        {"gpu": 1, "mem": "9" * 10_000},
        {"gpu": 1, "cores": "1500m"},
        {"gpu": 1, "percent": 1e300},
    ],
)
def test_a_value_that_cannot_be_honoured_refuses_the_pod(resources: dict[str, Any]) -> None:
    fault = pod().container(gpu=1).container(name="bad", **resources).fault()
    assert fault.container == "bad"
    assert "cannot be used" in fault.text


def test_a_bad_value_in_an_init_container_refuses_the_pod_too() -> None:
    assert pod().init(gpu="x").container(gpu=1).fault().container == "init0"


def test_constraints_are_read_for_the_vendors_that_are_asked() -> None:
    asking = gpu_pod().annotate(("nvidia.com/use-gputype", "A100, T4"), ("hygon.com/use-dcutype", "Z100"))
    assert asking.request().constraints == (("NVIDIA", Constraint(use_models=("a100", "t4"))),)
    assert asking.request().constraint("NVIDIA").use_models == ("a100", "t4")
    assert asking.request().constraint("DCU") == Constraint()


def test_weights_are_read_or_refuse_the_pod() -> None:
    assert gpu_pod().annotate((WEIGHTS, "core=2,slot=0,memory=3")).request().weights == Weights(0, 2, 3)
    assert gpu_pod().request().weights == Weights()
    fault = gpu_pod().annotate((WEIGHTS, "core=2")).fault()
    assert fault == BadPod("", f'invalid {WEIGHTS} annotation "core=2": expected slot, core, and memory weights')


def test_two_pods_of_one_shape_differ_in_identity_only() -> None:
    one, other = (gpu_pod(name, mem=5).called(name, namespace=name).request() for name in ("a", "b"))
    assert one != other
    assert one.shape == other.shape
    assert one.shape != gpu_pod(mem=6).request().shape
    assert one.shape != gpu_pod(mem=5).numa_bound().request().shape
    assert one.shape != gpu_pod(mem=5).policy(device="mutex").request().shape
    assert one.shape != pod().init(gpu=1, mem=5).request().shape


# -- what they hold


@pytest.mark.parametrize(
    "one",
    [
        gpu_pod(),
        gpu_pod().on("n1"),
        gpu_pod().on("", "G,NVIDIA,1,1:;"),
        gpu_pod().on("n1", "G,NVIDIA,1,1:;").ended("Succeeded"),
        gpu_pod().on("n1", "G,NVIDIA,1,1:;").ended("Failed"),
    ],
)
def test_a_pod_that_is_not_bound_or_ended_holds_nothing(one: PodBuilder) -> None:
    assert PodReader(vendors()).facts(one.api()) is None


def test_a_running_pod_holds_what_its_annotation_says() -> None:
    facts = pod().init().container(gpu=2).on("n1", ";G,NVIDIA,10,5:H,NVIDIA,20,6:;").ended("Running").facts()
    assert (facts.uid, facts.namespace, facts.name, facts.node) == ("uid-p", "default", "p", "n1")
    assert facts.spans == (Span(Role.INIT), Span(Role.APP))
    assert facts.grants == {"NVIDIA": ((), (Grant("G", "NVIDIA", 10, 5), Grant("H", "NVIDIA", 20, 6)))}
    assert facts.problem == ""


def test_several_vendors_of_one_pod_are_all_held() -> None:
    one = gpu_pod().on("n1", "G,NVIDIA,10,5:;").annotate(("hami.io/dcu-devices-allocated", "D,DCU,1,2:;"))
    assert {vendor: len(grants) for vendor, grants in one.facts().grants.items()} == {"DCU": 1, "NVIDIA": 1}


def test_extra_entries_that_plugins_append_change_nothing() -> None:
    short, long = (gpu_pod().on("n1", text).facts() for text in ("G,NVIDIA,10,5:;", "G,NVIDIA,10,5:;;;"))
    assert short.spans == long.spans == (Span(Role.APP),)
    assert short.grants["NVIDIA"][0] == long.grants["NVIDIA"][0]


def test_fewer_entries_of_one_vendor_than_containers_void_all_positions() -> None:
    one = pod().init().container(gpu=1).on("n1", ";G,NVIDIA,10,5:;")
    assert one.facts().spans != ()
    assert one.annotate(("hami.io/dcu-devices-allocated", "D,DCU,1,2:;")).facts().spans == ()


@pytest.mark.parametrize(
    ("names", "exit_code", "finished"),
    [((), 0, [False, False]), (("init0",), 0, [True, False]), (("init0",), 1, [False, False])],
)
def test_only_an_init_container_that_ended_well_is_finished(
    names: tuple[str, ...], exit_code: int, finished: list[bool]
) -> None:
    one = pod().init(gpu=1).container(gpu=1).on("n1", "G,NVIDIA,1,1:;G,NVIDIA,1,1:;")
    assert [span.finished for span in one.after_init(*names, exit_code=exit_code).facts().spans] == finished


def test_a_sidecar_that_stopped_is_not_finished() -> None:
    one = pod().sidecar(gpu=1).container().on("n1", "G,NVIDIA,1,1:;;").after_init("init0")
    assert one.facts().spans[0] == Span(Role.SIDECAR)


def test_settings_of_a_vendor_are_kept_for_its_rules() -> None:
    key = "metax-tech.com/sgpu-qos-policy"
    one = gpu_pod().on("n1", "").annotate(("hami.io/metax-sgpu-devices-allocated", "M,Metax-SGPU,1,1:;"), (key, "x"))
    assert one.facts().settings == (("Metax-SGPU", ((key, "x"),)),)


def test_the_words_of_models_are_kept_where_a_vendor_writes_them() -> None:
    one = gpu_pod().on("n1").annotate(("hami.io/amd-devices-allocated", "A,MI300X,10,5:;"))
    assert one.facts().grants["AMD"][0][0].word == "MI300X"


def test_thousands_of_entries_are_read() -> None:
    text = "".join(f"G{number},NVIDIA,1,1:" for number in range(5000)) + ";" * 3000
    assert len(gpu_pod().on("n1", text).facts().grants["NVIDIA"][0]) == 5000


# -- reading many


def test_a_reader_of_many_answers_as_one_who_reads_afresh() -> None:
    reader = PodReader(vendors())
    pods = [
        gpu_pod(mem=5),
        gpu_pod(mem=7),
        gpu_pod(gpu="many"),
        gpu_pod(mem=5).policy(node="spread"),
        pod().container(),
    ]
    for one in [*pods, *pods]:
        assert reader.request(one.api()) == pod_request(one.api(), vendors())


def test_a_bad_value_names_the_container_that_has_it_however_often_it_was_read() -> None:
    reader = PodReader(vendors())
    for one, name in ((pod().container(gpu="many"), "c0"), (pod().container().container(gpu="many"), "c1")):
        found = reader.request(one.api())
        assert isinstance(found, BadPod)
        assert found.container == name


def test_other_vendors_read_what_was_read_before_in_their_own_way() -> None:
    known = dict(vendors())
    reader = PodReader(known)
    assert reader.request(gpu_pod().api()) == pod_request(gpu_pod().api(), known)
    held = gpu_pod().on("n1", "G,NVIDIA,10,5:;").api()
    assert reader.facts(held) is not None
    del known["NVIDIA"]
    reader.forget()
    found = reader.request(gpu_pod().api())
    assert not isinstance(found, BadPod)
    assert not found.asks_for_devices
    assert reader.facts(held) is None


def test_amounts_beyond_those_remembered_are_read_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_pods, "REMEMBERED", 2)
    reader = PodReader(vendors())
    for memory in (1, 2, 3, 4, 1):
        (ask,) = _request(reader, gpu_pod(mem=memory)).containers
        assert ask.requests[0].memory == memory


def _request(reader: PodReader, one: PodBuilder) -> PodRequest:
    found = reader.request(one.api())
    assert isinstance(found, PodRequest)
    return found


# -- pods that are too large


def with_requests(count: int) -> PodBuilder:
    asking = pod()
    for _ in range(count):
        asking = asking.init(gpu=1, mem=100)
    return asking


def with_annotation(key: str, value: str) -> PodBuilder:
    return gpu_pod().annotate((key, value))


@pytest.mark.parametrize(
    ("asking", "text"),
    [
        (with_requests(MAX_REQUESTS + 1), "17 requests for devices in one pod; at most 16"),
        (replace(gpu_pod(), containers=({"name": "c"},) * 513), "513 containers in one pod; at most 512"),
        (
            with_annotation("nvidia.com/use-gpuuuid", "x" * (MAX_ANNOTATION + 1)),
            "annotation nvidia.com/use-gpuuuid has 16385 characters; at most 16384",
        ),
        (
            with_annotation("hami.io/gpu-scheduler-policy", "spread," * 3000),
            "annotation hami.io/gpu-scheduler-policy has 21000 characters; at most 16384",
        ),
        (
            with_annotation("nvidia.com/nouse-gpuuuid", ",".join(map(str, range(257)))),
            "annotations list 257 models and uuids of NVIDIA; at most 256",
        ),
    ],
)
def test_a_pod_that_would_cost_all_others_too_much_is_refused(asking: PodBuilder, text: str) -> None:
    assert asking.fault() == BadPod("", text)


@pytest.mark.parametrize(
    "asking",
    [
        with_requests(MAX_REQUESTS),
        replace(gpu_pod(), init_containers=({"name": "c"},) * 511),
        with_annotation("nvidia.com/use-gpuuuid", ",".join(f"GPU-{i:036}" for i in range(256))),
        with_annotation("example.com/notes", "x" * 250_000),
        pod().container().annotate(("nvidia.com/use-gpuuuid", "x" * 250_000)),
    ],
)
def test_a_pod_within_the_limits_is_read(asking: PodBuilder) -> None:
    asking.request()


def test_an_allocation_that_is_too_long_to_be_read_holds_its_node() -> None:
    for text in ("n1-0,NVIDIA,1,1:" * 5001 + ";", ";" * 5001):
        facts = gpu_pod().on("n1", text).facts()
        assert facts.problem == "the allocation of pod default/p cannot be read: it has 5001 entries; at most 5000"
    reserved = gpu_pod().on("n1", "n1-0,NVIDIA,1,1:;").annotate(("hami.io/vgpu-mig-allocations", "[" + "{}," * 5001))
    assert "at most 5000" in reserved.facts().problem


def test_long_texts_are_not_remembered() -> None:
    reader = PodReader(vendors())
    reader.facts(gpu_pod().on("n1", "n1-0,NVIDIA,1,1:" * 300 + ";").api())
    reader.request(gpu_pod(limits={f"example.com/r{i}": "1" for i in range(100)}).api())
    assert not reader._grants
    assert not reader._read


@pytest.mark.parametrize(
    ("text", "weights"),
    [
        ("slot=1,core=1,memory=3", Weights(1, 1, 3)),
        ("memory=3,slot=1,core=2", Weights(1, 2, 3)),
        (" memory = 3, slot = 1, core = 0 ", Weights(1, 0, 3)),
        ("slot=0,core=0,memory=9223372036854775807", Weights(0, 0, 2**63 - 1)),
        ("slot=+1,core=0,memory=0", Weights(1, 0, 0)),
    ],
)
def test_weights_are_read_in_any_order(text: str, weights: Weights) -> None:
    assert decode_scoring_weights(text) == weights


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "expected slot, core, and memory weights"),
        ("slot=1,memory=3", "expected slot, core, and memory weights"),
        ("slot=1,core=1,memory=3,", "expected slot, core, and memory weights"),
        ("slot=1,core,memory=3", "expected key=value entries"),
        (",,", "expected key=value entries"),
        ("slot=1,slot=2,memory=3", 'duplicate "slot" weight'),
        ("slot=1,core=high,memory=3", '"core" weight must be an integer'),
        ("slot=1,core=1=2,memory=3", '"core" weight must be an integer'),
        ("slot=1,core=,memory=3", '"core" weight must be an integer'),
        ("slot=1,core=9223372036854775808,memory=3", '"core" weight must be an integer'),
        ("slot=1,core=1.5,memory=3", '"core" weight must be an integer'),
        ("slot=1,core=1_0,memory=3", '"core" weight must be an integer'),
        ("slot=1,core=-1,memory=3", '"core" weight must not be negative'),
        ("slot=1,bandwidth=2,memory=3", 'unknown weight "bandwidth"'),
        ("Slot=1,core=2,memory=3", 'unknown weight "Slot"'),
        ("slot=0,core=0,memory=0", "at least one weight must be positive"),
    ],
)
def test_bad_weights_are_refused_in_hamis_words(text: str, reason: str) -> None:
    with pytest.raises(WireError) as caught:
        decode_scoring_weights(text)
    assert str(caught.value) == f'invalid hami.io/device-scoring-weights annotation "{text}": {reason}'


def test_strange_text_is_escaped_and_cut() -> None:
    with pytest.raises(WireError) as caught:
        decode_scoring_weights('"\n\ud800' + "x" * 100_000)
    assert '"\\"\\n?xxx' in str(caught.value)
    assert len(str(caught.value)) < 400
