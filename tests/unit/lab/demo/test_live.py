"""Cards as bars: nothing is lost, nothing is longer than its card, and a pod keeps its colour."""

from __future__ import annotations

import pytest
from rich.console import Console

from tessera_lab.demo.live import MAX_WAITING, Palette, draw_bar, draw_cluster
from tessera_lab.demo.screens import CardView, ClusterView, SliceView, WaitingView, short_model


def card(*slices: SliceView, memory: int = 1000, node: str = "n", index: int = 0, state: str = "") -> CardView:
    used = sum(one.memory_mib for one in slices)
    return CardView(node, index, "L4", "hami-core", memory, used, 100, 0, state, slices)


def lines(view: ClusterView, width: int = 100) -> list[str]:
    console = Console(width=width, no_color=True, legacy_windows=False)
    with console.capture() as captured:
        console.print(draw_cluster(view, width=width, palette=Palette()))
    return captured.get().splitlines()


def test_a_pods_part_of_the_bar_is_its_part_of_the_memory() -> None:
    text = draw_bar(card(SliceView("chat", 250, 0)), 40, Palette())
    assert text.plain == " chat     " + "·" * 30


def test_the_smallest_slice_still_shows() -> None:
    assert draw_bar(card(SliceView("a", 1, 0)), 40, Palette()).plain == " " + "·" * 39


@pytest.mark.parametrize("sizes", [(1000,), (500, 500), (334, 333, 333), (998, 1, 1), (0, 0, 1000), (1200,)])
def test_a_bar_is_never_longer_than_its_card(sizes: tuple[int, ...]) -> None:
    slices = [SliceView(f"p{number}", size, 0) for number, size in enumerate(sizes)]
    assert draw_bar(card(*slices), 40, Palette()).cell_len == 40


def test_a_card_that_reports_no_memory_has_an_empty_bar() -> None:
    assert draw_bar(card(SliceView("a", 0, 100), memory=0), 40, Palette()).plain == "·" * 40


def test_a_pod_keeps_its_colour_when_others_go() -> None:
    palette = Palette()
    both = [palette.of("a"), palette.of("b")]
    assert palette.of("b") == both[1] != both[0]


def test_a_node_is_named_once() -> None:
    view = ClusterView((card(index=0), card(index=1), card(node="other")), ())
    assert [line.split()[0] for line in lines(view)[1:]] == ["n", "1", "other"]


@pytest.mark.parametrize("width", [80, 100, 160])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    whole = card(SliceView("a-pod-with-a-long-name", 900, 0), memory=143771)
    view = ClusterView((whole,), (WaitingView("w", "because " * 40),))
    assert all(len(line) <= width for line in lines(view, width))
    assert len(lines(view, width)) == 3


def test_pods_that_wait_are_named_up_to_a_number() -> None:
    waiting = tuple(WaitingView(f"p{number}", "") for number in range(MAX_WAITING + 2))
    assert lines(ClusterView((card(),), waiting))[-1].strip() == "and 2 more"


def test_a_card_that_takes_no_pods_says_why() -> None:
    assert lines(ClusterView((card(state="unhealthy"),), ()))[-1].endswith("unhealthy")


@pytest.mark.parametrize(
    ("model", "short"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100 80GB"),
        ("NVIDIA H100 80GB HBM3", "H100 80GB"),
        ("NVIDIA L4", "L4"),
        ("Ascend910B3", "Ascend910B3"),
        ("", ""),
    ],
)
def test_models_are_shortened_to_what_tells_them_apart(model: str, short: str) -> None:
    assert short_model(model) == short
