"""ResourceClaims on a real kubelet: a stock kube-scheduler allocates parts of cards, and containers get just those."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import yaml

from tessera.kube.resources import NODES
from tessera_lab.sandbox.api.kinds import Json
from tessera_lab.sandbox.objects import annotations_of, uid_of
from tests.e2e.node.agent import SPLIT
from tests.e2e.node.claims import ClaimCluster, claim, claim_cluster, pod, request, template
from tests.e2e.node.cluster import PATIENCE_S, Node
from tests.e2e.node.control_plane import NODE
from tests.e2e.node.image import TALKER
from tests.e2e.node.shapes import GRACE_S
from tests.e2e.replica import until

BATCH = 8
PAGE = Path(__file__).parents[3] / "docs" / "claims.md"
MIG_PLACES = 18
"""of all profiles of an A100, without those that only add media engines"""


def memory_of(number: int) -> int:
    """MiB; no two pods ask for the same."""
    return 2000 + 7 * number


async def run(found: ClaimCluster, numbers: range) -> None:
    """A pod with a claim of its own for each number."""
    for number in numbers:
        asked = request(memory=memory_of(number), cores=number % 5)
        await found.create(
            template(f"t{number}", asked), pod(f"p{number:02}", {"resourceClaimTemplateName": f"t{number}"})
        )


async def wrong_environments(found: ClaimCluster, expected: dict[str, tuple[int, int]]) -> list[str]:
    """Containers that see anything but what their claim was granted, and asked for (MiB and cores by pod)."""
    granted, seen, wrong = await found.granted(), await found.environments(), []
    for each in await found.pods():
        name = each["metadata"]["name"]
        (result,) = granted[name]
        memory, cores = expected[name]
        wanted = {
            "NVIDIA_VISIBLE_DEVICES": result["device"],
            "CUDA_DEVICE_MEMORY_LIMIT_0": f"{memory}m",
            "CUDA_DEVICE_SM_LIMIT": f"{cores}",
        }
        for container in each["spec"]["containers"]:
            environment = seen[uid_of(each), container["name"]]
            shown = {key: environment.get(key, "").lower() for key in wanted}
            if shown != wanted:
                wrong.append(f"{name} {container['name']}: {shown}, not {wanted}")
    return wrong


def lives(pods: list[Json]) -> dict[str, tuple[str, int]]:
    return {
        each["metadata"]["name"]: (
            uid_of(each),
            sum(one["restartCount"] for one in each["status"]["containerStatuses"]),
        )
        for each in pods
    }


async def test_pods_with_claims_share_cards_over_restarts_and_leave_nothing(node: Node) -> None:
    async with claim_cluster(node) as found:
        register: Json = await found.api.get(NODES.path(name=NODE), dict)
        assert not [key for key in annotations_of(register) if key.startswith("hami.io/node-nvidia")]

        await run(found, range(BATCH))
        before = lives(await found.running(BATCH))
        await found.restart_kubelet()
        await run(found, range(BATCH, 2 * BATCH))
        await found.running(2 * BATCH)
        await found.restart_agent()
        await run(found, range(2 * BATCH, 3 * BATCH))
        # One claim for two pods, one of which has two containers.
        await found.create(
            claim("shared", request(memory=5000, cores=50)),
            pod("shared-a", {"resourceClaimName": "shared"}, containers=2),
            pod("shared-b", {"resourceClaimName": "shared"}),
        )
        pods = await found.running(3 * BATCH + 2)

        expected = {f"p{number:02}": (memory_of(number), number % 5) for number in range(3 * BATCH)}
        expected |= {"shared-a": (5000, 50), "shared-b": (5000, 50)}
        assert await wrong_environments(found, expected) == []
        assert {name: lives(pods)[name] for name in before} == before
        assert all(restarts == 0 for _, restarts in lives(pods).values())
        # Cards are shared, and none by more than may.
        shares = Counter(
            results[0]["device"] for name, results in (await found.granted()).items() if name != "shared-b"
        )
        assert sum(shares.values()) == 3 * BATCH + 1
        assert max(shares.values()) == SPLIT
        assert len(found.specs()) == len(found.recorded()) == 3 * BATCH + 1

        await found.empty()

        async def nothing_left() -> bool:
            return not found.specs() and not found.recorded()

        await until(nothing_left, what="all claims to be unprepared")
        assert len(await found.devices()) > 0


def examples(*, mig: bool) -> list[Json]:
    """The manifests of the page, with an image that is here."""
    blocks = re.findall(r"^```yaml\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    found = [each for block in blocks if ("profile ==" in block) is mig for each in yaml.safe_load_all(block)]
    for each in found:
        if each["kind"] == "Pod":
            each["spec"]["terminationGracePeriodSeconds"] = GRACE_S
            for container in each["spec"]["containers"]:
                container["image"] = TALKER.name
    return found


async def test_the_examples_of_the_page_get_what_it_says(node: Node) -> None:
    async with claim_cluster(node) as found:
        manifests = examples(mig=False)
        await found.create(*manifests)
        pods = {each["metadata"]["name"]: each for each in await found.running(3)}
        seen = await found.environments()
        (notebook,) = (seen[uid_of(pods["notebook"]), "notebook"],)
        assert (notebook["CUDA_DEVICE_MEMORY_LIMIT_0"], notebook["CUDA_DEVICE_SM_LIMIT"]) == ("4096m", "30")
        trainer, evaluator = (seen[uid_of(pods["trainer"]), name] for name in ("trainer", "evaluator"))
        assert trainer["CUDA_DEVICE_MEMORY_LIMIT_0"] == "20480m"
        shared = ("NVIDIA_VISIBLE_DEVICES", "CUDA_DEVICE_MEMORY_SHARED_CACHE")
        assert [trainer[name] for name in shared] == [evaluator[name] for name in shared]
        pair = seen[uid_of(pods["pair"]), "pair"]
        assert len(set(pair["NVIDIA_VISIBLE_DEVICES"].split(","))) == 2
        assert [pair[f"CUDA_DEVICE_MEMORY_LIMIT_{number}"] for number in (0, 1)] == ["8192m", "8192m"]
        await found.empty()


async def test_each_claim_for_mig_gets_an_instance_of_its_own(node: Node) -> None:
    config = node.node_container.folder / "mig.json"
    config.write_text(json.dumps({"nodeconfig": [{"name": NODE, "operatingmode": "mig"}]}))
    flags = (f"--node-config-file={config}",)
    async with claim_cluster(node, *flags, devices=3 * MIG_PLACES) as found:
        manifests = examples(mig=True)
        (of_claims,) = (each["metadata"]["name"] for each in manifests if each["kind"] == "ResourceClaimTemplate")
        await found.create(*manifests)
        source = {"resourceClaimTemplateName": of_claims}
        # Two fit on each of three cards.
        await found.create(*(pod(f"more-{number}", source) for number in range(6)))

        async def all_places_taken() -> bool:
            return await found.phases() == ["Pending"] + 6 * ["Running"]

        await until(all_places_taken, what="six of seven pods to run", within_s=PATIENCE_S)
        running = [each for each in await found.pods() if each["status"]["phase"] == "Running"]
        seen = [await found.environments_of(each) for each in running]
        assert len({one["NVIDIA_VISIBLE_DEVICES"] for one in seen}) == 6
        assert all(one["NVIDIA_VISIBLE_DEVICES"].startswith("MIG-") for one in seen)
        # The place of one that ends is another one's.
        await found.api.delete(f"/api/v1/namespaces/{found.namespace}/pods/{running[0]['metadata']['name']}")
        await found.running(6)
        await found.empty()
