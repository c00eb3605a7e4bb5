"""Clusters that are described, not run: the documents of the page's contract, and what changes in them.

Everything follows from the arguments: the same description makes the same bytes, so that pictures do not change.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import msgspec

Document = dict[str, Any]

H100, A100, L4, ASCEND = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-40GB", "NVIDIA L4", "Ascend910B3"
MEMORY = {H100: 81559, A100: 40960, L4: 23034, ASCEND: 65536}
NOW = 1_763_324_000.0
STATE, SLICES, USED, BUSY, CLAIMS = 7, 10, 11, 12, 13
"""places in a card"""


@dataclass
class DescribedCluster:
    """The state of a cluster, as the server would describe it."""

    name: str = "demo"
    kind: str = "cluster"
    live: bool = True
    time: float = NOW
    version: int = 1
    problem: str = ""
    journal: Document | None = None
    pods: dict[str, list[Any]] = field(default_factory=dict)
    nodes: dict[str, Document] = field(default_factory=dict)
    waiting: dict[str, Document] = field(default_factory=dict)
    records: list[Document] = field(default_factory=list)
    is_measured: bool = True

    # -- description

    def add_node(
        self, name: str, model: str, cards: int, *, mode: str = "hami-core", linked: int = 0, problem: str = ""
    ) -> None:
        memory = MEMORY.get(model, 16384)
        self.nodes[name] = {
            "name": name,
            "problem": problem,
            "cards": [
                [
                    *(index, f"GPU-{name}-{index}", model, mode, memory, 100, 10, ""),
                    *(f"NVLink {index // linked}" if linked else "", index * 2 // max(cards, 1), []),
                    *((0, 0.0) if self.is_measured else (None, None)),
                ]
                for index in range(cards)
            ],
        }

    def set_state(self, node: str, index: int, state: str) -> None:
        self.nodes[node]["cards"][index][STATE] = state

    def place(
        self,
        namespace: str,
        name: str,
        node: str,
        *indices: int,
        memory: int,
        cores: int,
        owner: tuple[str, str] = ("", ""),
        used: float | None = 0.6,
        profile: str = "",
    ) -> Document:
        """Grants slices; returns what changes."""
        uid = f"uid-{namespace}-{name}"
        since = self.time - 60.0 - 311.0 * (len(self.pods) % 17)
        self.pods[uid] = [namespace, name, *owner, "bound", since]
        for index in indices:
            card = self.nodes[node]["cards"][index]
            share = used if self.is_measured else None
            in_use = None if share is None else round(memory * share)
            busy = None if share is None else round(100 * share * 0.8)
            card[SLICES].append([uid, memory, cores, 1, in_use, busy, profile])
            if in_use is not None:
                card[USED] = (card[USED] or 0) + in_use
                card[BUSY] = (card[BUSY] or 0) + round((busy or 0) * cores / 100)
        return self.changed(node)

    def remove(self, namespace: str, name: str) -> Document:
        uid = f"uid-{namespace}-{name}"
        self.pods.pop(uid, None)
        held = []
        for node in self.nodes.values():
            for card in node["cards"]:
                kept = [part for part in card[SLICES] if part[0] != uid]
                if len(kept) < len(card[SLICES]):
                    card[SLICES] = kept
                    held.append(node["name"])
        return self.changed(*held)

    def wait(self, namespace: str, name: str, **texts: Any) -> Document:
        """A pod that waits; returns what changes."""
        uid = f"uid-{namespace}-{name}"
        self.waiting[uid] = {
            "uid": uid,
            "namespace": namespace,
            "name": name,
            "owner": None,
            "since": self.time - 200.0,
            "asks": "1 x 40000 MiB, 50 cores",
            "why": "needs 40000 MiB on one card; the most free is 23034 MiB",
            "nearest": "card 0 of l4-1: 23034 of 40000 MiB free",
            "change": "23034 instead of 40000 MiB would fit on l4-1",
            "attempts": 3,
            "gang": None,
            **texts,
        }
        return {"waiting": {uid: self.waiting[uid]}}

    def wait_as_gang(self, namespace: str, name: str, members: list[list[str]], **figures: Any) -> Document:
        """A gang that waits; members are name, state and node. Returns what changes."""
        uid, exist = f"gang/{namespace}/{name}", sum(state != "gated" for _, state, _ in members)
        told = {key: figures.pop(key) for key in ("asks", "why", "since") if key in figures}
        gang: Document = {"size": len(members), "required": len(members), "exist": exist, "gated": len(members) - exist}
        gang |= {"bound": 0, "fit": None, "until": None, "members": members, **figures}
        (row,) = self.wait(namespace, name, nearest="", change="", attempts=None, gang=gang, **told)["waiting"].values()
        self.waiting[uid] = {**self.waiting.pop(row["uid"]), "uid": uid}
        return {"waiting": {uid: self.waiting[uid]}}

    def hold(self, namespace: str, gang: str, node: str, *indices: int, memory: int, cores: int, until: float) -> None:
        """A place for a member of a gang."""
        uid = f"gang/{namespace}/{gang}/{len(self.pods)}"
        self.pods[uid] = [namespace, f"{gang} (held)", "Gang", gang, "held", None, gang, until]
        for index in indices:
            self.nodes[node]["cards"][index][SLICES].append([uid, memory, cores, 1, None, None, ""])

    def nominate(
        self,
        namespace: str,
        name: str,
        node: str,
        index: int,
        *,
        memory: int,
        leaving: list[str],
        until: float,
        is_gang: bool = False,
    ) -> Document:
        """A claim on what other pods, by uid, still hold; returns what changes."""
        for card in self.nodes[node]["cards"]:
            card[CLAIMS:] = card[CLAIMS:] or [[]]
        self.nodes[node]["cards"][index][CLAIMS].append(
            {
                "uid": f"uid-{namespace}-{name}",
                "namespace": namespace,
                "name": name,
                "isGang": is_gang,
                "memory": memory,
                "cores": 100,
                "until": until,
                "leaving": leaving,
            }
        )
        return self.changed(node)

    def record(self, time: float, kind: str, pod: str, node: str, text: str) -> None:
        sequence = len(self.records) + 1
        self.records.append({"sequence": sequence, "time": time, "kind": kind, "pod": pod, "node": node, "text": text})
        self.journal = {"from": self.records[0]["time"], "to": self.time}

    # -- documents

    def changed(self, *nodes: str) -> Document:
        """These nodes, as they are now."""
        return {"nodes": {name: self._node(name) for name in nodes}}

    def _node(self, name: str) -> Document | None:
        found = self.nodes.get(name)
        if found is None:
            return None
        uids = dict.fromkeys(part[0] for card in found["cards"] for part in card[SLICES])
        pods = {uid: self.pods[uid] for uid in uids}
        return {"problem": found["problem"], "cards": found["cards"], "pods": pods}

    def state(self, since: int | None = None, news: Document | None = None) -> Document:
        """`news`: the parts that changed after that version; None is all of them."""
        if news is None:
            news = {**self.changed(*self.nodes), "waiting": self.waiting, "totals": self.totals()}
        return {
            "version": self.version,
            "since": since,
            "time": self.time,
            "source": {
                "kind": self.kind,
                "name": self.name,
                "live": self.live,
                "journal": self.journal,
                "problem": self.problem,
            },
            "nodes": {},
            "waiting": {},
            **news,
        }

    def totals(self) -> Document:
        by_model: dict[str, Document] = {}
        by_namespace: dict[str, Document] = {}
        for node in self.nodes.values():
            for card in node["cards"]:
                _, _, model, _, memory, cores, _, _, _, _, slices, *_ = card
                one = by_model.setdefault(model, _sums())
                one["cards"] += 1
                _add(one["total"], memory, cores, 1.0)
                for uid, granted, granted_cores, _, used, _, _ in slices:
                    other = by_namespace.setdefault(self.pods[uid][0], _sums())
                    share = max(granted / memory, granted_cores / cores)
                    for sums in (one, other):
                        _add(sums["granted"], granted, granted_cores, share)
                        _add(sums["used"], used or 0, 0, 0.0)
                    if used == 0:
                        _add(one["idle"], granted, granted_cores, share)
        every = _sums()
        for one in by_model.values():
            for key in ("granted", "total", "used", "idle"):
                _add(every[key], one[key]["memory"], one[key]["cores"], one[key]["cards"])
        return {
            "cards": sum(one["cards"] for one in by_model.values()),
            "granted": every["granted"],
            "total": every["total"],
            "used": every["used"] if self.is_measured else None,
            "fragmented": {"memory": every["total"]["memory"] // 23, "cores": every["total"]["cores"] // 40},
            "idle": every["idle"] if self.is_measured else None,
            "waits": {"count": 412, "p50": 0.4, "p95": 31.0, "longest": 1260.0},
            "byNamespace": [
                {"namespace": name, "granted": one["granted"], "used": one["used"] if self.is_measured else None}
                for name, one in sorted(by_namespace.items(), key=lambda item: -item[1]["granted"]["memory"])
            ],
            "byModel": [
                {"model": name, "cards": one["cards"], "granted": one["granted"], "total": one["total"]}
                for name, one in sorted(by_model.items())
            ],
        }


def _sums() -> Document:
    amounts = {key: {"memory": 0, "cores": 0, "cards": 0.0} for key in ("granted", "total", "used", "idle")}
    return {"cards": 0, **amounts}


def _add(sums: Document, memory: int, cores: int, cards: float) -> None:
    sums["memory"] += memory
    sums["cores"] += cores
    sums["cards"] = round(sums["cards"] + cards, 2)


def copy(cluster: DescribedCluster) -> DescribedCluster:
    """For a state at an earlier time."""
    fields = {name: msgspec.json.decode(msgspec.json.encode(value)) for name, value in vars(cluster).items()}
    return DescribedCluster(**fields)


def small_cluster() -> DescribedCluster:
    """Some twenty cards with everything that the page shows: for pictures and for most tests."""
    cluster = DescribedCluster()
    cluster.add_node("h100-1", H100, 8, linked=4)
    cluster.add_node("h100-2", H100, 8, linked=4)
    cluster.add_node("a100-1", A100, 4, linked=2)
    cluster.add_node("mig-1", A100, 2, mode="mig")
    cluster.add_node("l4-1", L4, 2)
    cluster.add_node("l4-2", L4, 2, mode="mps")
    cluster.add_node("ascend-1", ASCEND, 4)
    begin = NOW - 3600.0
    cluster.record(begin, "took-over", "", "", "this process leads")
    decisions: list[tuple[str, str, str, tuple[int, ...], int, int, tuple[str, str], float | None, str]] = [
        ("vision", "train-1", "h100-1", (0, 1, 2, 3), 81559, 100, ("Job", "train-1"), 0.91, ""),
        ("search", "embed-6f7c-x2v", "h100-1", (4,), 40000, 50, ("Deployment", "embed"), 0.55, ""),
        ("search", "embed-6f7c-9kq", "h100-1", (4,), 40000, 50, ("Deployment", "embed"), 0.43, ""),
        ("notebooks", "ada-0", "h100-1", (5,), 20000, 20, ("StatefulSet", "ada"), 0.0, ""),
        ("notebooks", "grace-0", "h100-1", (5,), 20000, 20, ("StatefulSet", "grace"), 0.7, ""),
        ("notebooks", "edsger-0", "h100-1", (5,), 20000, 20, ("StatefulSet", "edsger"), 0.1, ""),
        ("vision", "train-2", "h100-2", (0, 1, 2, 3), 81559, 100, ("Job", "train-2"), 0.88, ""),
        ("speech", "tune-0", "h100-2", (4, 5), 60000, 80, ("StatefulSet", "tune"), 0.62, ""),
        ("speech", "eval-b2", "h100-2", (4,), 16000, 20, ("Job", "eval"), 0.5, ""),
        ("chat", "answer-5d-1", "l4-1", (0,), 5000, 20, ("Deployment", "answer"), 0.8, ""),
        ("chat", "answer-5d-2", "l4-1", (0,), 5000, 20, ("Deployment", "answer"), 0.74, ""),
        ("chat", "answer-5d-3", "l4-1", (0,), 5000, 20, ("Deployment", "answer"), 0.79, ""),
        ("chat", "answer-5d-4", "l4-1", (0,), 5000, 20, ("Deployment", "answer"), 0.0, ""),
        ("chat", "rank-77-a", "l4-2", (0,), 11000, 50, ("Deployment", "rank"), 0.5, ""),
        ("risk", "scoring-1", "mig-1", (0,), 9856, 15, ("Deployment", "scoring"), 0.6, "1g.10gb"),
        ("risk", "scoring-2", "mig-1", (0,), 20096, 43, ("Deployment", "scoring"), 0.35, "3g.20gb"),
        ("search", "index-0", "a100-1", (0, 1), 30000, 60, ("StatefulSet", "index"), 0.72, ""),
        ("chat", "draft-0", "a100-1", (1,), 8000, 30, ("StatefulSet", "draft"), 0.2, ""),
        ("documents", "ocr-6b", "ascend-1", (1,), 16384, 25, ("Deployment", "ocr"), 0.66, ""),
        ("documents", "ocr-7c", "ascend-1", (1,), 16384, 25, ("Deployment", "ocr"), 0.61, ""),
    ]
    for number, (namespace, name, node, indices, memory, cores, owner, used, profile) in enumerate(decisions):
        time = begin + 60.0 + number * 170.0
        cluster.place(
            namespace, name, node, *indices, memory=memory, cores=cores, owner=owner, used=used, profile=profile
        )
        text = f"on card {', '.join(map(str, indices))}: {memory} MiB, {cores} cores of each"
        cluster.record(time, "placed", f"{namespace}/{name}", node, text)
        if number % 4 == 3:
            why = "needs 4 cards that fit on one node; the most are 2 on h100-2"
            cluster.record(time + 25.0, "refused", "vision/train-3", "", why)
    cluster.set_state("a100-1", 3, "unhealthy")
    cluster.set_state("ascend-1", 3, "cordoned")
    cluster.wait(
        "vision",
        "train-3",
        owner=["Job", "train-3"],
        since=NOW - 1260.0,
        asks="4 x 81559 MiB, 100 cores",
        why="needs 4 cards that fit on one node; the most are 2 on h100-2",
        nearest="h100-2: cards 6 and 7 are free, card 5 has 21559 of 81559 MiB free",
        change="2 instead of 4 cards would fit on h100-2",
        attempts=19,
    )
    cluster.wait(
        "notebooks",
        "alan-0",
        owner=["StatefulSet", "alan"],
        since=NOW - 42.0,
        asks="1 x 24000 MiB of an L4",
        why="needs 24000 MiB on one card; the largest L4 has 23034 MiB",
        nearest="card 1 of l4-1: 23034 of 24000 MiB free",
        change="23034 instead of 24000 MiB would fit on l4-1",
        attempts=2,
    )
    return cluster


def cluster_with_gangs() -> DescribedCluster:
    """The small cluster with a gang that does not fit, one that is planned, and a pod that others leave for."""
    cluster = small_cluster()
    cluster.wait_as_gang(
        "vision",
        "pretrain",
        [[f"pretrain-{number}", "waits" if number < 7 else "gated", ""] for number in range(8)],
        asks="8 x 4 NVIDIA",
        why="8 x 4 NVIDIA: 5 of 8 members fit; short of 12 cards; needs 4 cards that fit on one node; the most are 2",
        since=NOW - 605.0,
        fit=5,
    )
    cluster.wait_as_gang(
        "speech",
        "align",
        [["align-0", "reserved", "h100-2"], ["align-1", "waits", ""]],
        asks="2 x 1 NVIDIA",
        why="a place is held for every member; 1 of 2 members have come to be bound",
        since=NOW - 4.0,
        fit=2,
        until=NOW + 16.0,
    )
    cluster.place("speech", "align-0", "h100-2", 6, memory=81559, cores=100, used=None)
    align = cluster.pods["uid-speech-align-0"]
    assert align is not None
    align[4:] = ["reserved", None, "align"]
    cluster.hold("speech", "align", "h100-2", 7, memory=81559, cores=100, until=NOW + 16.0)
    leaving = [f"uid-notebooks-{name}-0" for name in ("ada", "edsger")]
    cluster.nominate("search", "urgent-0", "h100-1", 5, memory=60000, leaving=leaving, until=NOW + 290.0)
    cluster.wait(
        "search",
        "urgent-0",
        asks="1 x 60000 MiB",
        why="nominated for h100-1: it waits until notebooks/ada-0, notebooks/edsger-0 have left",
        nearest="",
        change="",
        since=NOW - 3.0,
        attempts=1,
    )
    text = "vision/pretrain is waiting: 8 x 4 NVIDIA: 5 of 8 members fit; short of 12 cards"
    cluster.record(NOW - 600.0, "gang", "", "", text)
    cluster.record(NOW - 3.0, "nominated", "search/urgent-0", "h100-1", "for it 2 pods must leave: card 5 60000 MiB")
    cluster.record(NOW - 2.0, "evicted", "notebooks/ada-0", "h100-1", "from h100-1: Preempted by pod search/urgent-0")
    return cluster


def large_cluster(nodes: int = 5000, *, seed: int = 5) -> DescribedCluster:
    """Eight cards per node and two slices per card."""
    rng = random.Random(seed)
    cluster = DescribedCluster(name=f"{nodes} nodes", is_measured=False)
    namespaces = [f"team-{letter}" for letter in "abcdefghijklmnopqrst"]
    weights = [1.0 / (place + 1) for place in range(len(namespaces))]
    for number in range(nodes):
        name = f"gpu-{number:04d}"
        cluster.add_node(name, (H100, H100, A100, L4)[number % 4], 8, linked=(8, 8, 4, 0)[number % 4])
        for index, card in enumerate(cluster.nodes[name]["cards"]):
            if rng.random() < 0.004:
                card[STATE] = rng.choice(["unhealthy", "cordoned"])
            for part in range(2):
                (namespace,) = rng.choices(namespaces, weights)
                uid = f"{number:08x}-0000-4000-8000-{index:04d}{part:08d}"
                cluster.pods[uid] = [namespace, f"worker-{number}-{index}-{part}", "Job", "worker", "bound", NOW]
                memory = int(card[4] * rng.choice([0.15, 0.25, 0.4, 0.5]))
                card[SLICES].append([uid, memory, rng.choice([10, 25, 40]), 1, None, None, ""])
    for number in range(200):
        cluster.wait("team-a", f"pending-{number}", since=NOW - 37.0 * number)
    return cluster
