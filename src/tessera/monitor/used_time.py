"""GPU-seconds that containers used, by workload and model, and those that they did not.

A container's share of a card is the use of the SMs that its region shows, from one round to the next. A region may say
anything: a container counts only on cards that it was given, and all containers together as one card at most. Only
containers with HAMi-core have a region; what others use is not told apart from what is unused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from tessera.monitor.container_dirs import Owner
from tessera.monitor.device_usage import CardUtilization
from tessera.monitor.pods import Cards, SeenPod
from tessera.monitor.regions import Region
from tessera.services.exposition import Family
from tessera.services.gpu_time import CardKey, GpuTime

MAKER = "NVIDIA"


class UsedTime:
    """The counters of one node. Used from the event loop only."""

    def __init__(self, node: str, time: Callable[[], float]) -> None:
        self._node = node
        self._time = GpuTime(time)
        self._cards: frozenset[str] = frozenset()
        self._counted: frozenset[tuple[str, str]] = frozenset()
        """card and pod of every share"""

    def on_cards(self, cards: Iterable[CardUtilization]) -> None:
        """What the driver shows: cards that it does not show do not count."""
        models = {card.uuid: _model(card) for card in cards}
        for uuid in self._cards - models.keys():
            self._time.drop_card(CardKey(self._node, uuid))
        for uuid, model in models.items():
            self._time.put_card(CardKey(self._node, uuid), model)
        self._cards = frozenset(models)

    def on_round(
        self, pods: Sequence[SeenPod], regions: Mapping[Owner, Region], granted: Mapping[Owner, Cards | None]
    ) -> None:
        """What the containers use from now on; `granted` are their cards."""
        percent: Counter[tuple[str, str]] = Counter()
        for owner, given in granted.items():
            region = regions.get(owner)
            for device in () if region is None else region.devices:
                if device.uuid is not None and (given is None or device.uuid in given):
                    percent[device.uuid, owner.uid] += device.use.sm
        for uuid, uid in self._counted - percent.keys():
            self._time.set_share(CardKey(self._node, uuid), uid, share=0.0)
        workloads = {pod.uid: pod.workload for pod in pods}
        for (uuid, uid), value in percent.items():
            card = CardKey(self._node, uuid)
            self._time.set_share(card, uid, share=value / 100, workload=workloads[uid])
        self._counted = frozenset(percent)

    def collect(self) -> Iterator[Family]:
        used = Family(
            "counter",
            "tessera_gpu_used_seconds_total",
            "Seconds of cards that containers used, as HAMi-core measures the use of SMs.",
            ["node", "namespace", "owner_kind", "owner_name", "device_type"],
        )
        for sample in self._time.samples():
            used.add(sample.seconds, [self._node, *sample.key.workload, sample.key.model])
        unused = Family(
            "counter",
            "tessera_gpu_unused_seconds_total",
            "Seconds of cards that no container with HAMi-core used.",
            ["node", "device_type"],
        )
        for model, seconds in self._time.idle().items():
            unused.add(seconds, [self._node, model])
        yield from (used, unused)


def _model(card: CardUtilization) -> str:
    """As the agent registers it, so that what is used can be compared with what is granted."""
    return card.name if card.name.startswith(MAKER) else f"{MAKER}-{card.name}"
