"""ResourceClaims for tests of the scheduler: what agents publish, what people ask for, and a scheduler that reads both.

world = ClaimWorld(agent_node("n1").gpus(2))
world.claim("c", memory=4096, cores=30)
world.create(claiming(pod(), "c"))
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from tessera.core.ledger.audit import audit
from tessera.core.ledger.holdings import PodFacts
from tessera.core.ledger.ledger import replay
from tessera.core.model.grants import Grants
from tessera.scheduler.features.claims.book import WriteState
from tessera.scheduler.features.claims.feature import Claims
from tessera.scheduler.pod_cycle import HOLDS_RESERVATION
from tessera.vendors.claims.allocations import claim_facts, shortfalls, with_parts
from tessera.vendors.node_reader import node_facts
from tessera.vendors.pod_reader import PodReader, claim_parts
from tessera.wire.resource_api import (
    DRIVER,
    MANAGED,
    MANAGED_BY_TESSERA,
    NO_SCHEDULE,
    ClaimStatus,
    DeviceClass,
    ResourceClaim,
    ResourceSlice,
)
from tests.support.builders import NodeBuilder, PodBuilder, node, pod
from tests.support.stepwise_scheduler import World, assert_cycles_match, claims_of, serving_downward_api

MIB = 2**20
SCHEDULER = "hami-scheduler"
TAINT = {"key": MANAGED, "value": MANAGED_BY_TESSERA, "effect": NO_SCHEDULE}


def agent_node(name: str = "n1") -> NodeBuilder:
    return serving_downward_api(node(name))


def device_class(name: str = DRIVER, driver: str = DRIVER) -> DeviceClass:
    selectors = [{"cel": {"expression": f"device.driver == '{driver}'"}}]
    return msgspec.convert({"metadata": {"name": name}, "spec": {"selectors": selectors}}, DeviceClass)


def published(built: NodeBuilder, *, generation: int = 1, count: int = 1, managed: bool = True) -> ResourceSlice:
    """What the agent of a node says of its cards in modes that share them."""
    devices = [_device(card, managed=managed) for card in built.cards]
    pool = {"name": built.name, "generation": generation, "resourceSliceCount": count}
    spec = {"driver": DRIVER, "nodeName": built.name, "pool": pool, "devices": devices}
    return msgspec.convert({"metadata": {"name": f"{built.name}-{DRIVER}"}, "spec": spec}, ResourceSlice)


def _device(card: Mapping[str, Any], *, managed: bool) -> dict[str, Any]:
    return {
        "name": card["id"].lower(),
        "attributes": {"uuid": {"string": card["id"]}, "model": {"string": card["type"]}, "type": {"string": "gpu"}},
        "capacity": {
            "memory": _capacity(card["devmem"] * MIB, default=card["devmem"] * MIB, least=MIB),
            "cores": _capacity(card["devcore"], default=0, least=0),
            "shares": _capacity(card["count"], default=1, least=1),
        },
        "allowMultipleAllocations": True,
        "taints": [TAINT] if managed else [],
    }


def _capacity(value: int, *, default: int, least: int) -> dict[str, Any]:
    policy = {"default": str(default), "validRange": {"min": str(least), "max": str(value)}}
    return {"value": str(value), "requestPolicy": policy}


def resource_claim(name: str, *, uid: str = "", owner: PodBuilder | None = None, **asks: Any) -> ResourceClaim:
    """A claim for a part of a card; with an `owner` it was made of a template for that pod."""
    metadata: dict[str, Any] = {"name": name, "namespace": "default", "uid": uid or f"uid-claim-{name}"}
    if owner is not None:
        made_for = owner.manifest()["metadata"]
        metadata["ownerReferences"] = [
            {"kind": "Pod", "name": made_for["name"], "uid": made_for["uid"], "controller": True}
        ]
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": exact_request(**asks)}]}}
    return msgspec.convert({"metadata": metadata, "spec": spec}, ResourceClaim)


def exact_request(
    *, memory: int | None = None, cores: int | None = None, count: int = 1, of_class: str = DRIVER, selector: str = ""
) -> dict[str, Any]:
    """`memory` in MiB."""
    amounts = {"memory": None if memory is None else f"{memory}Mi", "cores": None if cores is None else str(cores)}
    asked = {key: value for key, value in amounts.items() if value is not None}
    selectors = [{"cel": {"expression": selector}}] if selector else []
    return {"deviceClassName": of_class, "count": count, "capacity": {"requests": asked}, "selectors": selectors}


def claiming(pod: PodBuilder, *names: str) -> PodBuilder:
    """The pod with claims that exist."""
    claims = [{"name": name, "resourceClaimName": name} for name in names]
    built = pod if pod.containers else pod.container()
    return replace(built, spec={**built.spec, "resourceClaims": claims, "schedulerName": SCHEDULER})


def templated(pod: PodBuilder, *, template: str = "small", claim: str = "") -> PodBuilder:
    """The pod with a claim that is made of a template; `claim` is its name once it is known."""
    built = pod if pod.containers else pod.container()
    own = [{"name": "gpu", "resourceClaimTemplateName": template}]
    status = {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": claim}]} if claim else {}
    spec = {**built.spec, "resourceClaims": own, "schedulerName": SCHEDULER}
    return replace(built, spec=spec, status={**built.status, **status})


def holders(
    pods: Iterable[tuple[PodFacts | None, Mapping[str, Grants]]], claims: Iterable[PodFacts | None]
) -> list[PodFacts]:
    """What pods and claims hold, as a scheduler that starts now would count it. `pods`: with the parts of claims that
    their Bindings recorded."""
    shown = {facts.uid: facts for facts in claims if facts is not None}
    bound = sorted(((f, parts) for f, parts in pods if f is not None), key=lambda each: each[0].uid)
    used = sorted({claim for _, parts in bound for claim in parts})
    missing: dict[str, Grants] = {}
    for claim in used:
        users = ((facts.uid, facts.node, parts[claim]) for facts, parts in bound if claim in parts)
        for uid, grants in shortfalls(users, shown.get(claim)).items():
            missing[uid] = (*missing.get(uid, ()), *grants)
    return [*(with_parts(facts, missing.get(facts.uid, ())) for facts, _ in bound), *shown.values()]


class ClaimWorld(World):
    """A scheduler with `--dra`, and nodes whose agents serve claims and classic pods alike."""

    def __init__(self, *nodes: NodeBuilder) -> None:
        self.slices = {f"{each.name}-{DRIVER}": published(each) for each in nodes}
        self.classes = {DRIVER: device_class()}
        self.background: list[Coroutine[Any, Any, None]] = []
        super().__init__(*nodes)

    def start(self) -> None:
        self.settings = replace(self.settings, dra=True)
        self.background = []
        super().start()
        for key, found in self.classes.items():
            self.claims.classes.put(key, found)
        for key, each in self.slices.items():
            self.claims.pools.put(key, each)

    def spawn(self, work: Coroutine[Any, Any, None]) -> object:
        self.background.append(work)
        return work

    def restart(self) -> None:
        super().restart()
        for key, claim in self.api.claims.items():
            self.claims.claims.put(key, claim)

    def sync(self) -> None:
        """All first lists are complete."""
        for informer in self.engine.awaited.values():
            informer.synced()

    @property
    def claims(self) -> Claims:
        return claims_of(self.engine)

    def claim(self, name: str, **asks: Any) -> ResourceClaim:
        added = self.api.add_claim(resource_claim(name, **asks))
        self.watch()
        return added

    def claim_of(self, *requests: dict[str, Any]) -> ResourceClaim:
        """A claim "c" with these requests."""
        document = msgspec.to_builtins(resource_claim("c"))
        document["spec"] = {"devices": {"requests": list(requests)}}
        added = self.api.add_claim(msgspec.convert(document, ResourceClaim))
        self.watch()
        return added

    def stored(self, name: str) -> ResourceClaim:
        return self.api.claims[f"default/{name}"]

    def allocation(self, where: str, name: str = "c", *, memory: int = 4096, cores: int = 30) -> ClaimStatus:
        """As another scheduler allocates the claim, with a device of one node."""
        result = {
            "request": "gpu", "driver": DRIVER, "pool": where, "device": f"{where}-0", "shareID": f"{where}-{name}",
            "consumedCapacity": {"memory": f"{memory}Mi", "cores": str(cores)},
        }  # fmt: skip
        return msgspec.convert({"allocation": {"devices": {"results": [result]}}}, ClaimStatus)

    async def work(self) -> None:
        """Do what was spawned."""
        while self.background:
            await self.background.pop(0)

    def held(self, name: str = "n1") -> dict[str, int]:
        """MiB that each holder has on a node, by uid; a pod whose claims hold everything has nothing."""
        return {
            entry.facts.uid: sum(
                grant.memory for containers in entry.facts.grants.values() for own in containers for grant in own
            )
            for entry in self.ledger.pods_on(name)
            if entry.facts.grants
        }

    def agrees(self) -> bool:
        self.watch()
        assert audit(self.ledger) == []
        pools = self.claims.pools
        claims = [claim_facts(claim, pools.by_name) for claim in self.api.claims.values()]
        reader = PodReader(self.vendors)
        pods = [(reader.facts(pod), claim_parts(pod)) for pod in self.api.pods.values()]
        nodes = [
            pools.join(read) for each in self.api.nodes.values() if (read := node_facts(each, self.vendors)).devices
        ]
        again = replay(self.vendors, nodes=nodes, pods=holders(pods, claims))
        mine, other = self.ledger.state(), again.state()
        assert (mine["nodes"], mine["pods"]) == (other["nodes"], other["pods"])
        assert self.cycles.count(*HOLDS_RESERVATION) == 0
        assert all(record.state is WriteState.IDLE for record in self.claims.book)
        assert_cycles_match(self.engine)
        return True


async def settle() -> None:
    """Let everything run that is ready to."""
    for _ in range(10):
        await asyncio.sleep(0)


# -- a pod with a claim

PART: dict[str, Any] = {"memory": 4096, "cores": 30}
HELD = {"n1-0": (1, 4096, 30)}
FREE = {"n1-0": (0, 0, 0)}
USER = claiming(pod(), "c")


def ready(*, asking: PodBuilder = USER, **asks: Any) -> ClaimWorld:
    """A pod with a reservation for its claim."""
    world = ClaimWorld(agent_node().gpus(1), agent_node("n2").gpus(1))
    world.claim("c", **{**PART, **asks})
    world.create(asking)
    assert world.chosen(asking, ["n1"]) == "n1"
    return world


def write_state(world: ClaimWorld, name: str = "c") -> WriteState:
    found = world.claims.book.get(f"default/{name}")
    assert found is not None
    return found.state


def reserved_for(claim: ResourceClaim) -> list[str]:
    return [each.uid for each in claim.status.reserved_for or ()]


def woken(world: ClaimWorld) -> list[str]:
    """uids of the pods that need not wait for their claims any more."""
    return [each.uid for each in world.claims.take_ready().values()]
