"""A page with the results of simulations: one self-contained HTML file with a table and pictures, without scripts.

Pictures are SVG documents with a heading each; whatever else simulations draw joins them in that list.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .75rem; text-align: right; border-bottom: 1px solid #8884; white-space: nowrap; }
th:nth-child(-n+2), td:nth-child(-n+2) { text-align: left; }
svg { width: 100%; height: auto; border-radius: .5rem; }
"""


def results_page(*, heads: Sequence[str], rows: Iterable[Sequence[str]], pictures: Sequence[tuple[str, str]]) -> str:
    """The page; `pictures` are headings with SVG documents."""
    cells = "\n".join(
        "<tr>" + "".join(f'<th scope="row">{escape(row[0])}</th>' if i == 0 else f"<td>{escape(cell)}</td>"
                         for i, cell in enumerate(row)) + "</tr>"
        for row in rows
    )  # fmt: skip
    drawn = "\n".join(f"<h2>{escape(heading)}</h2>\n{picture}" for heading, picture in pictures)
    columns = "".join(f'<th scope="col">{escape(head)}</th>' for head in heads)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Simulated allocation</title>
<style>{STYLE}</style>
</head>
<body>
<h1>Simulated allocation</h1>
<div class="wide" tabindex="0" role="region" aria-label="Results">
<table>
<thead><tr>{columns}</tr></thead>
<tbody>
{cells}
</tbody>
</table>
</div>
{drawn}
</body>
</html>
"""
