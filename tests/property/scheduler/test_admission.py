"""Admission of arbitrary pods."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tessera.core.fit.quota import QuotaFacts
from tessera.core.ledger.ledger import Ledger
from tessera.core.model.requests import PodRequest
from tessera.scheduler.admission.pod_admission import admit
from tessera.scheduler.settings import PrivilegedMode, Settings
from tessera.vendors.downward_api import read_references
from tessera.vendors.pod_reader import pod_request
from tessera.wire.admission import Verdict
from tessera.wire.objects import Pod
from tests.support.admission import Document, patched, pod, sample, vendors
from tests.support.strategies import examples

SAMPLES = [sample(name) for name in ("plain", "kubectl-gpu", "generateName", "deployment")]
NAMES = sorted({name for vendor in vendors().values() for name in vendor.names.all})

# -- pods that an apiserver could send

quantities = st.one_of(
    st.integers(-2, 200).map(str),
    st.sampled_from(["", "1", "2", "2Gi", "3k", "1500m", "0.5", "1e3", "-1", "x", "9" * 40, "16000"]),
    st.integers(-3, 2**70),
    st.floats(allow_nan=False),
)
common = st.sampled_from(["nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpucores", "nvidia.com/gpumem-percentage"])
amounts = st.dictionaries(st.one_of(common, st.sampled_from(NAMES), st.just("cpu")), quantities, max_size=4)
sane = st.builds(
    lambda gpu, rest: {"nvidia.com/gpu": gpu, **rest},
    st.sampled_from(["1", "2", "17"]),
    st.dictionaries(
        st.sampled_from(["nvidia.com/gpumem", "nvidia.com/gpucores"]), st.sampled_from(["3k", "30", "100"])
    ),
)
variables = st.builds(
    lambda name, how: {"name": name, **how},
    st.sampled_from(
        [
            "NVIDIA_VISIBLE_DEVICES",
            "ASCEND_VISIBLE_DEVICES",
            "CUDA_DEVICE_MEMORY_LIMIT",
            "CUDA_DEVICE_MEMORY_LIMIT_0",
            "CUDA_DEVICE_SM_LIMIT_1",
            "CUDA_DISABLE_CONTROL",
            "CUDA_TASK_PRIORITY",
            "GPU_CORE_UTILIZATION_POLICY",
            "TESSERA_POD_UID",
            "SOL_CONTINER_NAME",
            "OTHER",
        ]
    ),
    st.sampled_from(
        [
            {},
            {"value": ""},
            {"value": "all"},
            {"value": "disable"},
            {"valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.uid"}}},
        ]
    ),
)


@st.composite
def containers(draw: st.DrawFn) -> Document:
    limits = draw(st.one_of(sane, amounts))
    made: Document = {"name": draw(st.sampled_from(["a", "b", ""])), "resources": {"limits": limits}}
    if draw(st.booleans()):
        made["resources"]["requests"] = dict(limits)
    if draw(st.booleans()):
        made["env"] = draw(st.lists(variables, max_size=6))
    if draw(st.booleans()):
        made["envFrom"] = draw(st.lists(st.sampled_from([{}, {"prefix": "APP_"}, {"prefix": "CUDA_"}]), max_size=2))
    made |= draw(st.sampled_from([{}, {}, {"securityContext": {"privileged": True}}, {"restartPolicy": "Always"}]))
    return made


wishes = st.dictionaries(
    st.sampled_from(
        [
            "nvidia.com/vgpu-mode",
            "hami.io/device-scoring-weights",
            "huawei.com/vnpu-mode",
            "metax-tech.com/sgpu-app-class",
        ]
    ),
    st.sampled_from(["", "mig", "hami-core", "slot=1", "online"]),
    max_size=2,
)
pods = st.builds(
    lambda apps, init, noted, spec: pod(*apps, init=tuple(init), annotations=noted, **spec),
    st.lists(containers(), min_size=1, max_size=3),
    st.lists(containers(), max_size=2),
    st.one_of(st.none(), wishes),
    st.sampled_from([{}, {}, {}, {"nodeName": "n1"}, {"schedulerName": "other"}, {"schedulerName": ""}]),
)

# -- documents that no apiserver would send

scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=8))
documents = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)),
    max_leaves=8,
)


def places(document: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner: list[tuple[Any, Any]] = []
    if isinstance(document, dict):
        inner = list(document.items())
    elif isinstance(document, list):
        inner = list(enumerate(document))
    return [path, *(found for key, value in inner for found in places(value, (*path, key)))]


@st.composite
def broken(draw: st.DrawFn) -> Any:
    """A recorded or made pod, with a few places replaced or taken out."""
    root = {"pod": copy.deepcopy(draw(st.one_of(st.sampled_from(SAMPLES), pods)))}
    for _ in range(draw(st.integers(1, 3))):
        *parents, last = draw(st.sampled_from([place for place in places(root) if place]))
        target: Any = root
        for key in parents:
            target = target[key]
        if draw(st.booleans()) or target is root:
            target[last] = draw(st.one_of(documents, st.sampled_from(NAMES)))
        else:
            del target[last]
    return root["pod"]


settings_of = st.builds(
    Settings,
    scheduler_name=st.sampled_from(["hami-scheduler", ""]),
    privileged=st.sampled_from(PrivilegedMode),
    allow_disable_control=st.booleans(),
    injects_downward_api=st.booleans(),
)
configurations = st.sampled_from(
    [{}, {"overwrite_env": True, "runtime_class_name": "nvidia"}, {"gpu_core_policy": "disable"}]
)


def decided(document: Any, how: Settings, nvidia: dict[str, Any], limit: int = 10**6) -> Verdict:
    makers = vendors(**nvidia)
    ledger = Ledger(makers)
    ledger.quotas.set_quota(QuotaFacts("team-a", "q", {"nvidia.com/gpumem": limit}))
    return admit(document, namespace="team-a", vendors=makers, settings=how, ledger=ledger)


@given(document=pods, how=settings_of, nvidia=configurations)
@examples(4)
def test_admitting_a_pod_again_changes_nothing(document: Document, how: Settings, nvidia: dict[str, Any]) -> None:
    before = copy.deepcopy(document)
    answer = decided(document, how, nvidia)
    assert document == before
    if not answer.allowed:
        assert (answer.code, answer.patch) == (403, ())
        assert answer.message
        return
    stored = patched(document, answer.patch)
    assert answer.changed in (None, stored)
    again = decided(stored, how, nvidia)
    assert again.allowed
    assert again.patch == ()
    assert set(again.warnings) <= set(answer.warnings)


@given(document=pods, how=settings_of, nvidia=configurations)
@examples(2)
def test_a_patch_touches_nothing_but_what_admission_decides(
    document: Document, how: Settings, nvidia: dict[str, Any]
) -> None:
    for operation in decided(document, how, nvidia).patch:
        match operation["path"].split("/")[1:]:
            case ["spec", "schedulerName" | "runtimeClassName"] | ["metadata", "annotations", *_]:
                pass
            case ["spec", "containers" | "initContainers", _, "env" | "resources", *_]:
                pass
            case _:
                raise AssertionError(operation)


@given(document=pods, nvidia=configurations)
@examples(3)
def test_a_stored_pod_reads_all_its_slices_through_the_downward_api_or_none_can(
    document: Document, nvidia: dict[str, Any]
) -> None:
    answer = decided(document, Settings(), nvidia)
    ours = document["spec"]["schedulerName"] != "other"
    if not (answer.allowed and ours):
        return
    stored = msgspec.convert(patched(document, answer.patch), Pod)
    built = vendors(**nvidia)
    request = pod_request(stored, built)
    privileged = any(c.security_context for c in [*stored.init_containers, *stored.app_containers])
    if privileged or not isinstance(request, PodRequest):
        return
    covered = {"NVIDIA"} >= set(request.vendors) and request.constraint("NVIDIA").mode != "mig"
    assert read_references(stored, built).cover(request, built) is (covered or not request.asks_for_devices)


@given(document=st.one_of(broken(), documents), how=settings_of, nvidia=configurations)
@examples(6)
def test_a_document_of_any_kind_gets_an_answer(document: Any, how: Settings, nvidia: dict[str, Any]) -> None:
    answer = decided(document, how, nvidia, limit=1000)
    assert answer.code in (200, 400, 403)
    assert answer.allowed is (answer.code == 200)
    if answer.allowed:
        assert decided(patched(document, answer.patch), how, nvidia, limit=1000).patch == ()
    else:
        assert answer.message
