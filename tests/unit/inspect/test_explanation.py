"""What `explain` says of a pod: placed, waiting, refused, invalid, and always what the scheduler would decide."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tessera.inspect.explanation import PodVerdict, explain, find_pod
from tessera.inspect.offline_cluster import OfflineCluster
from tessera.inspect.render.explanation import source_lines
from tessera.inspect.sanitize import Sanitizer
from tessera.inspect.state import InspectionError
from tessera.inspect.verdicts import Fits
from tests.support.builders import A100_40GB, GPU, MEMORY, NodeBuilder, PodBuilder, gpu_pod, node, pod, vendors
from tests.support.cluster_states import quota, state_of
from tests.support.explained import explained, fits, refused, told
from tests.support.stepwise_scheduler import World as SchedulerWorld
from tests.support.stepwise_scheduler import serving_downward_api, using_downward_api

HELD = "n1-0,NVIDIA,60000,30:;"


async def test_a_pending_pod_is_told_the_nearest_card_who_holds_it_and_what_would_fit() -> None:
    big, small = node("n1").gpus(1, memory=80000), node("n2").gpus(1, memory=16000)
    holder = gpu_pod("holder", mem=60000, cores=30).on("n1", HELD)
    cluster = OfflineCluster(state_of([big, small], [holder, gpu_pod("p", mem=30000)]))
    found = explain(cluster, "default/p", cards=True)
    assert (found.status, found.is_good) == (PodVerdict.REFUSED, False)
    near = "needs 30000 MiB; the most free on one card is 20000 of 80000 MiB on n1 (n1-0)"
    assert refused(found).near_miss == near
    assert refused(found).event == f"{near}; 2 of 2 nodes: not enough free memory on the card"
    assert [holder.text for holder in refused(found).holders] == ["default/holder (60000 MiB, 30 cores)"]
    assert [change.text for change in refused(found).changes] == [
        "container c0: 20000 instead of 30000 MiB of memory would fit on n1"
    ]
    assert [(card.node, card.asked, card.free, card.total) for card in refused(found).cards] == [
        ("n1", 30000, 20000, 80000),
        ("n2", 30000, 16000, 16000),
    ]
    text = told(found)
    assert "that card is held by default/holder (60000 MiB, 30 cores)" in text
    assert "2 nodes: 1/1 CardInsufficientMemory" in text
    assert "not enough free memory on the card" in text


async def test_a_placed_pod_is_shown_with_its_slices_and_the_scores_of_its_choice() -> None:
    holder = gpu_pod("p", mem=60000, cores=30).on("n1", HELD)
    cluster = OfflineCluster(state_of([node("n1").gpus(2), node("n2").gpus(2)], [holder]))
    before = cluster.ledger.state()
    found = explain(cluster, "default/p")
    assert (found.status, found.node) == (PodVerdict.PLACED, "n1")
    assert [(one.container, one.card, one.memory_mib, one.cores) for one in found.slices] == [("c0", "n1-0", 60000, 30)]
    assert [one.node for one in fits(found).best] == ["n1", "n2"]
    assert [one.card for one in fits(found).cards] == ["n1-1", "n1-0"]
    assert cluster.ledger.state() == before, "looking changes nothing"


async def test_a_pod_that_would_go_elsewhere_today_is_said_so() -> None:
    holder = gpu_pod("p", mem=60000, cores=30).on("n2", "n2-0,NVIDIA,60000,30:;")
    found = explained([node("n1").gpus(2), node("n2").gpus(2)], holder)
    assert "today it would go to n1:" in told(found)


@pytest.mark.parametrize(
    ("asking", "status", "words"),
    [
        (gpu_pod("p", mem="2Gi"), PodVerdict.INVALID, "its request is invalid"),
        (pod("p").container(), PodVerdict.NO_DEVICES, "requests no devices"),
        (gpu_pod("p").on("n1").ended(), PodVerdict.ENDED, "it holds no devices"),
        (gpu_pod("p").on("n1"), PodVerdict.UNACCOUNTED, "another scheduler placed it"),
        (gpu_pod("p", mem=100), PodVerdict.FITS, "not placed yet; it fits on n1"),
        (gpu_pod("p", mem=100).terminating(), PodVerdict.FITS, "it is being deleted"),
    ],
)
async def test_every_other_state_of_a_pod_is_named(asking: PodBuilder, status: PodVerdict, words: str) -> None:
    found = explained([node("n1").gpus(1)], asking)
    assert found.status is status
    assert words in told(found)


async def test_a_pod_of_another_scheduler_is_told_that_tessera_is_never_asked() -> None:
    state = state_of([node("n1").gpus(1)], [gpu_pod("p", mem=100)])
    foreign = {**state.pods[0], "spec": {**state.pods[0]["spec"], "schedulerName": "default-scheduler"}}
    found = explain(OfflineCluster(replace(state, pods=(foreign,))), "default/p")
    assert "its schedulerName is default-scheduler, not hami-scheduler" in told(found)


async def test_nodes_that_kube_scheduler_rules_out_are_no_candidates() -> None:
    state = state_of([node("n1").gpus(1), node("n2").gpus(1)], [gpu_pod("p", mem=100)])
    tainted = {**state.nodes[0], "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}}
    found = explain(OfflineCluster(replace(state, nodes=(tainted, state.nodes[1]))), "default/p")
    assert fits(found).node == "n2"
    assert [(group.reason, group.nodes) for group in found.kept_off] == [("node(s) had untolerated taint(s)", ("n1",))]


async def test_a_node_whose_registration_cannot_be_read_says_so() -> None:
    broken = node("n1").annotate(("hami.io/node-nvidia-register", "[{"))
    found = explained([broken], gpu_pod("p", mem=3000))
    assert "hami.io/node-nvidia-register" in told(found)


async def test_the_page_ends_with_what_it_was_made_from() -> None:
    lines = [line.text for line in source_lines(replace(state_of([]), unseen=("quotas",)))]
    assert lines[1:] == [
        "from a test; device configuration: the chart's defaults; the scheduler's flags are unknown",
        "not readable: quotas",
    ]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("p", "did you mean team-a/p"),
        ("team-a/q", 'did you mean "team-a/p"'),
    ],
)
async def test_a_pod_that_is_not_there_gets_a_hint(name: str, words: str) -> None:
    cluster = OfflineCluster(state_of([node("n1").gpus(1)], [gpu_pod().called("p", namespace="team-a")]))
    with pytest.raises(InspectionError, match=words):
        find_pod(cluster, name, "default")
    assert find_pod(cluster, "p", "team-a") == "team-a/p"


def some_pod(name: str, rng: random.Random) -> PodBuilder:
    """Shapes of all kinds, many of which do not fit."""
    made = pod(name, namespace=rng.choice(["default", "team-a"]))
    made = replace(made, uid=f"uid-{name}")
    for _ in range(rng.choice([1, 1, 1, 2])):
        amounts = {"gpu": rng.choice([1, 1, 2, 4]), "mem": rng.choice([1000, 20000, 45000, 70000])}
        made = made.container(**amounts, **({"cores": rng.choice([10, 60, 100])} if rng.random() < 0.6 else {}))
    if rng.random() < 0.3:
        made = made.init(gpu=1, mem=rng.choice([5000, 60000]))
    made = made.policy(node=rng.choice([None, "spread"]), device=rng.choice([None, "binpack", "topology-aware"]))
    if rng.random() < 0.2:
        made = made.annotate(("nvidia.com/use-gputype", rng.choice(["A100", "L4", "H100"])))
    return made.numa_bound() if rng.random() < 0.2 else made


@pytest.mark.no_cover
@pytest.mark.parametrize("seed", range(4))
async def test_the_explanation_never_disagrees_with_the_scheduler(seed: int) -> None:
    rng = random.Random(seed)
    nodes = [
        serving_downward_api(node("n1").gpus(4, numas=[0, 0, 1, 1])),
        serving_downward_api(node("n2").gpus(2, memory=23000, model="NVIDIA L4")),
        serving_downward_api(node("n3").gpus(2, slots=2).cordon("n3-0")),
        node("n4").capacity(**{GPU: 4}),
    ]
    scheduler = SchedulerWorld(*nodes)
    placed: list[PodBuilder] = []
    for number in range(15):
        asking = using_downward_api(some_pod(f"p{number:02}", rng))
        found = explain(OfflineCluster(state_of(nodes, [*placed, asking])), f"{asking.namespace}/{asking.name}")
        scheduler.create(asking)
        answer = scheduler.filtered(asking)
        if isinstance(found.verdict, Fits):
            assert answer["NodeNames"] == [found.verdict.node], answer
            placement = scheduler.placement(asking)
            assert [one.card for one in found.verdict.slices] == [
                grant.uuid for grants in placement.grants["NVIDIA"] for grant in grants
            ]
            assert await scheduler.bound(asking, found.verdict.node) == ""
            scheduler.watch()
            stored = scheduler.api.pods[f"{asking.namespace}/{asking.name}"]
            placed.append(asking.annotate(*stored.annotations.items()).on(found.verdict.node))
            again = explain(OfflineCluster(state_of(nodes, placed)), f"{asking.namespace}/{asking.name}")
            assert (again.status, again.slices) == (PodVerdict.PLACED, found.verdict.slices)
        else:
            texts = {name: group.reason for group in refused(found).groups for name in group.nodes}
            assert answer["FailedNodes"] == texts


async def test_a_pod_that_did_not_ask_for_mig_is_told_so_where_there_is_nothing_else() -> None:
    cut = node("n1").gpu("M", memory=40960, mode="mig", slots=7, profiles=A100_40GB)
    for built in (gpu_pod("p", mem=4000), using_downward_api(gpu_pod("p", mem=4000))):
        found = explained([cut], built)
        assert refused(found).mode == refused(found).event
        assert "only with the annotation nvidia.com/vgpu-mode: mig" in told(found)
        assert "no smaller request would fit" not in told(found)


async def test_a_node_with_mig_cards_is_not_said_to_fit_a_pod_that_cannot_go_there() -> None:
    cut = node("n2").gpu("M", memory=40960, mode="mig", slots=7, profiles=A100_40GB)
    large = gpu_pod("p", mem=60000)
    found = explained([node("n1").gpus(2, memory=80000), cut], large)
    assert ([each.node for each in fits(found).best], fits(found).fitting) == (["n1"], 1)


async def test_a_member_is_told_where_its_gang_stands() -> None:
    members = [gpu_pod(f"g-{i}").in_gang("g", 3) for i in range(3)]
    cluster = OfflineCluster(state_of([node("n1").gpus(2, slots=1)], members))
    found = explain(cluster, "default/g-0")
    assert (found.status, found.is_good) == (PodVerdict.GANG_WAITING, False)
    assert found.gang is not None
    assert found.gang.text.startswith("3 x 1 NVIDIA: 2 of 3 members fit; short of 1 card")
    assert "default/g-0: waits for its gang" in told(found)
    assert "Gang default/g, 3 members" in told(found)
    assert find_pod(cluster, "g", "default") == "default/g-0"


def of_gang(name: str) -> PodBuilder:
    return gpu_pod(name, mem=1000).in_gang("g", 3)


@pytest.mark.parametrize(
    ("members", "text", "fits"),
    [
        ([of_gang("p"), of_gang("q"), of_gang("r")], "3 x 1 NVIDIA (1000 MiB): all 3 members fit together", True),
        ([of_gang("p"), of_gang("q")], "2 of 3 members exist", False),
        (
            [of_gang("p"), of_gang("q"), of_gang("r").gated()],
            "2 of 3 members exist, 1 more wait for their schedulingGates",
            False,
        ),
        (
            [of_gang("p"), *(of_gang(name).on("n1", f"n1-{at},NVIDIA,1000,0:;") for at, name in enumerate("qr"))],
            "2 of 3 members are bound; the rest: 1 x 1 NVIDIA (1000 MiB): all 1 members fit together",
            True,
        ),
    ],
)
async def test_the_state_of_a_gang_is_told_in_words(members: list[PodBuilder], text: str, fits: bool) -> None:
    gang = explained([node("n1").gpus(4)], *members).gang
    assert gang is not None
    assert (gang.text, gang.fits) == (text, fits)


def picky(**wanted: str) -> PodBuilder:
    named = {f"nvidia.com/{name.replace('_', '-')}": text for name, text in wanted.items()}
    return gpu_pod("p", mem=100).annotate(*named.items())


MODES = [node("n1").gpus(1, mode="mps", model="NVIDIA L4"), node("n2").gpus(1, mode="hami-core", model="NVIDIA T4")]


@pytest.mark.parametrize(
    ("nodes", "asking", "said"),
    [
        (
            [node("n1").gpus(2, model="NVIDIA L4"), node("n2").gpus(1, model="NVIDIA A100")],
            picky(use_gputype="T4"),
            "no NVIDIA card is of a model with t4 in its name; there are 2 x NVIDIA L4, 1 x NVIDIA A100",
        ),
        (
            MODES,
            picky(vgpu_mode="mps", use_gputype="T4"),
            "the pod accepts the sharing mode mps,"
            " and the NVIDIA cards of the models that it accepts are in 1 x hami-core",
        ),
        (
            [node("n1").gpu("GPU-aaa1").gpu("GPU-bbb2"), node("n2").gpu("GPU-abc3")],
            picky(use_gpuuuid="GPU-bbb9"),
            "no NVIDIA card has the uuid GPU-bbb9; there are GPU-bbb2 (n1/1), GPU-aaa1 (n1/0), GPU-abc3 (n2/0)",
        ),
    ],
    ids=["model", "sharing mode", "uuid: the most alike first"],
)
async def test_what_no_card_can_be_is_answered_with_what_there_is(
    nodes: list[NodeBuilder], asking: PodBuilder, said: str
) -> None:
    found = explained(nodes, asking)
    assert refused(found).wishes == (said,)
    assert refused(found).event == said
    assert said in told(found)


async def test_a_wrong_sharing_mode_is_told_apart_from_a_wrong_model() -> None:
    found = explained(MODES, picky(vgpu_mode="mps", use_gputype="T4"))
    both = "the pod does not accept this model (NVIDIA L4), or this sharing mode (hami-core)"
    assert {group.mismatch for group in refused(found).groups} == {both}
    text = told(explained([node("n1").gpus(2, model="NVIDIA L4")], picky(use_gputype="T4")))
    assert "the pod does not accept this model (NVIDIA L4)" in text
    assert "sharing mode" not in text.split("Why not")[1]


async def test_a_card_on_a_node_that_kube_scheduler_excludes_is_found_by_its_uuid() -> None:
    state = state_of([node("n1").gpu("GPU-aaa1"), node("n2").gpu("GPU-abc3")], [picky(use_gpuuuid="GPU-abc3")])
    next(n for n in state.nodes if n["metadata"]["name"] == "n2")["spec"] = {"unschedulable": True}
    found = refused(explain(OfflineCluster(state), "default/p"))
    assert found.wishes == ("the card with the uuid GPU-abc3 is on n2, where kube-scheduler does not let the pod go",)


async def test_more_cards_than_a_node_has_lists_the_nodes_with_the_most_first() -> None:
    nodes = [node(f"n{number}").gpus(cards) for number, cards in enumerate((1, 2, 8, 4, 8))]
    found = explained(nodes, gpu_pod("p", gpu=9, mem=100))
    (group,) = refused(found).groups
    assert group.nodes == ("n2", "n4", "n3", "n1", "n0")
    assert group.detail == "n2 has 8 of NVIDIA; n4 has 8 of NVIDIA; n3 has 4 of NVIDIA"
    assert refused(found).near_miss == "needs 9 cards that fit on one node; the most are 8 on n2"


async def test_the_sentence_about_a_quota_has_its_numbers() -> None:
    holder = gpu_pod("holder", mem=60000, cores=30).on("n1", HELD)
    nodes = [node("n1").gpus(2, memory=80000)]
    limits = quota("default", {MEMORY: 70000})
    found = explained(nodes, holder, gpu_pod("p", mem=30000), quotas=[limits])
    assert "limits.nvidia.com/gpumem of namespace default leaves 10000 MiB: 20000 MiB too much" in refused(found).event
    assert "the namespace's quota has too little left" in told(found)


async def test_mistakes_of_a_pod_are_told() -> None:
    """Which ones there are: tests/unit/scheduler/test_honest_mistakes.py."""
    found = explained([node("n1").gpus(1)], picky(use_gputpye="L4"))
    said = "annotation nvidia.com/use-gputpye is unknown and has no effect; did you mean nvidia.com/use-gputype?"
    assert said in found.notes
    assert f"note: {said}" in told(found)


async def test_a_request_that_cannot_be_meant_is_told_once() -> None:
    found = explained([node("n1").gpus(1)], gpu_pod("p", mem="2Gi"))
    assert told(found).count("2Gi") == 1


async def test_a_pod_whose_only_resource_is_misspelt_is_not_told_about_its_scheduler() -> None:
    asking = pod("p").container(limits={"nvidia.com/gpus": 1})
    state = state_of([node("n1").gpus(1)], [asking])
    state.pods[0]["spec"]["schedulerName"] = "default-scheduler"
    found = explain(OfflineCluster(state), "default/p")
    assert found.notes == ("container c0: resource nvidia.com/gpus is unknown; did you mean nvidia.com/gpu?",)


def test_a_pod_that_waits_for_a_misspelt_resource_is_kept_for_explain() -> None:
    def waits(**spec: object) -> bool:
        return Sanitizer(vendors(), claims=False).waits_for_misspelt({"spec": spec})

    misspelt = {"name": "c", "resources": {"limits": {"nvidia.com/gpus": "1"}}}
    assert waits(containers=[misspelt])
    assert waits(initContainers=[misspelt], containers=[{"name": "d"}])
    assert not waits(containers=[misspelt], nodeName="n1")
    assert not waits(containers=[{"name": "c", "resources": {"limits": {"cpu": "1"}}}])
