from __future__ import annotations

import pytest

from tessera.services import gpu_time
from tessera.services.gpu_time import OTHERS, CardKey, GpuTime
from tessera.wire.objects import Workload

CARD = CardKey("n1", "GPU-0")
WEB = Workload("shop", "Deployment", "web")
TRAIN = Workload("lab", "Job", "train")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class World:
    """One card."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.time = GpuTime(self.clock)
        self.time.put_card(CARD, "A100")

    def share(self, pod: str, share: float, workload: Workload = WEB) -> None:
        self.time.set_share(CARD, pod, share=share, workload=workload)

    def after(self, seconds: float) -> dict[str, float]:
        """By the workload's name, with what is left."""
        self.clock.now += seconds
        found = {sample.key.workload.name: sample.seconds for sample in self.time.samples()}
        return found | {"idle": sum(self.time.idle().values())}


def test_a_share_counts_while_it_lasts_and_the_rest_is_idle() -> None:
    world = World()
    assert world.after(10) == {"idle": 10}
    world.share("p", 0.25)
    assert world.after(10) == {"web": 2.5, "idle": 17.5}
    world.share("p", 0)
    assert world.after(10) == {"web": 2.5, "idle": 27.5}


def test_pods_of_one_workload_are_counted_together_and_their_counter_outlives_them() -> None:
    world = World()
    world.share("p", 0.25)
    world.share("q", 0.5)
    world.share("r", 0.25, TRAIN)
    assert world.after(10) == {"web": 7.5, "train": 2.5, "idle": 0}
    world.share("p", 0)
    assert world.after(10) == {"web": 12.5, "train": 5.0, "idle": 2.5}


def test_shares_of_more_than_the_card_are_reduced_in_proportion() -> None:
    world = World()
    world.share("p", 0.9)
    world.share("q", 0.6, TRAIN)
    assert world.after(10) == pytest.approx({"web": 6.0, "train": 4.0, "idle": 0})
    world.share("p", 0)
    assert world.after(10) == pytest.approx({"web": 6.0, "train": 10.0, "idle": 4.0})


@pytest.mark.parametrize(("share", "counted"), [(7.0, 10.0), (-1.0, None)])
def test_a_share_is_between_nothing_and_the_card(share: float, counted: float | None) -> None:
    world = World()
    world.share("p", share)
    assert world.after(10).get("web") == counted


def test_a_card_that_is_gone_counts_no_more_for_anyone() -> None:
    world = World()
    world.share("p", 0.5)
    world.after(10)
    world.time.drop_card(CARD)
    world.share("p", 1.0)
    assert world.after(10) == {"web": 5, "idle": 5}


def test_a_card_of_another_model_is_another_card() -> None:
    world = World()
    world.share("p", 0.5)
    world.after(10)
    world.time.put_card(CARD, "H200")
    world.time.put_card(CARD, "H200")
    world.share("p", 0.5)
    world.after(10)
    assert {sample.key.model: sample.seconds for sample in world.time.samples()} == {"A100": 5, "H200": 5}
    assert world.time.idle() == {"A100": 5, "H200": 5}


def test_a_counter_never_falls() -> None:
    """Prometheus would take it for a restart, and add the whole value again."""
    world = World()
    world.clock.now = 0.0
    for number in range(1, 50):
        world.share("p", 1 / number)
        world.share("q", 0.1 / number)
    world.share("q", 0)
    world.share("p", 1)
    earlier = -1.0
    for _ in range(20):
        idle = world.after(1e6)["idle"]
        assert idle >= earlier
        earlier = idle


def test_a_counter_without_shares_stands_still() -> None:
    world = World()
    for pod in ("p", "q", "r"):
        world.share(pod, 0.1)
    for pod in ("p", "q", "r"):
        world.share(pod, 0)
    assert world.after(1e20)["web"] == 0


class TestManyWorkloads:
    @pytest.fixture(autouse=True)
    def few(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(gpu_time, "MAX_SERIES", 2)

    def world(self) -> World:
        """Two workloads, of which the first one rests."""
        world = World()
        world.share("p", 0.25)
        world.share("q", 0.25, TRAIN)
        world.share("p", 0)
        return world

    def test_the_counter_that_has_rested_for_longest_makes_room(self) -> None:
        world = self.world()
        world.after(gpu_time.KEPT_S)
        world.share("r", 0.5, Workload("lab", "Job", "new"))
        assert world.after(10).keys() == {"train", "new", "idle"}

    def test_without_one_that_rested_long_enough_new_workloads_are_counted_together(self) -> None:
        world = self.world()
        world.after(gpu_time.KEPT_S - 1)
        for name in ("new", "newer"):
            world.share(name, 0.25, Workload("lab", "Job", name))
        found = world.after(1)
        assert found.keys() == {"web", "train", OTHERS.name, "idle"}
        assert found[OTHERS.name] == pytest.approx(0.5)
        for name in ("new", "newer"):
            world.share(name, 0)
        assert world.after(10)[OTHERS.name] == pytest.approx(0.5)

    def test_a_workload_that_returned_keeps_its_counter(self) -> None:
        world = self.world()
        world.share("p", 0.25)
        world.after(gpu_time.KEPT_S)
        world.share("r", 0.5, Workload("lab", "Job", "new"))
        assert world.after(1).keys() == {"web", "train", OTHERS.name, "idle"}
