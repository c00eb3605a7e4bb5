"""Filter requests as kube-scheduler sends them: one pod and the names of all nodes.

The same parameters always give the same requests in the same order.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import cycle

import msgspec

from bench.fleet import CARD_MEMORY, asking_pod, node_name

REPEATED_SHAPES = ((2_000, 5), (6_000, 10), (12_000, 20), (20_000, 30))
"""MiB and per cent: a few shapes that repeat, as with deployments"""
HOPELESS_SHAPES = tuple((CARD_MEMORY + 10_000 * i, 10) for i in range(1, 5))
"""more memory than any card has"""

Shape = tuple[int, int]


class FilterRequests:
    """Filter requests with all nodes of a fleet. Each is for a new pod, unless a uid is given."""

    def __init__(self, nodes: int, *, run: str = "0") -> None:
        """`run` is a hexadecimal digit that tells the pods of several instances apart."""
        self._names = [node_name(number) for number in range(nodes)]
        self._listed = msgspec.json.encode(self._names)
        self._run = run
        self._made = 0
        self._random = random.Random(nodes)
        self._templates: dict[Shape, str] = {}
        self._repeated = cycle(REPEATED_SHAPES)

    def uid(self) -> str:
        self._made += 1
        return f"{self._made:08x}-{self._run * 4}-4000-8000-0000000000ff"

    def request(self, shape: Shape, *, uid: str = "", shuffled: bool = True) -> bytes:
        """`shuffled` puts the names in a new order each time, as the parallel workers of kube-scheduler do."""
        template = self._templates.get(shape)
        if template is None:
            template = self._templates[shape] = msgspec.json.encode(asking_pod(*shape)).decode()
        uid = uid or self.uid()
        pod = template % {"name": f"training-{uid[:8]}", "namespace": "team-0", "uid": uid}
        return b'{"Pod":%b,"Nodes":null,"NodeNames":%b}\n' % (pod.encode(), self._list(shuffled))

    def repeated(self, *, shuffled: bool = True) -> bytes:
        return self.request(next(self._repeated), shuffled=shuffled)

    def unseen(self) -> bytes:
        """An amount of memory that no earlier pod requested, to the MiB."""
        return self.request((1_000 + self._made % 20_000, 7))

    def hopeless(self, count: int) -> Sequence[tuple[Shape, str]]:
        """Pods that fit on no node."""
        return [(shape, self.uid()) for shape, _ in zip(cycle(HOPELESS_SHAPES), range(count), strict=False)]

    def _list(self, shuffled: bool) -> bytes:
        if not shuffled:
            return self._listed
        self._random.shuffle(self._names)
        return msgspec.json.encode(self._names)
