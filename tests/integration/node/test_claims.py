"""The agent with `--dra`: cards as ResourceSlices, and ResourceClaims prepared through kubelet's sockets.

kubelet and the allocator are played; agent, sharing modes and apiserver are real, and cards are simulated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from tessera.host.cards import CardEvent
from tessera.kube.resources import NODES, RESOURCE_SLICES
from tessera.node import reconciler
from tessera.node.dra.prepared_claims import PreparedClaim, PreparedClaims
from tessera.node.fleet import Fleet
from tessera.node.handover.assignments import Assignment
from tessera.node.modes.mig.mode import Mig
from tessera.wire.kubelet import dra_pb2 as messages
from tessera.wire.resource_api import CORDONED, DRIVER, HELD, UNHEALTHY
from tessera_lab.sandbox.api import defaults, kinds
from tests.support.agent import NODE, Json
from tests.support.dra import ClaimNode, claim_node
from tests.support.fake_mps import installed_mps
from tests.support.logs import captured

REGISTER = "hami.io/node-nvidia-register"
MIG_CARD = {"cards": [{"model": "A100-SXM4-80GB"}], "state": "state.json"}
SMALL = "1g-10gb"


def taints(device: Json) -> list[str]:
    return [each["key"] for each in device.get("taints", ())]


# -- what is published


async def test_each_card_is_a_device_that_claims_share(tmp_path: Path) -> None:
    async with claim_node(tmp_path) as node:
        (found,) = node.slices()
        assert found["spec"]["pool"] == {"name": NODE, "generation": 1, "resourceSliceCount": 1}
        assert [each["kind"] for each in found["metadata"]["ownerReferences"]] == ["Node"]
        device = node.devices()[node.name(0)]
        assert device["allowMultipleAllocations"] is True
        assert device["capacity"]["memory"]["value"] == "80Gi"
        assert device["attributes"]["uuid"] == {"string": node.agent.card(0).uuid}
        # The classic path has nothing here.
        assert REGISTER not in node.agent.annotations()
        assert not list(Path(node.agent.flags["plugin-dir"]).glob("nvidia-*.sock"))
        assert [(each.type, each.name) for each in node.kubelet.infos] == [("DRAPlugin", DRIVER)]


async def test_a_node_that_was_registered_is_not_any_more(tmp_path: Path) -> None:
    async with claim_node(tmp_path, start=False) as node:
        was = {"metadata": {"annotations": {REGISTER: "[]", "tessera.io/agent": "env"}}}
        await node.agent.plane.client.patch(NODES.path(name=NODE), was)
        await node.agent.start()
        await node.published()
        assert not {REGISTER, "tessera.io/agent"} & node.agent.annotations().keys()


async def test_unhealthy_and_cordoned_cards_are_tainted_and_come_back(tmp_path: Path) -> None:
    async with claim_node(tmp_path) as node:
        first, second = node.name(0), node.name(1)
        cordon = {"metadata": {"annotations": {"hami.io/device-cordon": node.agent.card(1).uuid}}}
        await node.agent.plane.client.patch(NODES.path(name=NODE), cordon)
        await node.published(lambda devices: taints(devices[second]) == [CORDONED])
        assert taints(node.devices()[first]) == []
        node.agent.hardware.push(CardEvent(node.agent.card(0).uuid, xid=79))
        await node.published(lambda devices: taints(devices[first]) == [UNHEALTHY])
        no_cordon = {"metadata": {"annotations": {"hami.io/device-cordon": None}}}
        await node.agent.plane.client.patch(NODES.path(name=NODE), no_cordon)
        await node.published(lambda devices: taints(devices[second]) == [])
        generations = {each["spec"]["pool"]["generation"] for each in node.slices()}
        assert len(generations) == 1
        assert min(generations) > 1


async def test_a_card_that_a_pod_without_claims_holds_is_tainted(tmp_path: Path) -> None:
    async with claim_node(tmp_path) as node:
        await node.agent.bound_pod("classic", [[node.agent.slice(0, memory=1000)]])
        await node.published(lambda devices: taints(devices[node.name(0)]) == [HELD])
        assert taints(node.devices()[node.name(1)]) == []
        # What cannot be read may be of any card.
        unreadable = {"hami.io/vgpu-devices-allocated": "GPU-1,NVIDIA,many,1:;"}
        await node.agent.bound_pod("unreadable", [[node.agent.slice(0, memory=1000)]], annotations=unreadable)
        await node.published(lambda devices: all(taints(each) == [HELD] for each in devices.values()))
        for name in ("classic", "unreadable"):
            await node.agent.plane.client.delete(f"/api/v1/namespaces/default/pods/{name}", grace_s=0)
        await node.published(lambda devices: not any(taints(each) for each in devices.values()))


async def test_a_slice_that_was_deleted_is_written_again(tmp_path: Path) -> None:
    async with claim_node(tmp_path) as node:
        (found,) = node.slices()
        await node.agent.plane.client.delete(RESOURCE_SLICES.path(name=found["metadata"]["name"]))
        await node.agent.until(
            lambda: [each["metadata"]["uid"] for each in node.slices()] not in ([], [found["metadata"]["uid"]])
        )
        assert node.slices()[0]["spec"]["devices"] == found["spec"]["devices"]


async def test_an_agent_that_restarts_writes_nothing_that_is_there(tmp_path: Path) -> None:
    async with claim_node(tmp_path) as node:
        before = node.slices()
        await node.agent.restart()
        await node.agent.until(lambda: not node.agent.process.missing())
        assert node.slices() == before


async def test_a_pool_that_was_half_written_is_written_as_a_whole(tmp_path: Path) -> None:
    async with claim_node(tmp_path, cards=MIG_CARD, node={"operatingmode": "mig"}) as node:
        await node.agent.kill()
        counters, devices = node.slices()
        api = node.agent.plane.client
        # The earlier agent ended after it had written one of the two, and left one of an even earlier layout.
        path = RESOURCE_SLICES.path(name=devices["metadata"]["name"])
        await api.patch(path, {"spec": {"pool": {"generation": 7}}})
        surplus = {**counters, "metadata": {"name": "surplus"}}
        await api.create(RESOURCE_SLICES.path(), surplus)
        await node.agent.start()
        await node.agent.until(lambda: len(node.slices()) == 2)
        assert [each["spec"]["pool"] for each in node.slices()] == [
            {"name": NODE, "generation": 8, "resourceSliceCount": 2}
        ] * 2


async def test_an_apiserver_that_drops_fields_is_not_written_to_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def drop(content: Json) -> None:
        for device in content["spec"].get("devices", ()):
            device.pop("allowMultipleAllocations", None)

    monkeypatch.setitem(defaults._DEFAULTS, "ResourceSlice", drop)
    with captured() as logged:
        async with claim_node(tmp_path) as node:
            (found,) = node.slices()
            # Another look, because the node has changed.
            cordon = {"metadata": {"annotations": {"hami.io/device-cordon": "GPU-unknown"}}}
            await node.agent.plane.client.patch(NODES.path(name=NODE), cordon)
            claim = await node.claim("c", node.whole(node.name(0)))
            await node.prepare(claim)
            assert node.env(claim)["CUDA_DEVICE_MEMORY_LIMIT_0"] == "81920m"
            assert node.slices() == [found]
    (warning,) = logged.of("the apiserver changed a ResourceSlice: a feature that it needs may be off")
    assert warning["differs"] == "spec.devices[0].allowMultipleAllocations"


async def test_on_a_cluster_without_claims_the_agent_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(kinds.BY_PATH, ("resource.k8s.io", "v1", "resourceslices"))
    async with claim_node(tmp_path, start=False) as node:
        await node.agent.start(ready=False)
        await node.agent.until(lambda: "need Kubernetes 1.34" in node.agent.process.missing())


async def test_a_kubelet_that_refuses_the_driver_is_told(tmp_path: Path) -> None:
    async with claim_node(tmp_path, start=False) as node:
        node.kubelet.refusal = "no such version"
        await node.agent.start(ready=False)
        await node.agent.until(lambda: "kubelet refused the driver: no such version" in node.agent.process.missing())


async def test_a_socket_that_vanished_is_served_again(tmp_path: Path) -> None:
    async with claim_node(tmp_path) as node:
        node.kubelet.socket.unlink()
        await node.agent.until(lambda: len(node.kubelet.infos) == 2, what="the driver to be registered again")
        await node.prepare(await node.claim("c", node.part(0, memory=1000)))


# -- claims


async def test_a_claim_gets_what_was_allocated_by_cdi(tmp_path: Path) -> None:
    async with claim_node(tmp_path) as node:
        claim = await node.claim("c", node.part(0, memory=4096, cores=30))
        (device,) = await node.prepare(claim)
        assert (device.pool_name, device.device_name, list(device.request_names)) == (NODE, node.name(0), ["gpu"])
        assert list(device.cdi_device_ids) == [f"{DRIVER}/claim={claim.uid}-gpu"]
        env = node.env(claim)
        assert env["NVIDIA_VISIBLE_DEVICES"] == node.agent.card(0).uuid
        assert (env["CUDA_DEVICE_MEMORY_LIMIT_0"], env["CUDA_DEVICE_SM_LIMIT"]) == ("4096m", "30")
        mounts = {each["containerPath"]: each for each in node.edits(claim)["mounts"]}
        own = mounts[f"{tmp_path}/hook/vgpu"]
        assert own["options"][0] == "rw"
        assert Path(own["hostPath"]).is_dir()
        assert mounts["/etc/ld.so.preload"]["options"][0] == "ro"
        await node.unprepare(claim)
        assert node.specs() == []


async def test_claims_share_a_card_and_each_has_its_own_limits(tmp_path: Path) -> None:
    async with claim_node(tmp_path) as node:
        claims = [await node.claim(f"c{n}", node.part(0, memory=1000 + n, cores=10 * n)) for n in range(1, 5)]
        answers = await node.prepare_all(*claims)
        assert {uid: answer.error for uid, answer in answers.items()} == {each.uid: "" for each in claims}
        limits = [node.env(each)["CUDA_DEVICE_MEMORY_LIMIT_0"] for each in claims]
        assert limits == ["1001m", "1002m", "1003m", "1004m"]
        assert len({node.env(each)["CUDA_DEVICE_MEMORY_SHARED_CACHE"] for each in claims}) == 4
        await node.unprepare(*claims)
        assert node.specs() == []


async def test_prepared_twice_nothing_changes(tmp_path: Path) -> None:
    """kubelet asks again after its own restart, while the container runs."""
    async with claim_node(tmp_path) as node:
        claim = await node.claim("c", node.part(0, memory=4096))
        first = await node.prepare(claim)
        spec, own = node.spec(claim), Path(node.edits(claim)["mounts"][0]["hostPath"])
        (own / "region").touch()
        assert (await node.prepare(claim), node.spec(claim)) == (first, spec)
        assert (own / "region").exists()


async def test_a_claim_is_unprepared_whether_it_was_prepared_or_not(tmp_path: Path) -> None:
    async with claim_node(tmp_path) as node:
        never = await node.claim("never", node.part(0, memory=1000))
        unknown = messages.Claim(namespace="default", name="unknown", uid="0")
        done = await node.claim("done", node.part(0, memory=1000))
        await node.prepare(done)
        await node.unprepare(never, unknown, done)
        await node.unprepare(done)
        assert node.specs() == []


async def test_requests_of_one_claim_are_told_apart(tmp_path: Path) -> None:
    async with claim_node(tmp_path) as node:
        parts = (
            node.part(0, memory=1000, request="small"),
            node.part(1, memory=2000, request="large/first"),
            node.part(0, memory=3000, request="large/first"),
        )
        claim = await node.claim("c", *parts)
        devices = await node.prepare(claim)
        named = [(each.device_name, list(each.request_names), len(each.cdi_device_ids)) for each in devices]
        assert sorted(named) == sorted(
            [(node.name(0), ["small"], 1), (node.name(1), ["large"], 1), (node.name(0), ["large"], 0)]
        )
        assert node.env(claim, "small")["CUDA_DEVICE_MEMORY_LIMIT_0"] == "1000m"
        large = node.env(claim, "large")
        assert [large[f"CUDA_DEVICE_MEMORY_LIMIT_{n}"] for n in (0, 1)] == ["3000m", "2000m"]


async def test_a_claim_that_cannot_be_served_holds_up_no_other(tmp_path: Path) -> None:
    async with claim_node(tmp_path) as node:
        good = await node.claim("good", node.part(0, memory=1000))
        bad = {
            "waiting": await node.claim("waiting"),
            "elsewhere": await node.claim("elsewhere", node.part(0, memory=1) | {"pool": "another"}),
            "of another": await node.claim("of-another", node.part(0, memory=1) | {"driver": "other.example.com"}),
            "lost": await node.claim("lost", node.whole("gpu-0")),
            "nothing": await node.claim("nothing", node.part(0, memory=0)),
            "gone": messages.Claim(namespace="default", name="gone", uid="1"),
            "recreated": messages.Claim(namespace="default", name="good", uid="2"),
            "path": messages.Claim(namespace="default", name="good", uid="../../etc/x"),
        }
        answers = await node.prepare_all(good, *bad.values())
        assert not answers[good.uid].error
        errors = {name: answers[each.uid].error for name, each in bad.items()}
        assert all(errors.values()), errors
        assert "no device of node" in errors["waiting"]
        assert "not among this node's devices" in errors["lost"]
        assert "another one now" in errors["recreated"]
        assert "not the uid" in errors["path"]
        assert node.specs() == [good.uid]


async def test_an_administrator_sees_a_card_that_is_in_use_without_limits(tmp_path: Path) -> None:
    async with claim_node(tmp_path) as node:
        whole = await node.claim("whole", node.part(0, memory=81920, cores=100))
        await node.prepare(whole)
        admin = await node.claim("admin", node.whole(node.name(0), adminAccess=True))
        (device,) = await node.prepare(admin)
        assert list(device.cdi_device_ids) == [f"{DRIVER}/claim={admin.uid}-gpu"]
        assert node.env(admin) == {"NVIDIA_VISIBLE_DEVICES": node.agent.card(0).uuid}
        # It survives the agent, and takes no room.
        await node.agent.restart()
        await node.prepare(admin)
        await node.unprepare(whole)
        await node.prepare(await node.claim("next", node.part(0, memory=81920, cores=100)))
        await node.unprepare(admin)
        assert admin.uid not in node.specs()


async def test_a_claim_allocated_anew_gets_what_is_allocated_now_once_it_was_unprepared(tmp_path: Path) -> None:
    async with claim_node(tmp_path) as node:
        claim = await node.claim("c", node.part(0, memory=1000))
        await node.prepare(claim)
        env = node.env(claim)
        await node.allocate("c", node.part(1, memory=2000))
        assert "before kubelet has unprepared it" in await node.refusal(claim)
        assert node.env(claim) == env
        await node.unprepare(claim)
        (device,) = await node.prepare(claim)
        assert device.device_name == node.name(1)
        assert node.env(claim)["CUDA_DEVICE_MEMORY_LIMIT_0"] == "2000m"


async def test_many_calls_at_once_are_served(tmp_path: Path) -> None:
    """Also several for one claim, with unprepare among them: the last one counts."""
    async with claim_node(tmp_path, node={"devicesplitcount": 6}) as node:
        claims = [await node.claim(f"c{n}", node.part(n % 2, memory=1000 + n)) for n in range(12)]
        await asyncio.gather(*(node.prepare(each) for each in claims), *(node.prepare(each) for each in claims))
        assert node.specs() == sorted(each.uid for each in claims)
        await asyncio.gather(*(node.unprepare(each) for each in claims[::2]))
        assert node.specs() == sorted(each.uid for each in claims[1::2])


async def test_a_container_never_gets_one_request_in_place_of_another(tmp_path: Path) -> None:
    async with claim_node(tmp_path) as node:
        both = (node.part(0, memory=1000, request="a"), node.part(1, memory=2000, request="b"))
        claim, other = await node.claim("two", *both), await node.claim("other", node.part(0, memory=3000))
        unused = await node.claim("unused", node.part(0, memory=1) | {"driver": "net.example.com"})
        names = {"two": "two", "other": "other", "net": "unused"}
        whole = await node.pod("whole", names, [{"name": "two"}])
        await node.reserve(claim, whole)
        assert "container c0 of pod whole uses 2 requests" in await node.refusal(claim)
        mixed = await node.pod("mixed", names, [{"name": "two", "request": "a"}, {"name": "other"}])
        for each in (claim, other):
            await node.reserve(each, mixed)
            assert "uses 2 requests" in await node.refusal(each)
        apart = await node.pod(
            "apart", names, [{"name": "two", "request": "a"}, {"name": "net"}], [{"name": "two", "request": "b"}]
        )
        await node.reserve(claim, apart)
        await node.prepare(claim)
        assert unused.uid not in node.specs()


# -- modes


async def test_in_mode_none_a_claim_gets_the_whole_card(tmp_path: Path) -> None:
    async with claim_node(tmp_path, node={"operatingmode": "none"}) as node:
        assert "allowMultipleAllocations" not in node.devices()[node.name(0)]
        claim = await node.claim("c", node.whole(node.name(0)))
        await node.prepare(claim)
        assert node.env(claim)["NVIDIA_VISIBLE_DEVICES"] == node.agent.card(0).uuid


async def test_in_mode_mps_each_claim_has_its_limits_and_the_card_the_largest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with installed_mps(tmp_path, monkeypatch) as daemons:
        async with claim_node(tmp_path, node={"operatingmode": "mps"}) as node:
            card = node.agent.card(0).uuid
            small = await node.claim("small", node.part(0, memory=4096, cores=30))
            large = await node.claim("large", node.part(0, memory=8192, cores=60))
            await asyncio.gather(node.prepare(small), node.prepare(large))
            env = node.env(small)
            assert env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == f"{card}=4096M"
            assert env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "30"
            assert node.env(large)["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == f"{card}=8192M"
            pipes = {each["containerPath"]: each["hostPath"] for each in node.edits(small)["mounts"]}
            assert pipes[env["CUDA_MPS_PIPE_DIRECTORY"]] == f"{tmp_path}/mps/{card}/pipe"
            assert daemons.default(card) == ("8192M", 60)
            # The ceiling follows the claims that are left.
            await node.unprepare(large)
            await node.agent.until(lambda: daemons.default(card) == ("4096M", 30), what="a lower ceiling")
            two = await node.claim("two", node.part(0, memory=1, cores=1), node.part(1, memory=1, cores=1))
            assert "with MPS it can have one" in await node.refusal(two)


async def mig_node_with_claim(node: ClaimNode, name: str, device: str) -> messages.Claim:
    claim = await node.claim(name, node.whole(device))
    await node.prepare(claim)
    return claim


async def test_in_mode_mig_a_claim_gets_its_instance_until_it_is_unprepared(tmp_path: Path) -> None:
    async with claim_node(tmp_path, cards=MIG_CARD, node={"operatingmode": "mig"}) as node:
        counters, devices = (each["spec"] for each in node.slices())
        (card,) = counters["sharedCounters"]
        assert len(card["counters"]) == 8
        assert counters["pool"]["resourceSliceCount"] == devices["pool"]["resourceSliceCount"] == 2
        uuid = node.agent.card(0).uuid
        name = f"{uuid.lower()}-{SMALL}-3"
        assert node.devices()[name]["consumesCounters"] == [
            {"counterSet": uuid.lower(), "counters": {"memory-slice-3": {"value": "1"}}}
        ]
        claim = await mig_node_with_claim(node, "c", name)
        (instance,) = node.agent.hardware.instances(uuid)
        assert (instance.placement.start, instance.placement.size) == (3, 1)
        assert node.env(claim)["NVIDIA_VISIBLE_DEVICES"] == instance.mig_uuid
        await node.unprepare(claim)
        await node.agent.until(lambda: not node.agent.hardware.instances(uuid), what="the instance to be destroyed")


async def test_an_instance_is_not_released_before_its_claim_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("EVERY_S", "GAP_S"):
        monkeypatch.setattr(reconciler, name, 0.01)
    reached, go_on, rounds = asyncio.Event(), asyncio.Event(), 0
    put, reconcile = PreparedClaims.put, Mig.reconcile

    async def slow_put(self: PreparedClaims, record: PreparedClaim) -> None:
        reached.set()
        await go_on.wait()
        await put(self, record)

    async def counted(self: Mig, live: Sequence[Assignment], fleet: Fleet) -> None:
        nonlocal rounds
        await reconcile(self, live, fleet)
        rounds += 1

    monkeypatch.setattr(PreparedClaims, "put", slow_put)
    monkeypatch.setattr(Mig, "reconcile", counted)
    async with claim_node(tmp_path, cards=MIG_CARD, node={"operatingmode": "mig"}) as node:
        claim = await node.claim("c", node.whole(f"{node.name(0)}-{SMALL}-0"))
        asking = asyncio.create_task(node.prepare(claim))
        await reached.wait()
        before = rounds
        await node.agent.until(lambda: rounds >= before + 2, what="the node to be reconciled")
        (instance,) = node.agent.hardware.instances(node.agent.card(0).uuid)
        go_on.set()
        await asking
        assert node.env(claim)["NVIDIA_VISIBLE_DEVICES"] == instance.mig_uuid
