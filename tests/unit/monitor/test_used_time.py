from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tessera.monitor.container_dirs import Owner
from tessera.monitor.device_usage import CardUtilization
from tessera.monitor.pods import Cards, SeenPod
from tessera.monitor.regions import Region
from tessera.monitor.used_time import UsedTime
from tessera.services.exposition import Registry
from tessera.wire.objects import Workload
from tests.unit.monitor.builders import GPU_A, GPU_B, Slot, good, region

CARD = CardUtilization(0, GPU_A, "A100")
WEB = Workload("shop", "Deployment", "web")


def pod(name: str, *cards: str | None) -> SeenPod:
    """With one container; None: its cards are not known."""
    given = None if None in cards else (Cards(filter(None, cards)),)
    return SeenPod(name, "shop", name, ("main",), cards=given, workload=WEB)


def using(*percents: int) -> Region:
    """Of GPU_A, by one process each."""
    return good(region(uuids=(GPU_A,), slots=[Slot({0: (0, 0, 0, 0, percent)}) for percent in percents]))


class World:
    def __init__(self) -> None:
        self.now = 0.0
        self.time = UsedTime("n1", lambda: self.now)
        self.time.on_cards([CARD])
        self.registry = Registry()
        self.registry.register(self.time.collect)

    def round(self, *shown: tuple[SeenPod, Region], seconds: float = 10.0) -> None:
        pods, regions = [each for each, _ in shown], {Owner(each.uid, "main"): seen for each, seen in shown}
        self.time.on_round(pods, regions, {owner: cards for each in pods for owner, cards in each.granted.items()})
        self.now += seconds

    def text(self) -> str:
        return self.registry.render().decode()

    def seconds(self) -> dict[str, float]:
        families = text_string_to_metric_families(self.text())
        return {family.name: sum(s.value for s in family.samples) for family in families if family.samples}


def together(used: float, unused: float) -> dict[str, float]:
    return {"tessera_gpu_used_seconds": used, "tessera_gpu_unused_seconds": unused}


def test_use_and_the_rest_add_up_to_the_time_of_the_card() -> None:
    world = World()
    world.round((pod("a", GPU_A), using(20, 10)), (pod("b", GPU_A), using(40)))
    assert world.seconds() == pytest.approx(together(7.0, 3.0))
    world.round((pod("a", GPU_A), using(20, 10)))
    assert world.seconds() == pytest.approx(together(10.0, 10.0))
    world.round()
    assert world.seconds() == pytest.approx(together(10.0, 20.0))


@pytest.mark.parametrize(
    ("given", "used"), [(GPU_A, 10.0), (GPU_B, 0.0), (None, 10.0)], ids=["its card", "another one's", "not known"]
)
def test_a_container_counts_as_one_card_at_most_and_only_on_its_own(given: str | None, used: float) -> None:
    world = World()
    world.round((pod("a", given), using(2**63)))
    assert world.seconds().get("tessera_gpu_used_seconds", 0.0) == used


def test_cards_that_the_driver_does_not_show_do_not_count() -> None:
    world = World()
    world.round((pod("a", GPU_A), using(50)))
    world.time.on_cards([])
    world.round((pod("a", GPU_A), using(50)))
    assert world.seconds() == pytest.approx(together(5.0, 5.0))


def test_the_series_name_node_workload_and_the_model_as_registered() -> None:
    world = World()
    world.round((pod("a", GPU_A), using(50)))
    card = 'device_type="NVIDIA-A100"'
    labels = f'{card},namespace="shop",node="n1",owner_kind="Deployment",owner_name="web"'
    text = "".join(sorted(world.text().splitlines(keepends=True)))
    shown = [",".join(sorted(line.split("{")[1].split("}")[0].split(","))) for line in text.splitlines() if "{" in line]
    assert sorted(shown) == sorted([labels, f'{card},node="n1"'])
