from __future__ import annotations

from xml.etree import ElementTree

from tessera_lab.simulator.plot import line_plot
from tessera_lab.simulator.report import results_page


def test_the_page_is_whole_and_needs_nothing_else() -> None:
    plot = line_plot({"a": [(0.0, 1.0), (1.0, 2.0)]}, title="<t>", x_label="x", y_label="y")
    page = results_page(heads=["trace", "policy"], rows=[("one & two", "best-fit")], pictures=[("<first>", plot)])
    body = page.partition("<body>")[2].partition("</body>")[0]
    tree = ElementTree.fromstring(f"<body>{body}</body>")
    assert [cell.text for cell in tree.iter("th")] == ["trace", "policy", "one & two"]
    assert [head.text for head in tree.iter("h2")] == ["<first>"]
    assert len([each for each in tree.iter() if each.tag.endswith("polyline")]) == 1
    assert not any(word in page for word in ("<script", "<link", "src=", "@import"))
