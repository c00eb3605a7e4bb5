from __future__ import annotations

import copy
import json
from typing import Any

import msgspec
import pytest

from tessera.core.model.devices import Device, MigPlacement, MigProfile, MigSlot
from tessera.core.model.grants import Grant
from tessera.core.model.node_info import Card
from tessera.core.model.requests import Request
from tessera.vendors.base import NodeProblem
from tessera.vendors.drafts import BadRequest, ContainerDraft, Denied, PodDraft, Resources
from tessera.vendors.nvidia import Nvidia
from tessera.vendors.nvidia.backend import CHART, NvidiaSection
from tests.support.vendor_cases import VendorNode, devices, node

GPU = "nvidia.com/gpu"
MEM = "nvidia.com/gpumem"
PERCENT = "nvidia.com/gpumem-percentage"
CORES = "nvidia.com/gpucores"
PRIORITY = "nvidia.com/priority"
REGISTER = "hami.io/node-nvidia-register"
SCORES = "hami.io/node-nvidia-score"

CARDS = {"count": 10, "devmem": 81920, "devcore": 100, "health": True}
REGISTERED = json.dumps(
    [
        {"id": "GPU-a", "type": "NVIDIA A100-SXM4-80GB", **CARDS},
        {"id": "GPU-b", "index": 1, "type": "NVIDIA H100", **CARDS},
    ]
)


def nvidia(**changes: Any) -> Nvidia:
    return Nvidia(msgspec.structs.replace(CHART, **changes))


def admitted(
    vendor: Nvidia, limits: dict[str, Any], **container: Any
) -> tuple[ContainerDraft, PodDraft, bool | Denied]:
    draft = ContainerDraft(limits=dict(limits), name="main", **container)
    pod = PodDraft(containers=[draft])
    verdict = vendor.mutate(draft, pod)
    once = copy.deepcopy(pod)
    assert vendor.mutate(draft, pod) == verdict
    assert pod == once, "a second mutation must change nothing"
    return draft, pod, verdict


# -- requests after admission


@pytest.mark.parametrize(
    ("limits", "count", "memory", "percent", "cores"),
    [
        ({GPU: 1}, 1, 0, 100, 100),
        ({GPU: "2", MEM: "3000"}, 2, 3000, 0, 0),
        ({MEM: "3000"}, 1, 3000, 0, 0),
        ({CORES: "30"}, 1, 0, 100, 30),
        ({PERCENT: "50"}, 1, 0, 50, 0),
        ({GPU: 1, PERCENT: 50, CORES: 30}, 1, 0, 50, 30),
        ({GPU: 1, PERCENT: 100}, 1, 0, 100, 100),
        ({GPU: 1, PERCENT: 0}, 1, 0, 100, 0),
        ({GPU: 1, MEM: 0}, 1, 0, 100, 0),
        ({GPU: 1, MEM: "3k"}, 1, 3000, 0, 0),
        ({GPU: 1, MEM: 3000, PERCENT: 50}, 1, 3000, 0, 0),
        ({GPU: 1, CORES: 120}, 1, 0, 100, 120),
    ],
)
def test_a_request_after_admission(limits: dict[str, Any], count: int, memory: int, percent: int, cores: int) -> None:
    draft, _, verdict = admitted(nvidia(), limits)
    assert verdict is True
    assert nvidia().request(draft) == Request("NVIDIA", count, memory, percent, cores)


@pytest.mark.parametrize("limits", [{}, {GPU: 0}, {GPU: "0", MEM: 3000}, {"cpu": "1"}])
def test_a_container_without_a_card_asks_for_nothing(limits: dict[str, Any]) -> None:
    draft, pod, verdict = admitted(nvidia(), limits)
    assert verdict is False
    assert draft.limits == limits
    assert not pod.warnings
    assert nvidia().request(draft) is None


@pytest.mark.parametrize(
    ("limits", "resource", "advice"),
    [
        ({GPU: 1, MEM: "2Gi"}, MEM, "2048"),
        ({GPU: 1, MEM: "1Gi"}, MEM, "1024"),
        ({GPU: 1, MEM: "1500m"}, MEM, "whole number of MiB"),
        ({GPU: 1, MEM: "-5"}, MEM, "from 0"),
        ({GPU: 1, MEM: "many"}, MEM, "whole number of MiB"),
        ({GPU: 1, MEM: "9" * 5000}, MEM, "whole number of MiB"),
        ({GPU: "500m"}, GPU, "whole number"),
        ({GPU: -1}, GPU, "from 0"),
        ({GPU: 2**31}, GPU, "from 0 to 2147483647"),
        ({GPU: 1, CORES: "-1"}, CORES, "from 0"),
        ({GPU: 1, CORES: "½"}, CORES, "whole number"),
    ],
)
def test_an_amount_that_cannot_be_written_down_is_refused_with_advice(
    limits: dict[str, Any], resource: str, advice: str
) -> None:
    draft, _, verdict = admitted(nvidia(), limits)
    assert verdict is True
    answer = nvidia().request(draft)
    assert isinstance(answer, BadRequest)
    assert answer.resource == resource
    assert advice in answer.advice


def test_a_percentage_that_never_passed_the_webhook_is_held_within_the_card() -> None:
    vendor = nvidia()
    assert vendor.request(Resources(limits={GPU: 1, PERCENT: 150})) == Request("NVIDIA", 1, percent=100)
    assert isinstance(vendor.request(Resources(limits={GPU: 1, PERCENT: -1})), BadRequest)


def test_requests_count_where_limits_are_missing() -> None:
    assert nvidia().request(Resources(requests={GPU: 1, MEM: 100})) == Request("NVIDIA", 1, memory=100)


def test_configured_defaults_fill_what_is_not_named() -> None:
    vendor = nvidia(default_memory=5000, default_cores=30)
    assert vendor.request(Resources(limits={GPU: 1})) == Request("NVIDIA", 1, memory=5000, cores=30)
    assert vendor.request(Resources(limits={GPU: 1, PERCENT: 20})) == Request("NVIDIA", 1, percent=20, cores=30)


def test_a_memory_factor_scales_requests_and_quotas() -> None:
    vendor = nvidia(memory_factor=1024)
    assert vendor.quota_factor == 1024
    assert vendor.request(Resources(limits={GPU: 1, MEM: 4})) == Request("NVIDIA", 1, memory=4096)
    answer = vendor.request(Resources(limits={GPU: 1, MEM: "4Gi"}))
    assert isinstance(answer, BadRequest)
    assert "units of 1024 MiB" in answer.advice


# -- admission


@pytest.mark.parametrize("value", ["101", -1, "50500m", "half", 2**70])
def test_a_percentage_out_of_range_is_denied_in_the_words_of_hami(value: Any) -> None:
    _, _, verdict = admitted(nvidia(), {GPU: 1, PERCENT: value})
    assert verdict == Denied(
        f"invalid nvidia.com/gpumem-percentage value {value} in container main: must be an integer between 0 and 100"
    )


def test_a_percentage_in_the_requests_is_checked_too() -> None:
    _, _, verdict = admitted(nvidia(), {GPU: 1}, requests={PERCENT: "200"})
    assert isinstance(verdict, Denied)


def test_no_default_count_without_configuration() -> None:
    draft, _, verdict = admitted(nvidia(default_gpu_num=0), {MEM: 3000})
    assert verdict is False
    assert draft.limits == {MEM: 3000}


def test_nothing_matches_where_no_names_are_configured() -> None:
    vendor = Nvidia(NvidiaSection(default_gpu_num=1))
    draft, _, verdict = admitted(vendor, {GPU: 1, "": 5})
    assert verdict is False
    assert vendor.request(draft) is None
    assert vendor.names.all == ()


def test_a_plain_count_becomes_the_whole_card_and_says_so() -> None:
    draft, pod, _ = admitted(nvidia(), {GPU: 1})
    assert draft.limits == {GPU: 1, CORES: "100"}
    assert len(pod.warnings) == 1
    assert "whole cards" in pod.warnings[0]
    assert MEM in pod.warnings[0]


def test_a_whole_card_needs_a_name_for_cores() -> None:
    draft, pod, verdict = admitted(nvidia(resource_core_name=""), {GPU: 1})
    assert verdict is True
    assert draft.limits == {GPU: 1}
    assert not pod.warnings


def test_without_a_memory_resource_every_plain_count_is_a_whole_card() -> None:
    draft, pod, _ = admitted(nvidia(resource_memory_name=""), {GPU: 1, MEM: 3000})
    assert draft.limits[CORES] == "100"
    assert f"ask for {CORES} to share" in pod.warnings[0]


def test_memory_beside_percentage_wins_and_says_so() -> None:
    _, pod, _ = admitted(nvidia(), {GPU: 1, MEM: 3000, PERCENT: 50})
    assert pod.warnings == [f"container main: {MEM} decides, {PERCENT} beside it is ignored"]


@pytest.mark.parametrize(
    ("limits", "env"),
    [
        ({GPU: 1, MEM: 1, PRIORITY: "1"}, {"CUDA_TASK_PRIORITY": "1"}),
        ({PRIORITY: "1"}, {}),
        ({GPU: 1, MEM: 1}, {}),
    ],
)
def test_a_priority_reaches_only_containers_with_a_card(limits: dict[str, Any], env: dict[str, str]) -> None:
    draft, _, _ = admitted(nvidia(), limits)
    assert draft.env == env


def test_a_priority_that_is_no_number_is_denied() -> None:
    _, _, verdict = admitted(nvidia(), {GPU: 1, PRIORITY: "1500m"})
    assert isinstance(verdict, Denied)
    assert PRIORITY in verdict.text
    assert "container main" in verdict.text


@pytest.mark.parametrize(
    ("policy", "limits", "env", "warned"),
    [
        ("force", {GPU: 1, CORES: 30}, {"GPU_CORE_UTILIZATION_POLICY": "force"}, "even while the card is idle"),
        ("disable", {GPU: 1, CORES: 30}, {"GPU_CORE_UTILIZATION_POLICY": "disable"}, "is not enforced"),
        ("disable", {GPU: 1, MEM: 1}, {"GPU_CORE_UTILIZATION_POLICY": "disable"}, ""),
        ("force", {}, {}, ""),
        ("default", {GPU: 1, CORES: 30}, {}, ""),
        ("", {GPU: 1, CORES: 30}, {}, ""),
    ],
)
def test_a_core_policy(policy: Any, limits: dict[str, Any], env: dict[str, str], warned: str) -> None:
    draft, pod, _ = admitted(nvidia(gpu_core_policy=policy), limits)
    assert draft.env == env
    said = [text for text in pod.warnings if "best effort" not in text]
    assert [warned in text for text in said] == ([True] if warned else [])


BEST_EFFORT = (
    f"{CORES} is best effort on cards in mode hami-core, large kernels exceed their share; nvidia.com/vgpu-mode: mps or"
    " mig asks for cards that enforce it, if this cluster has them"
)


@pytest.mark.parametrize("mode", [None, "hami-core", "mps,hami-core"])
@pytest.mark.parametrize("cores", [1, 30, 99])
def test_a_share_of_cores_is_said_to_be_best_effort_once_per_pod(mode: str | None, cores: int) -> None:
    pod = PodDraft({} if mode is None else {"nvidia.com/vgpu-mode": mode})
    for name in ("one", "two"):
        nvidia().mutate(ContainerDraft({GPU: 1, CORES: cores}, name=name), pod)
    assert pod.warnings == [BEST_EFFORT]


@pytest.mark.parametrize(
    ("limits", "mode", "section"),
    [
        ({GPU: 1, CORES: 30}, "mps", {}),
        ({GPU: 1, CORES: 30}, "mig", {}),
        ({GPU: 1, CORES: 30}, "", {}),
        ({GPU: 1, CORES: 100}, "hami-core", {}),
        ({GPU: 1, CORES: 0, MEM: 1}, "hami-core", {}),
        ({GPU: 1, CORES: "x"}, "hami-core", {}),
        ({GPU: 1, MEM: 1}, "hami-core", {}),
        ({CORES: 30}, "hami-core", {"default_gpu_num": 0}),
        ({GPU: 1, CORES: 30}, "hami-core", {"disable_core_limit": True}),
        ({GPU: 1, CORES: 30}, "hami-core", {"gpu_core_policy": "disable"}),
    ],
)
def test_no_share_of_cores_or_one_that_is_enforced_or_not_limited_needs_no_word(
    limits: dict[str, Any], mode: str, section: dict[str, Any]
) -> None:
    pod = PodDraft({"nvidia.com/vgpu-mode": mode})
    nvidia(**section).mutate(ContainerDraft(limits, name="main"), pod)
    assert BEST_EFFORT not in pod.warnings


def test_a_tenant_does_not_choose_the_core_policy() -> None:
    key = "GPU_CORE_UTILIZATION_POLICY"
    draft, _, _ = admitted(nvidia(gpu_core_policy="force"), {GPU: 1}, env={key: "disable"})
    assert draft.env == {key: "force"}


@pytest.mark.parametrize(
    ("configured", "own", "limits", "expected"),
    [
        ("nvidia", None, {GPU: 1}, "nvidia"),
        ("nvidia", "kata", {GPU: 1}, "kata"),
        ("nvidia", None, {}, None),
        ("", None, {GPU: 1}, None),
    ],
)
def test_the_runtime_class(configured: str, own: str | None, limits: dict[str, Any], expected: str | None) -> None:
    pod = PodDraft(runtime_class=own)
    nvidia(runtime_class_name=configured).mutate(ContainerDraft(limits=dict(limits)), pod)
    assert pod.runtime_class == expected


def test_a_pod_says_which_cards_it_accepts() -> None:
    constraint = nvidia().constraint(
        {
            "nvidia.com/use-gputype": "A100, h100,",
            "nvidia.com/nouse-gputype": " ",
            "nvidia.com/use-gpuuuid": "GPU-b,GPU-a",
            "nvidia.com/nouse-gpuuuid": "GPU-c",
            "nvidia.com/vgpu-mode": "mig",
        }
    )
    assert constraint.use_models == ("a100", "h100")
    assert constraint.avoid_models == ()
    assert constraint.use_uuids == ("GPU-a", "GPU-b")
    assert constraint.avoid_uuids == ("GPU-c",)
    assert constraint.mode == "mig"


# -- nodes


def test_cards_come_from_the_register_annotation() -> None:
    cards = devices(nvidia(), node(annotations={REGISTER: REGISTERED}))
    assert [(c.uuid, c.vendor, c.index, c.memory, c.model) for c in cards] == [
        ("GPU-a", "NVIDIA", 0, 81920, "NVIDIA A100-SXM4-80GB"),
        ("GPU-b", "NVIDIA", 1, 81920, "NVIDIA H100"),
    ]


@pytest.mark.parametrize(
    ("text", "mode", "index"),
    [
        ("GPU-a,10,7680,100,NVIDIA-T4,0,true:", "hami-core", 0),
        ("GPU-a,10,7680,100,NVIDIA-T4,0,true,3,mps:", "mps", 3),
    ],
)
def test_registrations_of_old_agents_are_read(text: str, mode: str, index: int) -> None:
    cards = devices(nvidia(), node(annotations={REGISTER: text}))
    assert cards == (
        Device("GPU-a", "NVIDIA", index=index, slots=10, memory=7680, cores=100, model="NVIDIA-T4", mode=mode),
    )


@pytest.mark.parametrize("text", ["[{", "nonsense", "GPU-a,10:", "[" * 100_000, '[{"id":"x"},{"id":"x"}]'])
def test_an_unreadable_registration_is_a_problem_of_the_node(text: str) -> None:
    problem = nvidia().devices(node(annotations={REGISTER: text, SCORES: "[]"}))
    assert isinstance(problem, NodeProblem)
    assert problem.text.startswith(f"{REGISTER}: ")


def test_pair_scores_become_links() -> None:
    scores = json.dumps([{"uuid": "GPU-a", "score": {"GPU-b": 400}}])
    cards = devices(nvidia(), node(annotations={REGISTER: REGISTERED, SCORES: scores}))
    assert [dict(card.links) for card in cards] == [{"GPU-b": 400}, {}]


@pytest.mark.parametrize("scores", ["{", "", "nonsense", "[1]", '[{"uuid":"GPU-a","score":{"GPU-b":"far"}}]'])
def test_unreadable_pair_scores_do_not_lose_the_cards(scores: str) -> None:
    cards = devices(nvidia(), node(annotations={REGISTER: REGISTERED, SCORES: scores}))
    assert [(card.uuid, dict(card.links)) for card in cards] == [("GPU-a", {}), ("GPU-b", {})]


def test_cordoned_cards_are_refused() -> None:
    card = Card(Device("GPU-a", "NVIDIA", slots=10, memory=8000), cordoned=True)
    assert VendorNode(nvidia(), [card]).refusal(**{GPU: 1, MEM: 1000}) == "1/1 CardCordoned"


# -- binding


def test_two_shares_are_written_in_both_annotations() -> None:
    world = VendorNode(nvidia(), [Card(Device(uuid, "NVIDIA", slots=10, memory=8000)) for uuid in ("U1", "U0")])
    text = "U1,NVIDIA,3000,0:U0,NVIDIA,3000,0:;"
    assert world.written(world.grants(**{GPU: 2, MEM: 3000})) == {
        "hami.io/vgpu-devices-to-allocate": text,
        "hami.io/vgpu-devices-allocated": text,
    }


def test_every_container_has_its_place_in_the_annotation() -> None:
    grant = Grant("G", "NVIDIA", 1000, 30)
    written = VendorNode(nvidia(), []).written((), (grant,), ())
    assert written["hami.io/vgpu-devices-allocated"] == ";G,NVIDIA,1000,30:;;"


def test_mig_instances_are_written_with_their_places() -> None:
    profiles = (
        MigProfile("1g.5gb", 4864, 14, 1, tuple(MigPlacement(i, 1) for i in range(7))),
        MigProfile("2g.10gb", 9856, 29, 2, tuple(MigPlacement(i, 2) for i in (0, 2, 4))),
    )
    card = Card(Device("GPU-m", "NVIDIA", slots=7, memory=40960, mode="mig", mig_profiles=profiles))
    world = VendorNode(nvidia(), [card])
    written = world.written((), world.grants(**{GPU: 2, MEM: 8000}))
    assert written["hami.io/vgpu-devices-allocated"] == ";GPU-m,NVIDIA,9856,29:GPU-m,NVIDIA,9856,29:;"
    assert json.loads(written["hami.io/vgpu-mig-allocations"]) == [
        {
            "containerIndex": 1,
            "deviceIndex": index,
            "gpuUUID": "GPU-m",
            "profile": "2g.10gb",
            "placement": {"start": start, "size": 2},
        }
        for index, start in ((0, 0), (1, 2))
    ]


def test_places_of_mig_instances_count_cards_that_are_shared_too() -> None:
    mig = Grant("GPU-m", "NVIDIA", 4864, 14, mig=MigSlot("1g.5gb", MigPlacement(6, 1)))
    written = VendorNode(nvidia(), []).written((Grant("GPU-a", "NVIDIA", 100, 0), mig))
    (allocation,) = json.loads(written["hami.io/vgpu-mig-allocations"])
    assert (allocation["containerIndex"], allocation["deviceIndex"]) == (0, 1)


# -- configuration


def test_an_empty_section_has_the_zero_values_of_hami() -> None:
    section = msgspec.convert({}, NvidiaSection)
    assert section == NvidiaSection()
    assert section.default_gpu_num == 0
    assert Nvidia(section).quota_factor == 1


def test_a_section_of_an_old_version_loads() -> None:
    old = {
        "resourceCountName": GPU,
        "defaultGPUNum": 1,
        "libCudaLogLevel": "3",
        "deviceMemoryScaling": 1,
        "someKeyOfTheFuture": {},
        "knownMigGeometries": [
            {"models": ["A30"], "allowedGeometries": [[{"name": "1g.6gb", "core": 25, "memory": 6144, "count": 4}]]}
        ],
    }
    section = msgspec.convert(old, NvidiaSection)
    assert section.default_gpu_num == 1
    assert section.lib_cuda_log_level == "3"
    assert section.device_memory_scaling == 1.0
    assert Nvidia(section).names.count == GPU


@pytest.mark.parametrize(
    "section",
    [{"gpuCorePolicy": "sometimes"}, {"defaultMemory": -1}, {"memoryFactor": 2**40}, {"deviceMemoryScaling": -0.5}],
)
def test_a_section_with_impossible_values_does_not_load(section: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(section, NvidiaSection)


def test_the_chart_allows_profiles_for_every_mig_model() -> None:
    allowed = {model: entry.profiles for entry in CHART.mig_profile_allowlist for model in entry.models}
    assert len(allowed) == 17
    assert allowed["A100-PCIE-80GB"] == ("1g.10gb", "2g.20gb", "3g.40gb", "7g.79gb")
    assert allowed["RTX PRO 6000 Blackwell Server Edition"] == ("1g.24gb", "2g.48gb", "4g.96gb")


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        ({"models": ["A30"]}, "MIG profile allowlist must define models and profiles"),
        ({"profiles": ["1g.6gb"]}, "MIG profile allowlist must define models and profiles"),
        ({"models": ["A30"], "profiles": ["1g"]}, 'invalid MIG profile "1g"'),
        ({"models": ["A30"], "profiles": ["g.6gb"]}, 'invalid MIG profile "g.6gb"'),
        ({"models": ["A30"], "profiles": ["1g.6gb", "12.6gb"]}, 'invalid MIG profile "12.6gb"'),
        ({"models": ["A30"], "profiles": [""]}, 'invalid MIG profile ""'),
    ],
)
def test_an_allow_list_that_makes_no_sense_stops_the_start(entry: dict[str, Any], text: str) -> None:
    section = msgspec.convert({"migProfileAllowlist": [entry]}, NvidiaSection)
    with pytest.raises(ValueError, match="invalid MIG profile allowlist: ") as caught:
        Nvidia(section)
    assert str(caught.value) == f"invalid MIG profile allowlist: {text}"
