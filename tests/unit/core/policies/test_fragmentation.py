from __future__ import annotations

from dataclasses import replace
from math import sqrt

import pytest

from tessera.core.model.demand_forecast import PRIOR, DemandForecast, DemandGroup, DemandSlice, HostLoad
from tessera.core.model.requests import HostRequest, PodRequest
from tessera.core.policies.demand_history import FADE_AT, FIRST, PRIOR_WEIGHT, DemandHistory
from tessera.core.policies.fragmentation.waste import waste_table
from tessera.core.policies.scarcity import MOST, STEP, against_what_is_left
from tests.support.builders import Cluster, PodBuilder, cluster, gpu_pod, node

AHEAD = {"node": "fragmentation", "device": "fragmentation"}
NEAR = STEP - 1.0
"""needs are rounded to steps"""


def chosen(
    world: Cluster, pod: PodBuilder, forecast: DemandForecast = PRIOR, host: HostRequest | None = None
) -> tuple[str, list[str]]:
    """Node and cards."""
    request = replace(pod.policy(**AHEAD).request(), forecast=forecast, host=host)
    answer = world.selector.select(request, world.ledger.node_names())
    placement = answer.placement  # type: ignore[union-attr]
    return placement.node, [grant.uuid for grant in placement.grants["NVIDIA"][0]]


def test_a_slice_goes_into_the_gap_that_it_fills() -> None:
    world = cluster().add(node("n1").gpus(1, memory=100), node("n2").gpus(1, memory=100))
    world.place(gpu_pod("a", mem=81, cores=81), ["n1"])
    forecast = DemandForecast(slices=(DemandSlice(81, 81, 0.5), DemandSlice(16, 16, 0.1), DemandSlice(100, 100, 0.4)))
    assert chosen(world, gpu_pod("b", mem=16, cores=16), forecast)[0] == "n1"


def test_a_card_is_chosen_by_what_would_be_left_of_it() -> None:
    world = cluster().add(node("n1").gpus(3, memory=100))
    for name, mem in (("a", 30), ("b", 65)):
        world.place(gpu_pod(name, mem=mem, cores=mem).policy(device="spread"))
    used = {uuid: use[1] for uuid, use in world.cards().items()}
    forecast = DemandForecast(slices=(DemandSlice(100, 100, 0.5), DemandSlice(65, 65, 0.3), DemandSlice(32, 32, 0.2)))
    _, cards = chosen(world, gpu_pod("c", mem=32, cores=32), forecast)
    assert used[cards[0]] == 65


def test_a_pod_that_takes_any_model_leaves_the_scarce_one_alone() -> None:
    world = cluster().add(node("a-scarce").gpus(1, model="T4"), node("b-plenty").gpus(1, model="A100"))
    assert chosen(world, gpu_pod(percent=100, cores=100))[0] == "a-scarce"
    forecast = replace(PRIOR, pressure={"T4": 0.8, "A100": 0.1})
    assert chosen(world, gpu_pod(percent=100, cores=100), forecast)[0] == "b-plenty"


def test_small_pods_leave_the_model_that_large_groups_need_alone() -> None:
    """Though no such group is whole now: what ends on the larger node makes it whole again."""
    world = cluster().add(node("a-large").gpus(8, model="A100"), node("b-small").gpus(4, model="T4"))
    for name in world.ledger.node_names():
        world.place(gpu_pod(f"first-on-{name}", percent=100, cores=100), [name])
    history = DemandHistory()
    for large, small in zip(requests(FIRST, gpu=8, percent=100), requests(FIRST, percent=50, cores=50), strict=True):
        history.observe(large, world.ledger.arrays, world.ledger.rules)
        history.observe(small, world.ledger.arrays, world.ledger.rules)
    forecast = history.forecast(world.ledger.arrays)
    assert chosen(world, gpu_pod("next", percent=50, cores=50), forecast)[0] == "b-small"


def test_a_pod_with_much_cpu_goes_where_cards_do_not_need_it() -> None:
    world = cluster().add(node("a-lean").gpus(4), node("b-rich").gpus(4))
    world.ledger.arrays.set_host_free("a-lean", cpu=48_000, memory=400_000)
    world.ledger.arrays.set_host_free("b-rich", cpu=104_000, memory=400_000)
    forecast = replace(PRIOR, loads=(HostLoad(1.0, 12_000.0, 40_000.0),))
    heavy = HostRequest(32_000, 40_000)
    assert chosen(world, gpu_pod(percent=100, cores=100), forecast, heavy)[0] == "b-rich"
    assert chosen(world, gpu_pod(percent=100, cores=100), forecast)[0] == "a-lean"


def test_whole_groups_are_broken_last() -> None:
    world = cluster().add(node("a-whole").gpus(8), node("b-broken").gpus(8))
    world.place(gpu_pod("first", percent=100, cores=100), ["b-broken"])
    assert chosen(world, gpu_pod("second", percent=100, cores=100))[0] == "b-broken"


@pytest.mark.parametrize(("need", "shares"), [(1.0, False), (1.5, True)])
def test_an_unused_card_is_opened_last_once_pods_that_need_one_will_find_none(need: float, shares: bool) -> None:
    world = cluster().add(node("n1").gpus(2, memory=100))
    world.place(gpu_pod("a", mem=50, cores=50))
    (used,) = [uuid for uuid, use in world.cards().items() if use[1]]
    # Half of a card is kept for the larger slice, unless whole cards are missing.
    forecast = DemandForecast(slices=(DemandSlice(50, 50, 0.5), DemandSlice(40, 40, 0.1), DemandSlice(30, 30, 0.4)))
    _, cards = chosen(world, gpu_pod("b", mem=40, cores=40), replace(forecast, whole_need=need))
    assert (cards == [used]) is shares


@pytest.mark.parametrize(("turnover", "node_name"), [(1.0, "b"), (0.0, "a")])
def test_where_pods_end_the_broken_node_with_less_room_is_filled(turnover: float, node_name: str) -> None:
    """The other one is the next to be whole; if no pod ends, neither will be."""
    world = cluster().add(node("a").gpus(8), node("b").gpus(8))
    for name, pods in (("a", 1), ("b", 5)):
        for number in range(pods):
            world.place(gpu_pod(f"{name}-{number}", percent=100, cores=100), [name])
    alone = DemandForecast(slices=(DemandSlice(100, 100, 1.0),), turnover=turnover)
    assert chosen(world, gpu_pod(percent=100, cores=100), alone)[0] == node_name


@pytest.mark.parametrize(("need", "node_name"), [(1.0, "a-more-cpu"), (4.0, "b-more-cards")])
def test_free_cpu_counts_as_room_the_more_it_is_short(need: float, node_name: str) -> None:
    world = cluster().add(node("a-more-cpu").gpus(4), node("b-more-cards").gpus(6))
    world.ledger.arrays.set_host_free("a-more-cpu", cpu=80_000, memory=400_000)
    world.ledger.arrays.set_host_free("b-more-cards", cpu=70_000, memory=400_000)
    forecast = DemandForecast(
        slices=(DemandSlice(100, 100, 1.0),),
        loads=(HostLoad(1.0, 10_000.0, 1_000.0),),
        host_need=need,
        turnover=1.0,
    )
    assert chosen(world, gpu_pod(percent=100, cores=100), forecast)[0] == node_name


def test_equal_nodes_are_decided_by_name() -> None:
    world = cluster().add(node("n2").gpus(2), node("n1").gpus(2), node("n3").gpus(2))
    assert chosen(world, gpu_pod(mem=1000))[0] == "n1"


def test_cores_count_beside_memory() -> None:
    world = cluster().add(node("n1").gpus(2, memory=100))
    world.place(gpu_pod("a", mem=50, cores=90).policy(device="binpack"))
    world.place(gpu_pod("b", mem=50, cores=50).policy(device="spread"))
    used = {uuid: use[2] for uuid, use in world.cards().items()}
    forecast = DemandForecast(slices=(DemandSlice(50, 50, 1.0), DemandSlice(50, 10, 0.5)))
    _, cards = chosen(world, gpu_pod("c", mem=50, cores=10), forecast)
    assert used[cards[0]] == 90


class TestWaste:
    def test_a_part_that_nobody_fits_is_all_waste(self) -> None:
        table = waste_table(DemandForecast(slices=(DemandSlice(50, 50, 1.0),)))
        assert table[49, 49] == pytest.approx(0.49)

    def test_a_part_that_is_filled_exactly_is_hardly_waste(self) -> None:
        table = waste_table(DemandForecast(slices=(DemandSlice(50, 50, 1.0),)))
        assert table[50, 50] < 0.02
        assert table[100, 100] < 0.05

    def test_memory_without_cores_is_waste_by_its_worth(self) -> None:
        table = waste_table(DemandForecast(slices=(DemandSlice(50, 50, 1.0),), memory_part=0.25))
        assert table[80, 0] == pytest.approx(0.2)

    def test_nothing_free_is_no_waste(self) -> None:
        assert waste_table(PRIOR)[0, 0] == 0.0


def requests(count: int, **asks: int) -> list[PodRequest]:
    return [gpu_pod(f"p{i}", **asks).request() for i in range(count)]


class TestDemandHistory:
    def learn(self, world: Cluster, pods: list[PodRequest], history: DemandHistory | None = None) -> DemandHistory:
        history = history or DemandHistory()
        for pod in pods:
            history.observe(pod, world.ledger.arrays, world.ledger.rules)
        return history

    def test_the_prior_holds_until_enough_pods_came(self) -> None:
        world = cluster().add(node().gpus(1))
        forecast = self.learn(world, requests(FIRST - 1, percent=30, cores=30)).forecast(world.ledger.arrays)
        assert forecast.slices == PRIOR.slices

    def test_before_much_is_known_rare_models_are_expected_to_be_needed_more(self) -> None:
        world = cluster().add(node("a").gpus(2, model="P100"), node("b").gpus(6, model="T4"))
        forecast = self.learn(world, requests(1, percent=30, cores=30)).forecast(world.ledger.arrays)
        assert forecast.slices == PRIOR.slices
        assert [group.part for group in forecast.groups] == [group.part for group in PRIOR.groups]
        assert forecast.pressure == pytest.approx({"P100": 0.05 * 8 / 2, "T4": 0.05 * 8 / 6}, rel=NEAR)

    def test_cards_that_come_change_what_is_expected_of_the_first_pods(self) -> None:
        world = cluster().add(node("a").gpus(2, model="P100"))
        history = self.learn(world, requests(1, percent=30, cores=30))
        assert not history.forecast(world.ledger.arrays).pressure
        world.add(node("b").gpus(6, model="T4"))
        self.learn(world, requests(1, percent=30, cores=30), history)
        assert history.forecast(world.ledger.arrays).pressure == pytest.approx(
            {"P100": 0.05 * 8 / 2, "T4": 0.05 * 8 / 6}, rel=NEAR
        )
        known = history.forecast(world.ledger.arrays)
        self.learn(world, requests(1, percent=30, cores=30), history)
        assert history.forecast(world.ledger.arrays) is known

    def test_the_first_pods_leave_rare_models_alone_whatever_their_nodes_are_called(self) -> None:
        world = cluster().add(
            node("a").gpus(2, model="P100"), node("b").gpus(2, model="T4"), node("c").gpus(2, model="T4")
        )
        history = self.learn(world, requests(1, percent=30, cores=30))
        assert chosen(world, gpu_pod(percent=100, cores=100))[0] == "a"
        assert chosen(world, gpu_pod(percent=100, cores=100), history.forecast(world.ledger.arrays))[0] == "b"

    def test_slices_are_parts_of_the_largest_card(self) -> None:
        world = cluster().add(node().gpus(1, memory=10_000))
        forecast = self.learn(world, requests(FIRST, mem=2_500, cores=30)).forecast(world.ledger.arrays)
        assert forecast.slices == (DemandSlice(25, 30, 1.0),)

    def test_several_cards_are_a_group_and_no_slice(self) -> None:
        world = cluster().add(node().gpus(8))
        forecast = self.learn(world, requests(FIRST, gpu=4, percent=100, cores=100)).forecast(world.ledger.arrays)
        assert forecast.slices == ()
        # The prior is added for what was not seen yet: a row of equal pods is hardly evidence against it.
        prior = PRIOR_WEIGHT / (PRIOR_WEIGHT + sqrt(FIRST))
        expected = {2: 0.05 * prior, 4: 1.0 + 0.05 * prior, 8: 0.1 * prior}
        assert {group.cards: group.part for group in forecast.groups} == pytest.approx(expected)

    def test_equal_pods_in_a_row_are_less_evidence_than_as_many_that_differ(self) -> None:
        world = cluster().add(node("n1").gpus(4, model="T4"), node("n2").gpus(4, model="A100"))
        one, other = requests(1, percent=100, cores=100)[0], requests(1, percent=30, cores=30)[0]
        left = [
            self.learn(world, pods).forecast(world.ledger.arrays).choosy["T4"]
            for pods in ([one] * FIRST + [other] * FIRST, [one, other] * FIRST)
        ]
        assert left == pytest.approx(
            [0.05 * PRIOR_WEIGHT / (PRIOR_WEIGHT + pods) for pods in (2 * sqrt(FIRST), 2 * FIRST)]
        )

    def test_rows_of_equal_pods_make_the_demand_vary_by_the_cards_of_a_row(self) -> None:
        world = cluster().add(node().gpus(8))
        one, four, other = (
            requests(1, gpu=gpu, percent=part, cores=part)[0] for gpu, part in ((1, 100), (4, 100), (1, 30))
        )
        # A row of n pods with c cards varies by (n * c)**2 instead of n * c**2.
        assert self.learn(world, [one] * FIRST).forecast(world.ledger.arrays).burst == FIRST - 1
        assert self.learn(world, [four] * FIRST).forecast(world.ledger.arrays).burst == 4 * (FIRST - 1)
        assert self.learn(world, [one, other] * FIRST).forecast(world.ledger.arrays).burst == 0.0
        short_rows = self.learn(world, [one, one, other, other] * FIRST)
        assert short_rows.forecast(world.ledger.arrays).burst == pytest.approx((2 + 2 * 0.3**2) / (2 + 2 * 0.3))

    def test_rows_of_equal_pods_fade_with_everything_else(self) -> None:
        world = cluster().add(node().gpus(8))
        one, other = requests(1, percent=100, cores=100)[0], requests(1, percent=30, cores=30)[0]
        history = self.learn(world, [*[one] * FIRST, *[one, other] * FADE_AT])
        assert 0.0 < history.forecast(world.ledger.arrays).burst < 0.1

    def test_pods_that_hardly_share_a_card_are_counted_by_their_demand(self) -> None:
        world = cluster().add(node().gpus(8))
        pods = [*requests(FIRST // 2, percent=51, cores=51), *requests(FIRST // 2, percent=49, cores=49)]
        assert self.learn(world, pods).forecast(world.ledger.arrays).whole_part == pytest.approx(0.51)

    def test_pods_that_take_one_model_only_put_pressure_on_it(self) -> None:
        world = cluster().add(node("n1").gpus(1, model="T4"), node("n2").gpus(3, model="A100"))
        picky = [
            gpu_pod(f"p{i}", percent=100, cores=100).annotate(("nvidia.com/use-gputype", "T4")).request()
            for i in range(FIRST // 2)
        ]
        others = requests(FIRST // 2, percent=100, cores=100)
        pods = [pod for pair in zip(picky, others, strict=True) for pod in pair]
        forecast = self.learn(world, pods).forecast(world.ledger.arrays)
        prior = PRIOR_WEIGHT / (PRIOR_WEIGHT + FIRST)
        wanted = 0.05 * prior + 0.5 * (1.0 - prior)
        assert forecast.choosy == pytest.approx({"T4": wanted, "A100": 0.05 * prior})
        assert forecast.pressure["T4"] == pytest.approx(wanted * 4 / 1, rel=NEAR)

    def test_pods_that_no_model_serves_need_none(self) -> None:
        world = cluster().add(node("n1").gpus(8, model="A100"), node("n2").gpus(4, model="T4"))
        lost = gpu_pod("p", gpu=8, percent=100, cores=100).annotate(("nvidia.com/use-gputype", "H100")).request()
        choosy = self.learn(world, [lost] * FIRST).forecast(world.ledger.arrays).choosy
        prior = PRIOR_WEIGHT / (PRIOR_WEIGHT + sqrt(FIRST))
        assert choosy == pytest.approx({"A100": 0.05 * prior, "T4": 0.05 * prior})

    def test_pods_with_more_cards_than_the_nodes_of_a_model_have_need_the_other_models(self) -> None:
        world = cluster().add(
            *(node(f"n{i}").gpus(8 if i < 2 else 4, model="A100" if i < 2 else "T4") for i in range(4))
        )
        pods = [
            *requests(FIRST // 2, gpu=8, percent=100, cores=100),
            *requests(FIRST // 2, gpu=4, percent=100, cores=100),
        ]
        choosy = self.learn(world, pods).forecast(world.ledger.arrays).choosy
        prior = PRIOR_WEIGHT / (PRIOR_WEIGHT + 2 * sqrt(FIRST // 2))
        assert choosy == pytest.approx({"A100": 0.05 * prior + 2 / 3 * (1.0 - prior), "T4": 0.05 * prior})
        world.ledger.forget_node("n2")
        world.ledger.forget_node("n3")
        assert self.learn(world, pods).forecast(world.ledger.arrays).choosy == {}, "no other model is left"

    def test_hosts_are_grouped_by_the_cpu_that_goes_with_a_card(self) -> None:
        world = cluster().add(node().gpus(1))
        pods = [
            replace(pod, host=HostRequest(cpu, 8_000))
            for pod, cpu in zip(requests(FIRST, percent=50, cores=50), [1_000, 9_000] * (FIRST // 2), strict=True)
        ]
        loads = self.learn(world, pods).forecast(world.ledger.arrays).loads
        assert [load.cpu for load in loads] == [2_000.0, 18_000.0]
        assert sum(load.weight for load in loads) == pytest.approx(1.0)

    def test_the_forecast_stays_the_same_object_between_renewals(self) -> None:
        world = cluster().add(node().gpus(1))
        history = self.learn(world, requests(FIRST, percent=30, cores=30))
        first = history.forecast(world.ledger.arrays)
        self.learn(world, requests(FIRST - 1, percent=60, cores=60), history)
        assert history.forecast(world.ledger.arrays) is first
        self.learn(world, requests(1, percent=60, cores=60), history)
        assert history.forecast(world.ledger.arrays) is not first

    @pytest.mark.no_cover
    def test_what_is_not_asked_for_any_more_fades(self) -> None:
        world = cluster().add(node().gpus(1))
        old, new = requests(1, percent=30, cores=30), requests(1, percent=60, cores=60)
        history = self.learn(world, old * FADE_AT)
        self.learn(world, new * (3 * FADE_AT), history)
        weights = {part.memory: part.weight for part in history.forecast(world.ledger.arrays).slices}
        assert weights[60] > 4 * weights[30]

    def test_pods_without_devices_teach_nothing(self) -> None:
        world = cluster().add(node().gpus(1))
        plain = PodRequest("u", "default", "p", ())
        assert self.learn(world, [plain] * (2 * FIRST)).forecast(world.ledger.arrays).slices == PRIOR.slices


class TestScarcity:
    """What is scarce depends on what is left."""

    def test_a_model_becomes_more_precious_as_it_is_used_up(self) -> None:
        world = cluster().add(node("a").gpus(4, model="T4"), node("b").gpus(4, model="A100"))
        expected = DemandForecast(choosy={"T4": 0.1, "A100": 0.1})
        arrays = world.ledger.arrays
        assert against_what_is_left(expected, arrays, current=None).pressure == pytest.approx(
            {"T4": 0.8 / 4, "A100": 0.8 / 4}, rel=NEAR
        )
        for number in range(3):
            world.place(gpu_pod(f"p{number}", percent=100, cores=100), ["a"])
        pressure = against_what_is_left(expected, arrays, current=None).pressure
        assert pressure == pytest.approx({"T4": 0.5 / 1, "A100": 0.5 / 4}, rel=NEAR)
        world.place(gpu_pod("last", percent=100, cores=100), ["a"])
        # Four cards are free, none of them a T4: less than half of one is wanted, and that is no more than one card.
        assert against_what_is_left(expected, arrays, current=None).pressure["T4"] == pytest.approx(0.4, rel=NEAR)
        much = DemandForecast(choosy={"T4": 1.0, "A100": 0.0})
        assert against_what_is_left(much, arrays, current=None).pressure == {"T4": MOST, "A100": 0.0}

    def test_where_equal_pods_come_in_rows_a_model_has_an_allowance_unless_it_comes_back(self) -> None:
        world = cluster().add(node("a").gpus(4, model="T4"), node("b").gpus(4, model="A100"))
        expected = DemandForecast(choosy={"T4": 0.1, "A100": 0.0}, burst=3.2)
        arrays = world.ledger.arrays
        # 0.8 of the eight free cards will be asked for, and the standard deviation is the root of 0.8 * 3.2.
        assert against_what_is_left(expected, arrays, current=None).pressure == pytest.approx(
            {"T4": (0.8 + 1.6) / 4, "A100": 0.0}, rel=NEAR
        )
        turned_over = against_what_is_left(expected, arrays, ended=1, current=None)
        assert turned_over.pressure == pytest.approx({"T4": 0.8 / 4, "A100": 0.0}, rel=NEAR)

    def test_turnover_is_what_pods_gave_back_against_what_is_in_use(self) -> None:
        world = cluster().add(node("a").gpus(8))
        pods = [world.start(gpu_pod(f"p{number}", percent=100, cores=100)) for number in range(8)]

        def turnover(*ended: PodRequest) -> float:
            history = DemandHistory()
            for pod in ended:
                history.note_ended(pod)
            return history.forecast(world.ledger.arrays).turnover

        assert turnover() == 0.0
        assert turnover(*requests(1)) == 0.5, "a quarter of the cards in use is enough"
        assert turnover(*requests(1, gpu=8)) == 1.0
        world.observe(pods[0].ended())
        assert turnover() == 0.5, "in steps of an eighth"
        world.observe(pods[1].ended("Failed"), pods[1].ended("Failed"))
        assert turnover() == 1.0

    def test_a_reservation_that_is_given_up_is_no_turnover(self) -> None:
        world = cluster().add(node("a").gpus(8))
        for number in range(8):
            world.place(gpu_pod(f"p{number}", percent=100, cores=100))
            assert world.ledger.release(gpu_pod(f"p{number}").request().uid)
        assert DemandHistory().forecast(world.ledger.arrays).turnover == 0.0

    def test_a_group_needs_whole_cards_and_a_host_and_a_model_that_serve_it(self) -> None:
        world = cluster().add(node("a").gpus(4, model="T4"), node("b").gpus(4, model="A100"))
        world.ledger.arrays.set_host_free("a", cpu=8_000, memory=1_000)
        world.ledger.arrays.set_host_free("b", cpu=32_000, memory=1_000)
        for group, places in (
            (DemandGroup(2, 0.5, 0.0), 4),
            (DemandGroup(2, 0.5, 0.0, cpu=8_000), 3),
            (DemandGroup(2, 0.5, 0.0, cpu=8_000, memory=600), 2),
            (DemandGroup(2, 0.5, 0.0, models=("A100",)), 2),
            (DemandGroup(8, 0.5, 0.0), 0),
        ):
            needs = against_what_is_left(DemandForecast(groups=(group,)), world.ledger.arrays, current=None).groups
            wanted = 0.5 * 8 / (group.cards * places) if places else MOST
            assert needs[0].need == pytest.approx(min(wanted, MOST), rel=NEAR)

    def test_unused_cards_are_put_against_the_pods_that_need_one(self) -> None:
        world = cluster().add(node("a").gpus(4, memory=100))
        expected = DemandForecast(whole_part=0.6)
        arrays = world.ledger.arrays
        assert against_what_is_left(expected, arrays, current=None).whole_need == 1.0, "there are enough"
        for number in range(3):
            world.place(gpu_pod(f"p{number}", mem=20, cores=20).policy(device="spread"))
        # One card is unused, and parts of 0.8 are free on three others.
        assert against_what_is_left(expected, arrays, current=None).whole_need == pytest.approx(0.6 * 3.4, rel=NEAR)

    def test_cards_that_no_host_can_serve_are_not_left(self) -> None:
        world = cluster().add(node("a").gpus(4, model="T4"), node("b").gpus(4, model="A100"))
        world.ledger.arrays.set_host_free("a", cpu=8_000, memory=400_000)
        world.ledger.arrays.set_host_free("b", cpu=64_000, memory=400_000)
        loads = (HostLoad(0.5, 4_000.0, 1_000.0), HostLoad(0.5, 8_000.0, 1_000.0))
        expected = DemandForecast(choosy={"T4": 0.1, "A100": 0.1}, loads=loads)
        # The first node serves two cards of the one half of the demand, and one of the other.
        assert against_what_is_left(expected, world.ledger.arrays, current=None).pressure == pytest.approx(
            {"T4": 0.55 / 1.5, "A100": 0.55 / 4}, rel=NEAR
        )
        assert against_what_is_left(expected, world.ledger.arrays, current=None).host_need == pytest.approx(
            8 / 5.5, rel=NEAR
        )
        world.ledger.arrays.forget_host("a")
        assert against_what_is_left(expected, world.ledger.arrays, current=None).pressure == pytest.approx(
            {"T4": 0.2, "A100": 0.2}, rel=NEAR
        )
        assert against_what_is_left(expected, world.ledger.arrays, current=None).host_need == 1.0

    def test_little_changes_leave_the_forecast_the_same_object(self) -> None:
        world = cluster().add(node("a").gpus(8, model="T4"), node("b").gpus(8, model="A100"))
        expected = replace(PRIOR, choosy={"T4": 0.1})
        first = against_what_is_left(expected, world.ledger.arrays, current=None)
        assert against_what_is_left(expected, world.ledger.arrays, current=first) is first
        assert against_what_is_left(replace(expected, slices=()), world.ledger.arrays, current=first) is not first
        for number in range(7):
            world.place(gpu_pod(f"p{number}", percent=100, cores=100), ["a"])
        assert against_what_is_left(expected, world.ledger.arrays, current=first) is not first

    def test_the_history_looks_at_what_is_left_again_when_enough_was_asked_for(self) -> None:
        world = cluster().add(node("a").gpus(8, model="T4"), node("b").gpus(8, model="A100"))
        history, arrays = DemandHistory(), world.ledger.arrays
        first = history.forecast(arrays)
        for number in range(7):
            world.place(gpu_pod(f"p{number}", percent=100, cores=100), ["a"])
        assert history.forecast(arrays) is first, "nothing was asked for"
        history.observe(gpu_pod("next", percent=100, cores=100).request(), arrays, world.ledger.rules)
        assert history.forecast(arrays).pressure["T4"] > 1.5 * first.pressure["T4"]


def test_pods_that_take_any_model_use_all_models_evenly_before_much_is_known() -> None:
    """The model in least demand so far must not be used up first: pods that need it may still come."""
    world = cluster().add(*(node(f"n{i}").gpus(2, model="T4" if i < 4 else "A100") for i in range(8)))
    history = DemandHistory()
    for number in range(8):
        pod = gpu_pod(f"p{number}", percent=100, cores=100).policy(**AHEAD).request()
        history.observe(pod, world.ledger.arrays, world.ledger.rules)
        asked = replace(pod, forecast=history.forecast(world.ledger.arrays))
        answer = world.selector.select(asked, world.ledger.node_names())
        world.ledger.reserve(asked, answer.placement, deadline=1.0)  # type: ignore[union-attr]
    used = [sum(slots for slots, _, _ in world.cards(f"n{i}").values()) for i in range(8)]
    assert (sum(used[:4]), sum(used[4:])) == (4, 4)


def test_hosts_are_told_before_and_after_a_node_registers() -> None:
    world = cluster()
    world.ledger.arrays.set_host_free("n1", cpu=4_000, memory=100)
    world.add(node("n1").gpus(1), node("n2").gpus(1))
    arrays = world.ledger.arrays
    rows = arrays.rows(["n1", "n2"])
    assert arrays.free_cpu[rows].tolist() == [4_000, -1]
    arrays.set_host_free("n2", cpu=5, memory=6)
    assert arrays.free_memory[rows].tolist() == [100, 6]
    world.ledger.forget_node("n1")
    world.add(node("n1").gpus(1))
    assert arrays.free_cpu[arrays.rows(["n1"])].tolist() == [4_000], "its cards were gone, the host was not"
    arrays.forget_host("n1")
    assert arrays.free_cpu[arrays.rows(["n1"])].tolist() == [-1]
