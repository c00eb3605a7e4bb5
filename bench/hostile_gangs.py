"""The worst gangs that an apiserver accepts, for `bench.hostile`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

Json = dict[str, Any]
MakePod = Callable[..., Json]

MANY = 10_000
"""members that exist, of a gang that says that it has fewer"""
LARGEST = 1_024
LONGEST_NAME = 253
"""characters that the apiserver accepts"""
ANNOTATION = 250 << 10
"""bytes; the apiserver accepts 256 KiB of annotations"""


class HostileGang(NamedTuple):
    name: str
    members: list[Json]
    """that the API shows before the first of them is asked for"""

    @property
    def is_many(self) -> bool:
        """Whether it is many gangs: then all of them are looked at again, as time does."""
        return "gangs" in self.name


def gangs(pod: MakePod, container: Callable[..., Json]) -> Iterator[HostileGang]:
    """`pod` and `container` make manifests, as in `bench.hostile`."""

    def member(number: int, *, gang: str = "g", size: object = LARGEST, more: Json | None = None, **asks: int) -> Json:
        annotations = {"tessera.io/gang": gang, "tessera.io/gang-size": str(size), **(more or {})}
        asked = pod(container("a", **({"gpu": 1, "gpumem": 1_000} | asks)), annotations=annotations)
        asked["metadata"] |= {"name": f"m{number:05}", "uid": f"member-{number}"}
        return asked

    def unsized(number: int) -> Json:
        asked = member(number)
        asked["metadata"]["annotations"] = {"scheduling.x-k8s.io/pod-group": f"g{number}"}
        return asked

    def equal(members: int, **how: Any) -> list[Json]:
        return [member(i, **how) for i in range(members)]

    cases = {
        "1 of 1024 members, all cards of a node each": equal(1, gpu=8, gpumem=1_000),
        "1 of 1024 members that fit nowhere": equal(1, gpu=8, gpumem=79_000),
        "1024 members of as many shapes": [member(i, gpumem=1_000 + i) for i in range(LARGEST)],
        "the same, too large for any card": [member(i, gpumem=80_000 + i) for i in range(LARGEST)],
        "1024 members, a domain per node": equal(LARGEST, more=topology("kubernetes.io/hostname")),
        "10,000 members of a gang of 1024": equal(MANY),
        "10,000 members of a gang of 2": equal(MANY, size=2),
        "1024 members that say another size each": [member(i, size=i + 1) for i in range(LARGEST)],
        "10,000 gangs of one member that waits": [member(i, gang=f"g{i}", gpu=9) for i in range(MANY)],
        "10,000 gangs that fit alone": [member(i, gang=f"g{i}", size=2) for i in range(MANY)],
        "10,000 gangs without a PodGroup": [unsized(i) for i in range(MANY)],
        "names of 253 characters": equal(LARGEST, gang="g" * LONGEST_NAME),
        "a name of 250 KiB": equal(1, gang="g" * ANNOTATION),
        "a topology of 250 KiB": equal(1, more=topology("x" * ANNOTATION)),
    }
    for size in ("10000", "-1", "1e9", "9" * ANNOTATION, "\u0661\u0662"):
        cases[f"gang-size {size[:8]}"] = equal(1, size=size)
    for number, (name, members) in enumerate(cases.items()):
        for one in members:
            # What a gang held without being bound is held against the others of its namespace.
            one["metadata"]["namespace"] = f"team-{number}"
        yield HostileGang(name, members)


def topology(label: str) -> Json:
    return {"tessera.io/gang-topology": label}
