"""Pods without claims and pods with ResourceClaims on the same cards of a real node, placed by Tessera.

Half of the pods are of each kind, on cards in several modes. Kubelet, agent and scheduler are restarted in between.
`BOTH_WORLDS_PODS` sets how many there are.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter, defaultdict
from typing import Any

from tessera.kube.resources import NODES, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS
from tessera.node.dra.prepared_claims import FILE
from tessera.node.modes.mig.records import FILE as MIG_FILE
from tessera.wire import keys
from tessera.wire.quantity import Whole, read
from tessera.wire.resource_api import API_VERSION, DRIVER
from tessera_lab.sandbox.api.kinds import Json
from tessera_lab.sandbox.nodes.allocation import ALLOCATED, slices_of
from tessera_lab.sandbox.objects import annotations_of, phase_of, uid_of
from tests.e2e.node.agent import CARDS, CDI, MEMORY
from tests.e2e.node.cluster import PATIENCE_S, Node, NodeCluster, shared_cluster
from tests.e2e.node.control_plane import NODE
from tests.e2e.node.shapes import talking
from tests.e2e.replica import until
from tests.support.product import container, pod

COUNT = int(os.environ.get("BOTH_WORLDS_PODS", "40"))
BATCHES = 4
SPLIT = 20
MIG, WHOLE = (11, 12, 13), (14, 15)
"""indexes of cards in modes of their own; all others are shared by hami-core"""
SETTINGS = {
    "operatingmode": "hami-core",
    "devicesplitcount": SPLIT,
    "cardmodes": [{"operatingmode": "mig", "index": MIG}, {"operatingmode": "none", "index": WHOLE}],
}
SHARES = (CARDS - len(WHOLE)) * SPLIT + len(WHOLE)
PROFILE, PROFILE_MIB = "1g.10gb", 9000
REGISTER = "hami.io/node-nvidia-register"
OWN = f"device.attributes['{DRIVER}']"
MIB = 1 << 20


def mode_of(number: int) -> str:
    """A few pods get MIG instances, and the first two whole cards; of each kind one without claims and one with."""
    return "none" if number < 2 else "mig" if number % 20 in (6, 7) else "hami-core"


def amounts(number: int) -> tuple[int, int]:
    """MiB and cores; no two pods ask for the same memory."""
    return 500 + 3 * number, number % 4


def classic(number: int) -> Json:
    mode = mode_of(number)
    memory, cores = amounts(number)
    asked = {
        "none": {"gpu": 1},
        "mig": {"gpu": 1, "mem": PROFILE_MIB},
        "hami-core": {"gpu": 1, "mem": memory, "cores": cores},
    }[mode]
    made = pod(f"p{number:03}", container("c", **asked))
    made["metadata"]["annotations"] = {"nvidia.com/vgpu-mode": mode}
    return talking(made)


def claiming(number: int) -> tuple[Json, Json]:
    """A template, and a pod that uses a claim of it."""
    mode = mode_of(number)
    memory, cores = amounts(number)
    selector = f"{OWN}.profile == '{PROFILE}'" if mode == "mig" else f"{OWN}.mode == '{mode}'"
    exactly: dict[str, Any] = {"deviceClassName": DRIVER, "selectors": [{"cel": {"expression": selector}}]}
    if mode == "hami-core":
        exactly["capacity"] = {"requests": {"memory": f"{memory}Mi", "cores": str(cores)}}
    name = f"p{number:03}"
    template = {
        "apiVersion": API_VERSION,
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}},
    }
    made = talking(pod(name, container("c")))
    made["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": name}]
    made["spec"]["containers"][0]["resources"]["claims"] = [{"name": "gpu"}]
    return template, made


async def run(found: NodeCluster, numbers: range) -> None:
    pods = []
    for number in numbers:
        if number % 2:
            template, made = claiming(number)
            await found.api.create(RESOURCE_CLAIM_TEMPLATES.path(found.namespace), template)
        else:
            made = classic(number)
        pods.append(made)
    await found.create(*pods)
    await found.running(*(each["metadata"]["name"] for each in pods), within_s=PATIENCE_S)


async def claims_of(found: NodeCluster) -> list[Json]:
    return (await found.api.list(RESOURCE_CLAIMS.path(found.namespace), dict[str, Any])).items


async def granted(found: NodeCluster) -> dict[str, tuple[str, int, int]]:
    """Card or device, MiB and cores of each pod, as the API shows them, by name; 0 where the device says it."""
    claims = {each["metadata"]["ownerReferences"][0]["uid"]: each for each in await claims_of(found)}
    result = {}
    for each in found.pods:
        name = each["metadata"]["name"]
        if int(name[1:]) % 2:
            (one,) = claims[uid_of(each)]["status"]["allocation"]["devices"]["results"]
            consumed = one.get("consumedCapacity") or {}
            result[name] = one["device"], amount(consumed, "memory") // MIB, amount(consumed, "cores")
        else:
            ((_, (entry,)),) = slices_of(each, ALLOCATED)
            result[name] = entry.uuid.lower(), entry.memory, entry.cores
    return result


def amount(consumed: Json, name: str) -> int:
    found = read(consumed.get(name, 0))
    assert isinstance(found, Whole)
    return found.value


async def wrong_containers(found: NodeCluster) -> list[str]:
    """Containers that see anything but what their pod asked for and was granted."""
    seen, given, wrong = await found.environments(found.pods), await granted(found), []
    records = json.loads((found.agent.state / MIG_FILE).read_text())["instances"]
    instances = {each["pod"][2]: each["allocation"]["mig_uuid"] for each in records}
    claims = {each["metadata"]["ownerReferences"][0]["uid"]: each["metadata"]["uid"] for each in await claims_of(found)}
    for each in found.pods:
        name, uid = each["metadata"]["name"], uid_of(each)
        number, (device, memory, cores) = int(name[1:]), given[name]
        environment = seen[uid, "c"]
        expected = {"NVIDIA_VISIBLE_DEVICES": device}
        match mode_of(number):
            case "mig":
                expected = {"NVIDIA_VISIBLE_DEVICES": instances[claims.get(uid, uid)].lower()}
            case "hami-core":
                assert (memory, cores) == amounts(number)
                expected |= {"CUDA_DEVICE_MEMORY_LIMIT_0": f"{memory}m", "CUDA_DEVICE_SM_LIMIT": f"{cores}"}
        shown = {key: environment.get(key, "").lower() for key in expected}
        if shown != expected:
            wrong.append(f"{name}: {shown}, not {expected}")
    return wrong


async def overbooked(found: NodeCluster) -> list[str]:
    """Cards that hold more than they have, counted from the API's objects alone."""
    memory: defaultdict[str, int] = defaultdict(int)
    holders: Counter[str] = Counter()
    for name, (device, mib, _cores) in (await granted(found)).items():
        if mode_of(int(name[1:])) == "hami-core":
            memory[device] += mib
        if mode_of(int(name[1:])) != "mig":
            holders[device] += 1
    too_much = [f"{card}: {mib} MiB" for card, mib in memory.items() if mib > MEMORY]
    return too_much + [f"{card}: {count} holders" for card, count in holders.items() if count > SPLIT]


def lives(found: NodeCluster) -> dict[str, tuple[str, int]]:
    return {
        each["metadata"]["name"]: (
            uid_of(each),
            sum(one["restartCount"] for one in each["status"]["containerStatuses"]),
        )
        for each in found.pods
    }


async def test_pods_and_claims_share_cards_over_restarts_and_leave_nothing(node: Node) -> None:
    started = time.monotonic()
    async with shared_cluster(node, SETTINGS, shares=SHARES) as found:
        size = COUNT // BATCHES
        batches = [range(at * size, (at + 1) * size) for at in range(BATCHES)]
        await run(found, batches[0])
        before = lives(found)
        await found.restart_kubelet()
        await run(found, batches[1])
        await found.restart_agent()
        await run(found, batches[2])
        await found.replica.restart_tessera()
        await run(found, batches[3])

        assert {name: lives(found)[name] for name in before} == before
        assert all(restarts == 0 for _, restarts in lives(found).values())
        assert await wrong_containers(found) == []
        assert await overbooked(found) == []
        cards = [device for device, *_ in (await granted(found)).values()]
        kinds = defaultdict(set)
        for name, (device, *_) in (await granted(found)).items():
            kinds[device].add(int(name[1:]) % 2)
        assert max(map(len, kinds.values())) == 2, "no card is shared by both kinds"
        assert len(cards) == len(found.pods) == size * BATCHES
        for each in found.pods:
            assert each["spec"]["schedulerName"] == "hami-scheduler", "the webhook takes both kinds"
            assert ("hami.io/vgpu-node" in annotations_of(each)) == (int(each["metadata"]["name"][1:]) % 2 == 0)
        await found.at_rest()
        print(f"{len(found.pods)} pods after {time.monotonic() - started:.0f} s")

        await found.empty()

        async def nothing_left() -> bool:
            prepared = json.loads((found.agent.state / FILE).read_text())["claims"]
            instances = json.loads((found.agent.state / MIG_FILE).read_text())["instances"]
            return not (prepared or instances or await claims_of(found) or list(CDI.glob(f"{DRIVER}-claim-*")))

        await until(nothing_left, what="nothing to be left", within_s=PATIENCE_S)
        await found.at_rest()
        assert not any(any(use) for use in (await found.replica.scrape()).use.values())


async def test_requests_become_claims_and_replicas_have_their_own(node: Node) -> None:
    replicas = 3
    async with shared_cluster(node, {"operatingmode": "hami-core"}, "--dra-convert", shares=CARDS * 10) as found:
        asking = talking(pod("x", container("c", gpu=1, mem=4096, cores=20), container("without")))
        spec = {"metadata": {"labels": {"app": "r"}}, "spec": asking["spec"]}
        replica_set = {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "metadata": {"name": "r"},
            "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "r"}}, "template": spec},
        }
        await found.api.create(f"/apis/apps/v1/namespaces/{found.namespace}/replicasets", replica_set)
        # Only in per cent: it stays as it is, on the same cards.
        await found.create(talking(pod("percent", container("c", gpu=1, percent=10))))
        await found.wait_for(lambda: len(found.pods) == replicas + 1, what="all pods")
        await found.running(*(each["metadata"]["name"] for each in found.pods), within_s=PATIENCE_S)

        seen = await found.environments(found.pods)
        claims = await claims_of(found)
        assert len(claims) == len({each["metadata"]["name"] for each in claims}) == replicas
        templates = (await found.api.list(RESOURCE_CLAIM_TEMPLATES.path(found.namespace), dict[str, Any])).items
        assert [each["metadata"]["labels"]["tessera.io/converted"] for each in templates] == ["true"]
        for each in found.pods:
            first = each["spec"]["containers"][0]
            environment = seen[uid_of(each), "c"]
            if each["metadata"]["name"] == "percent":
                assert (first["resources"]["limits"]["nvidia.com/gpu"], "claims" in first["resources"]) == ("1", False)
                assert environment["CUDA_DEVICE_MEMORY_LIMIT_0"] == f"{MEMORY // 10}m"
                continue
            assert first["resources"] == {"claims": [{"name": "tessera-gpu", "request": "c0"}]}
            assert each["spec"]["schedulerName"] == "hami-scheduler"
            assert environment["CUDA_DEVICE_MEMORY_LIMIT_0"] == "4096m"
            assert environment["CUDA_DEVICE_SM_LIMIT"] == "20"
            assert "CUDA_DEVICE_MEMORY_LIMIT_0" not in seen[uid_of(each), "without"]
        await found.at_rest()
        await found.api.delete(f"/apis/apps/v1/namespaces/{found.namespace}/replicasets/r")


async def test_a_claim_that_its_tenant_deletes_keeps_its_card_while_its_pod_runs(node: Node) -> None:
    """Pods are then bound to the same card by hand, past every scheduler: the node has the last word."""
    async with shared_cluster(node, {"operatingmode": "none"}, shares=CARDS) as found:
        # The first two pods ask for whole cards: this one with a claim.
        await run(found, range(1, 2))
        (claim,) = await claims_of(found)
        (device,) = claim["status"]["allocation"]["devices"]["results"]
        name = claim["metadata"]["name"]
        answer = await found.tenant.delete(RESOURCE_CLAIMS.path(found.namespace, name))
        assert answer.status == 200, answer.body
        # A tenant may remove the finalizer as well.
        await found.tenant.patch(RESOURCE_CLAIMS.path(found.namespace, name), {"metadata": {"finalizers": None}})

        async def claim_is_gone() -> bool:
            return not await claims_of(found)

        await until(claim_is_gone, what="the claim to be gone")
        for number, after in enumerate((found.restart_agent, found.restart_kubelet, None)):
            stray = f"stray{number}"
            await bind_by_hand(found, stray, device["device"])
            status = await refused(found, stray)
            assert status["reason"] == "UnexpectedAdmissionError"
            assert f"pod {found.namespace}/{stray} does not fit" in status["message"]
            assert phase_of(found.pod("p001")) == "Running"
            if after is not None:
                await after()


async def refused(found: NodeCluster, name: str) -> Json:
    """The status of a pod that kubelet does not admit."""
    await found.wait_for(lambda: phase_of(found.pod(name)) == "Failed", what=f"the refusal of {name}")
    status: Json = found.pod(name)["status"]
    return status


async def bind_by_hand(found: NodeCluster, name: str, device: str) -> None:
    """A pod without claims on the card of this device, as an administrator can forge it."""
    made = talking(pod(name, container("c", gpu=1)))
    made["metadata"]["labels"] = {"hami.io/webhook": "ignore"}
    made["spec"]["schedulerName"] = "by-hand"
    await found.create(made)
    registered = json.loads(annotations_of(await found.api.get(NODES.path(name=NODE), dict[str, Any]))[REGISTER])
    (card,) = (each for each in registered if each["id"].lower() == device)
    text, now = f"{card['id']},NVIDIA,{card['devmem']},100:;", str(int(time.time()))
    await found.api.bind(
        found.namespace,
        name,
        uid=uid_of(found.pod(name)),
        node=NODE,
        annotations={
            keys.ASSIGNED_NODE: NODE,
            keys.ASSIGNED_TIME: now,
            keys.BIND_TIME: now,
            keys.BIND_PHASE: keys.PHASE_ALLOCATING,
            "hami.io/vgpu-devices-to-allocate": text,
            ALLOCATED: text,
        },
    )
