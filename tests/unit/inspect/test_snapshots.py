from __future__ import annotations

import json
from dataclasses import replace

import pytest
from msgspec import structs

from tessera.core.model.requests import HostRequest
from tessera.inspect import sanitize
from tessera.inspect.anonymize import anonymize
from tessera.inspect.explanation import explain
from tessera.inspect.installation import build_offline_settings, parse_scheduler_flags, select_placement_flags
from tessera.inspect.offline_cluster import OfflineCluster
from tessera.inspect.snapshots import decode_snapshot, encode_snapshot
from tessera.inspect.state import ClaimObjects, ClusterState, InspectionError, Setup
from tessera.inspect.verdicts import Fits, FitsNowhere
from tessera.wire.pod_groups import GANG, GANG_SIZE
from tests.support.builders import MEMORY, NodeBuilder, PodBuilder, gpu_pod, node, pod, vendors
from tests.support.claim_scheduler import claiming, device_class, resource_claim, templated
from tests.support.cluster_states import claim_objects, document_of, held, plain, quota, state_of

KEY = b"key"
LOCK = "2026-01-01T00:00:00Z,team-secret,holder-pod"


def busy() -> ClusterState:
    """Names that stand in every kind of place."""
    nodes = [
        node("alpha-host").gpus(1).annotate(("hami.io/mutex.lock", LOCK)),
        node("beta-host").gpus(1, memory=40000),
        node("gamma-host").capacity(**{"aws.amazon.com/neuroncore": 4, "aws.amazon.com/neuron": 2}),
    ]
    holder = gpu_pod(mem=60000).called("holder-pod", namespace="team-secret", uid="1111-2222")
    holder = holder.on("alpha-host", "alpha-host-0,NVIDIA,60000,0:;").annotate(("hami.io/vgpu-node", "alpha-host"))
    waiting = gpu_pod(mem=50000).called("waiting-pod", namespace="team-secret", uid="3333-4444")
    small = gpu_pod(mem=1000).called("small-pod", namespace="other-team", uid="5555-6666")
    quotas = [quota("team-secret", {MEMORY: 200000}, name="secret-limit")]
    claimant = claiming(pod().called("claimant-pod", namespace="team-secret", uid="7777-8888"), "secret-claim")
    late = templated(pod().called("late-pod", namespace="team-secret", uid="9999-0000"), template="secret-template")
    state = state_of(nodes, [holder, waiting, small, claimant, late], quotas=quotas, dra=claims_of(nodes, claimant))
    return replace(state, others={"alpha-host": HostRequest(1500, 2048), "left-host": HostRequest(100, 0)})


def claims_of(nodes: list[NodeBuilder], claimant: PodBuilder) -> ClaimObjects:
    """Names in claims, templates, classes and their selectors."""
    model, owner = "device.attributes['gpu.tessera.io'].model", "device.attributes['secret.example'].owner"
    selector = f"({model}.startsWith('NVIDIA') || {owner} == 'secret-team') && {model} != 'beta-host'  // secret remark"
    selector += " \n && device.capacity['gpu.tessera.io'].memory.compareTo(quantity('10Gi')) > 0"
    claims = [
        resource_claim("secret-claim", uid="claim-1111", memory=3000, selector=selector, of_class="secret-class"),
        held(resource_claim("held-secret", uid="claim-2222", owner=claimant), "beta-host-0", claimant),
    ]
    metadata = {"namespace": "team-secret"}
    moved = [structs.replace(each, metadata=structs.replace(each.metadata, **metadata)) for each in claims]
    template = {"metadata": {"name": "secret-template", **metadata}, "spec": {"spec": document_of(claims[0].spec)}}
    classes = [device_class("secret-class"), device_class("nic-secret", "nic.example")]
    return claim_objects(nodes[:2], moved, classes=classes, templates=[template])


def test_a_snapshot_reads_back_as_it_was() -> None:
    state = replace(
        busy(), setup=Setup("nvidia:\n  x: 1\n", "ConfigMap a/b", {"enable-ascend": "true"}, "Deployment a/b")
    )
    again = decode_snapshot(encode_snapshot(state), file="s.json")
    assert replace(again, source=state.source) == state


async def test_a_snapshot_decides_as_the_cluster_did() -> None:
    state = busy()
    again = decode_snapshot(encode_snapshot(state), file="s.json")
    for key in OfflineCluster(state).pods:
        assert explain(OfflineCluster(again), key) == explain(OfflineCluster(state), key)


def test_an_old_snapshot_is_read_and_says_what_it_does_not_hold() -> None:
    data = json.loads(encode_snapshot(busy()))
    old = {**{name: value for name, value in data.items() if name != "others"}, "version": 1}
    found = decode_snapshot(json.dumps(old).encode(), file="s.json")
    assert (found.nodes, found.others) == (busy().nodes, {})
    assert "pods without devices" in found.unseen[-1]


def test_a_snapshot_from_before_claims_is_read() -> None:
    data = json.loads(encode_snapshot(busy()))
    old = {**{name: value for name, value in data.items() if name != "dra"}, "version": 2}
    found = decode_snapshot(json.dumps(old).encode(), file="s.json")
    assert (found.pods, found.dra, found.unseen) == (busy().pods, ClaimObjects(), ())


def test_strings_in_selectors_that_match_a_device_stay() -> None:
    [claim, _] = anonymize(busy(), KEY).dra.claims
    [selector] = claim["spec"]["devices"]["requests"][0]["exactly"]["selectors"]
    text = selector["cel"]["expression"]
    assert "device.attributes['gpu.tessera.io'].model.startsWith('NVIDIA')" in text
    assert "quantity('10Gi')" in text


def test_pods_without_devices_are_held_as_sums_of_what_they_ask_of_their_nodes() -> None:
    asks = {"requests": {"cpu": "250m", "memory": "512Mi"}}
    pods = [
        pod("a").container(**asks).container(**asks).on("n1"),
        pod("b").container(limits={"cpu": 2, "memory": "1Gi"}).on("n1"),
        pod("c").container(**asks).on("n2"),
        pod("ended").container(**asks).on("n2").ended(),
        pod("waits").container(**asks),
    ]
    documents = [plain(one) for one in pods]
    assert sanitize.sum_host_asks([*documents, {"spec": {"nodeName": 7}}]) == {
        "n1": HostRequest(2500, 2048),
        "n2": HostRequest(250, 512),
    }


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not a snapshot"),
        (b"{}", "not a snapshot; create one"),
        (b'{"kind": "TesseraSnapshot", "version": 4}', "this tessera reads versions up to 3"),
        (b'{"kind": "TesseraSnapshot", "version": 1, "taken": "yesterday"}', "not a readable snapshot"),
    ],
)
def test_a_file_that_is_no_snapshot_says_what_it_is(data: bytes, words: str) -> None:
    with pytest.raises(InspectionError, match=f"s.json: .*{words}"):
        decode_snapshot(data, file="s.json")


def test_nothing_secret_gets_into_a_snapshot() -> None:
    secret = plain(gpu_pod(mem=1))
    secret["spec"]["containers"][0] |= {"env": [{"name": "TOKEN", "value": "s3cret"}], "image": "registry/s3cret"}
    secret["spec"]["volumes"] = [{"name": "s3cret"}]
    secret["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"] = "s3cret"
    reduced = sanitize.sanitize_pod(secret, sanitize.deciding_domains(vendors()))
    assert "s3cret" not in json.dumps(reduced)


def test_hashing_leaves_no_name_anywhere() -> None:
    text = encode_snapshot(anonymize(busy(), KEY), hashed=True).decode()
    for name in (
        "alpha",
        "beta",
        "gamma",
        "left-host",
        "secret",
        "holder",
        "waiting",
        "small-pod",
        "other-team",
        "1111-2222",
        "claimant",
        "late-pod",
        "claim-1111",
        "nic.example",
        "remark",
    ):
        assert name not in text, name


def test_the_name_of_a_gang_and_a_nominated_node_are_replaced_wherever_they_stand() -> None:
    labels = {GANG: "secret-gang", GANG_SIZE: "3"}
    members = [
        gpu_pod(mem=10).called("one", uid="uid-1").labelled(**labels),
        gpu_pod(mem=10).called("two", uid="uid-2").annotate(*labels.items()),
        gpu_pod(mem=10).called("three", uid="uid-3"),
    ]
    state = state_of([node("alpha-host").gpus(1)], members)
    state.pods[2]["spec"]["schedulingGroup"] = {"podGroupName": "secret-gang"}
    state.pods[2]["status"] = {"nominatedNodeName": "alpha-host"}
    one, two, three = anonymize(state, KEY).pods
    assert one["metadata"]["labels"] == two["metadata"]["annotations"]
    assert one["metadata"]["labels"][GANG] == three["spec"]["schedulingGroup"]["podGroupName"]
    assert one["metadata"]["labels"][GANG_SIZE] == "3"
    text = json.dumps([one, two, three])
    assert "secret-gang" not in text
    assert "alpha" not in text


def test_the_same_key_gives_the_same_hashes_and_another_key_others() -> None:
    once, twice = anonymize(busy(), KEY), anonymize(busy(), KEY)
    assert once == twice
    assert anonymize(busy(), b"other").nodes != once.nodes


async def test_a_hashed_snapshot_decides_as_the_cluster_does() -> None:
    state = busy()
    hashed = anonymize(state, KEY)
    cluster, other = OfflineCluster(state), OfflineCluster(hashed)
    node_names = dict(zip(sorted(cluster.nodes), sorted(other.nodes), strict=True))
    assert {node_names[name] for name in cluster.ledger.node_names()} == set(other.ledger.node_names())
    for key, new in zip(cluster.pods, other.pods, strict=True):
        one, two = explain(cluster, key), explain(other, new)
        assert one.status is two.status
        match one.verdict, two.verdict:
            case Fits() as first, Fits() as second:
                assert node_names[first.node] == second.node
                assert [s.memory_mib for s in first.slices] == [s.memory_mib for s in second.slices]
            case FitsNowhere() as first, FitsNowhere() as second:
                assert [group.reason for group in first.groups] == [group.reason for group in second.groups]
                assert [change.fits for change in first.changes] == [change.fits for change in second.changes]
            case _:
                assert one.verdict is two.verdict is None


def test_what_others_ask_follows_the_name_of_its_node() -> None:
    hashed = anonymize(busy(), KEY)
    alpha = sorted(node["metadata"]["name"] for node in hashed.nodes)[0]
    assert hashed.others[alpha] == HostRequest(1500, 2048)


async def test_cards_that_are_named_after_their_node_follow_it() -> None:
    hashed = OfflineCluster(anonymize(busy(), KEY))
    gamma = sorted(hashed.nodes)[2]
    view = hashed.ledger.node(gamma)
    assert view is not None
    assert all(card.device.uuid.startswith(gamma) for card in view.cards)


# -- the scheduler's own configuration


def test_the_flags_of_a_running_scheduler_are_read_as_it_reads_them() -> None:
    arguments = ["scheduler", "--http_bind=0.0.0.0:443", "--node-scheduler-policy", "spread", "--enable-ascend", "-v=4"]
    assert select_placement_flags(arguments) == {"node-scheduler-policy": "spread", "enable-ascend": "true"}
    settings = build_offline_settings(Setup(flags=select_placement_flags(arguments)))
    assert (settings.policies.node, settings.switches.ascend) == ("spread", True)


def test_where_nobody_knows_the_flags_every_vendor_is_looked_at() -> None:
    settings = build_offline_settings(Setup())
    assert settings.switches.ascend
    assert settings.switches.iluvatar


def test_a_configuration_that_the_scheduler_refuses_is_refused_here_with_its_place() -> None:
    with pytest.raises(InspectionError, match="ConfigMap a/b:1: unknown section"):
        build_offline_settings(Setup("nvdia: {}\n", "ConfigMap a/b"))


def test_a_flag_that_decides_nothing_cannot_be_given() -> None:
    with pytest.raises(InspectionError, match="no flag metrics-bind-address that affects placement"):
        parse_scheduler_flags(["metrics-bind-address=:1"])
    assert parse_scheduler_flags(["enable-ascend=false"]) == {"enable-ascend": "false"}


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("# of team-blue\nnvidia: # ask alice\n  x: '1'\n", "nvidia:\n  x: '1'\n"),
        ("a: [1, 012]\nb: yes\n", "a: [1, 012]\nb: yes\n"),
        ("nvidia: [of: alice\n", None),
    ],
)
def test_comments_of_the_device_configuration_are_not_in_an_anonymous_snapshot(text: str, kept: str | None) -> None:
    state = replace(busy(), setup=Setup(text, "ConfigMap a/b", {}, "Deployment a/b"))
    assert anonymize(state, KEY).setup.device_config == kept
