from __future__ import annotations

from xml.etree import ElementTree

from tessera.lab.simulator.plot import line_plot


def test_a_plot_is_well_formed_and_names_every_line() -> None:
    text = line_plot(
        {"<b>best": [(0.0, 80.0), (130.0, 96.0)], "other": [(0.0, 10.0)]},
        title="a & b", x_label="x", y_label="y", y_from=50.0,
    )  # fmt: skip
    words = [element.text for element in ElementTree.fromstring(text).iter() if element.text]
    assert {"<b>best", "other", "a & b", "x", "y"} <= set(words)


def test_nothing_to_draw_is_an_empty_plot() -> None:
    assert ElementTree.fromstring(line_plot({}, title="", x_label="", y_label="")).tag.endswith("svg")
