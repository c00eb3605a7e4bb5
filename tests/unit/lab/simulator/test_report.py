from __future__ import annotations

from xml.etree import ElementTree

from tessera_lab.simulator.report import HEIGHT, WIDTH, line_plot, plot_grid, results_page


def test_the_page_is_whole_and_needs_nothing_else() -> None:
    plot = line_plot({"a": [(0.0, 1.0), (1.0, 2.0)]}, title="<t>", x_label="x", y_label="y")
    page = results_page(heads=["trace", "policy"], rows=[("one & two", "best-fit")], pictures=[("<first>", plot)])
    body = page.partition("<body>")[2].partition("</body>")[0]
    tree = ElementTree.fromstring(f"<body>{body}</body>")
    assert [cell.text for cell in tree.iter("th")] == ["trace", "policy", "one & two"]
    assert [head.text for head in tree.iter("h2")] == ["<first>"]
    assert len([each for each in tree.iter() if each.tag.endswith("polyline")]) == 1
    assert not any(word in page for word in ("<script", "<link", "src=", "@import"))


def test_a_plot_is_well_formed_and_names_every_line() -> None:
    text = line_plot(
        {"<b>best": [(0.0, 80.0), (130.0, 96.0)], "other": [(0.0, 10.0)]},
        title="a & b", x_label="x", y_label="y", y_from=50.0,
    )  # fmt: skip
    words = [element.text for element in ElementTree.fromstring(text).iter() if element.text]
    assert {"<b>best", "other", "a & b", "x", "y"} <= set(words)


def test_nothing_to_draw_is_an_empty_plot() -> None:
    assert ElementTree.fromstring(line_plot({}, title="", x_label="", y_label="")).tag.endswith("svg")


def test_a_grid_puts_plots_beside_and_below_each_other() -> None:
    plots = [line_plot({}, title=str(number), x_label="", y_label="") for number in range(3)]
    tree = ElementTree.fromstring(plot_grid(plots, title="all", columns=2))
    inner = [(each.get("x"), each.get("y")) for each in tree]
    assert inner == [("0", "0"), (str(WIDTH), "0"), ("0", str(HEIGHT))]
    assert tree.get("viewBox") == f"0 0 {2 * WIDTH} {2 * HEIGHT}"
