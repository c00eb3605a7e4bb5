"""Records the state of the API from etcd itself: every revision of every pod and node, without a gap.

A watch of an apiserver would start over after a restart and miss what was between. etcd keeps every revision, so a
watch that ends goes on where it was. The apiservers must store JSON (`--storage-media-type=application/json`).
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp

from tests.robustness.history import Ask, Card, Gang, History, LeaseShown, NodeShown, PodGone, PodShown

Json = dict[str, Any]

PODS, NODES = "/registry/pods/", "/registry/minions/"
LEASE = "/registry/leases/tessera-system/hami-scheduler"
REGISTER = "hami.io/node-nvidia-register"
AGENT = "tessera.io/agent"
ALLOCATED = "hami.io/vgpu-devices-allocated"
GANG, GANG_SIZE, GANG_MIN = "tessera.io/gang", "tessera.io/gang-size", "tessera.io/gang-min"
GPU, MEMORY, CORES = "nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpucores"
AGAIN_S = 0.2
"""before a watch that ended is opened again"""


class EtcdRecorder:
    """`pods` is what etcd holds now, by key; `changed` is set after every event."""

    def __init__(self, url: str, history: History) -> None:
        self.pods: dict[str, PodShown] = {}
        self.changed = asyncio.Event()
        self._url = url
        self._history = history
        self._cards: dict[str, dict[str, Card]] = {}
        self.holder = ""
        """of the lease: host name and a random part"""

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for prefix, take in ((NODES, self._take_node), (LEASE, self._take_lease), (PODS, self._take_pod)):
                tasks.create_task(self._follow(prefix, take))

    async def _follow(self, prefix: str, take: Callable[[int, str, Json | None], None]) -> None:
        """Passes on every change since the first revision; None is a deletion."""
        revision = 1
        while True:
            try:
                async for event in self._watch(prefix, revision):
                    revision = int(event["kv"]["mod_revision"])
                    key = base64.b64decode(event["kv"]["key"]).decode()
                    is_gone = event.get("type") == "DELETE"
                    take(revision, key, None if is_gone else json.loads(base64.b64decode(event["kv"]["value"])))
                    self.changed.set()
                    revision += 1
            except (aiohttp.ClientError, OSError):
                await asyncio.sleep(AGAIN_S)

    async def _watch(self, prefix: str, revision: int) -> AsyncIterator[Json]:
        start, end = prefix.encode(), prefix[:-1].encode() + bytes([prefix.encode()[-1] + 1])
        request = {
            "key": base64.b64encode(start).decode(),
            "range_end": base64.b64encode(end).decode(),
            "start_revision": str(revision),
        }
        forever = aiohttp.ClientTimeout(total=None)
        async with (
            aiohttp.ClientSession(timeout=forever) as session,
            session.post(f"{self._url}/v3/watch", json={"create_request": request}) as answer,
        ):
            answer.raise_for_status()
            rest = b""
            async for chunk in answer.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    result = json.loads(line).get("result", {})
                    assert "compact_revision" not in result, "etcd has forgotten revisions that were not recorded"
                    for event in result.get("events", ()):
                        yield event

    # -- what is recorded

    def _take_pod(self, revision: int, key: str, pod: Json | None) -> None:
        name, at = key.removeprefix(PODS), self._history.now
        before = self.pods.pop(name, None)
        if pod is None:
            assert before is not None, f"{name} ended before it began"
            self._history.add(PodGone(at=at, revision=revision, key=name, uid=before.uid))
            return
        shown = self.pods[name] = read_pod(pod, key=name, revision=revision, at=at)
        self._history.add(shown)

    def _take_node(self, revision: int, key: str, node: Json | None) -> None:
        annotations = (node or {"metadata": {}})["metadata"].get("annotations") or {}
        cards = {
            card["id"]: Card(card["count"], card["devmem"], card["devcore"])
            for card in json.loads(annotations.get(REGISTER, "[]"))
        }
        name = key.removeprefix(NODES)
        if self._cards.get(name) != cards:
            self._cards[name] = cards
            at, is_hami = self._history.now, AGENT not in annotations
            self._history.add(NodeShown(at=at, revision=revision, name=name, cards=cards, is_hami=is_hami))

    def _take_lease(self, revision: int, _key: str, lease: Json | None) -> None:
        holder = str((lease or {}).get("spec", {}).get("holderIdentity") or "")
        if holder != self.holder:
            self.holder = holder
            self._history.add(LeaseShown(at=self._history.now, revision=revision, holder=holder))


def read_pod(pod: Json, *, key: str, revision: int, at: float) -> PodShown:
    metadata, spec, status = pod["metadata"], pod["spec"], pod.get("status", {})
    init = spec.get("initContainers") or ()
    asks = [
        _ask(container, is_init=position < len(init)) for position, container in enumerate([*init, *spec["containers"]])
    ]
    terminated = {
        each["name"] for each in status.get("initContainerStatuses") or () if "terminated" in each.get("state", {})
    }
    return PodShown(
        at=at,
        revision=revision,
        key=key,
        uid=metadata["uid"],
        asks=asks,
        node=spec.get("nodeName", ""),
        grants=(metadata.get("annotations") or {}).get(ALLOCATED, ""),
        ended=[position for position, container in enumerate(init) if container["name"] in terminated],
        phase=status.get("phase", ""),
        message=status.get("message", ""),
        priority=spec.get("priority", 0),
        gang=_gang(metadata),
        is_leaving="deletionTimestamp" in metadata,
    )


def _gang(metadata: Json) -> Gang | None:
    said = metadata.get("annotations") or {}
    if GANG not in said:
        return None
    size = int(said[GANG_SIZE])
    return Gang(f"{metadata['namespace']}/{said[GANG]}", size, int(said.get(GANG_MIN, size)))


def _ask(container: Json, *, is_init: bool) -> Ask:
    limits = container.get("resources", {}).get("limits") or {}
    count, memory, cores = (_whole(limits.get(name, "0")) for name in (GPU, MEMORY, CORES))
    return Ask(count, memory if MEMORY in limits else None, cores, is_init)


def _whole(quantity: str) -> int:
    """An apiserver writes 6000 as 6k."""
    return int(quantity.removesuffix("k")) * (1000 if quantity.endswith("k") else 1)
