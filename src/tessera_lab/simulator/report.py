"""Results of many runs: means and standard deviations as plain data, a table, and a page with plots, without a library.

A plot is an SVG document with axes, a legend and a title for screen readers; a grid has several of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from statistics import fmean, stdev
from typing import Any

from tessera_lab.simulator.defragmentation import FreedCards
from tessera_lab.simulator.runs import SimulationRun
from tessera_lab.simulator.simulation import STEPS, ChurnResult, SaturationResult
from tessera_lab.simulator.traces import Trace

DIGITS = 2

STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .75rem; text-align: right; border-bottom: 1px solid #8884; white-space: nowrap; }
th:nth-child(-n+2), td:nth-child(-n+2) { text-align: left; }
svg { width: 100%; height: auto; border-radius: .5rem; }
"""

Grouped = dict[str, dict[str, list[Any]]]


@dataclass(frozen=True, slots=True)
class SimulationReport:
    figures: dict[str, Any]
    heads: list[str]
    rows: list[tuple[str, ...]]
    plot: Callable[[str], str]
    """an SVG document for a trace"""


def _grouped(runs: Iterable[tuple[SimulationRun, Any]], traces: Sequence[Trace]) -> Grouped:
    """Results by policy and trace."""
    found: Grouped = {}
    for job, result in runs:
        found.setdefault(job.policy, {}).setdefault(traces[job.trace].name, []).append(result)
    return found


def _figure(values: Sequence[float]) -> dict[str, float]:
    spread = stdev(values) if len(values) > 1 else 0.0
    return {"allocation_percent": round(fmean(values), DIGITS), "sd": round(spread, DIGITS)}


def saturation_report(
    runs: Sequence[tuple[SimulationRun, SaturationResult]], traces: Sequence[Trace], arrivals: Sequence[float]
) -> SimulationReport:
    """`{policy: {trace: {arrival: {allocation_percent, sd}}}}`; where pods moved, also `moves` and `bound_percent`."""
    figures: dict[str, Any] = {
        policy: {
            trace: {
                **{str(arrival): _figure([result.at(arrival) for result in results]) for arrival in arrivals},
                **_moves([result.moves for result in results]),
                **_bound([result.bound for result in results if result.moves]),
            }
            for trace, results in by_trace.items()
        }
        for policy, by_trace in _grouped(runs, traces).items()
    }

    def plot(trace: str) -> str:
        means = _curves(runs, traces)[trace]
        return line_plot(
            {name: [(float(x), y) for x, y in enumerate(points)] for name, points in means.items()},
            title=f"{trace}: allocated cards by requested cards",
            x_label="requested cards, % of capacity",
            y_label="allocated cards, %",
            y_from=80.0,
        )

    heads = ["trace", "policy", *(f"allocated at {arrival:.0%}" for arrival in arrivals)]
    rows = [
        (trace, policy, *(f"{f[str(a)]['allocation_percent']:.2f} ± {f[str(a)]['sd']:.2f}" for a in arrivals))
        for policy, by_trace in figures.items()
        for trace, f in by_trace.items()
    ]
    return SimulationReport(figures, heads, rows, plot)


def _moves(counts: Sequence[int]) -> dict[str, float]:
    return {"moves": round(fmean(counts), DIGITS)} if any(counts) else {}


def _bound(bounds: Sequence[float]) -> dict[str, float]:
    return {"bound_percent": round(fmean(bounds), DIGITS)} if bounds else {}


def _curves(
    runs: Iterable[tuple[SimulationRun, SaturationResult]], traces: Sequence[Trace]
) -> dict[str, dict[str, list[float]]]:
    """`{trace: {policy: mean allocation at 0, 1, 2 ... per cent}}`."""
    found: dict[str, dict[str, list[float]]] = {}
    for policy, by_trace in _grouped(runs, traces).items():
        for trace, results in by_trace.items():
            length = min(len(result.curve) for result in results)
            means = [fmean(result.at(step / STEPS) for result in results) for step in range(length)]
            found.setdefault(trace, {})[policy] = means
    return found


def churn_report(runs: Iterable[tuple[SimulationRun, ChurnResult]], traces: Sequence[Trace]) -> SimulationReport:
    """`{policy: {trace: {allocation_percent, wait_seconds, waited_percent, backlog}}}`."""
    figures = {
        policy: {trace: _churn_figures(results) for trace, results in by_trace.items()}
        for policy, by_trace in _grouped(runs, traces).items()
    }

    def plot(trace: str) -> str:
        return line_plot(
            {
                name: [(i / 2.0, y) for i, y in enumerate(by_trace[trace]["allocation_over_time"])]
                for name, by_trace in figures.items()
            },
            title=f"{trace}: allocated cards over time",
            x_label="time, % of the span of arrivals",
            y_label="allocated cards, %",
        )

    heads = ["trace", "policy", "allocated %", "wait s", "p50", "p95", "waited %", "backlog"]
    rows = [
        (
            trace,
            policy,
            f"{f['allocation_percent']:.2f}",
            *(f"{f['wait_seconds'][key]:.0f}" for key in ("mean", "p50", "p95")),
            f"{f['waited_percent']:.1f}",
            f"{f['backlog']:.0f}",
        )
        for policy, by_trace in figures.items()
        for trace, f in by_trace.items()
    ]
    return SimulationReport(figures, heads, rows, plot)


def _churn_figures(results: Sequence[ChurnResult]) -> dict[str, Any]:
    def mean(values: Iterable[float]) -> float:
        return round(fmean(values), DIGITS)

    by_cards: dict[str, list[float]] = {}
    for result in results:
        for cards, wait in result.wait_by_cards:
            by_cards.setdefault(str(cards), []).append(wait)
    return {
        "allocation_percent": mean(r.allocation for r in results),
        "wait_seconds": {
            "mean": mean(r.wait_mean for r in results),
            "p50": mean(r.wait_p50 for r in results),
            "p95": mean(r.wait_p95 for r in results),
        },
        "mean_wait_seconds_by_cards": {cards: mean(waits) for cards, waits in by_cards.items()},
        "waited_percent": mean(r.waited for r in results),
        "backlog": mean(r.backlog for r in results),
        **_moves([r.moves for r in results]),
        **_freed([r.freed for r in results]),
        "allocation_over_time": [mean(points) for points in zip(*(r.over_time for r in results), strict=False)],
    }


def _freed(plans: Sequence[FreedCards]) -> dict[str, Any]:
    """Of plans for whole cards, at some moments: what they free, and what placing all parts anew would."""
    cards, moves = sum(each.cards for each in plans), sum(each.moves for each in plans)
    if not cards:
        return {}
    return {
        "whole_cards_freed": cards,
        "whole_cards_freed_by_repacking": sum(each.repacked for each in plans),
        "whole_cards_bound": sum(each.possible for each in plans),
        "moves_per_freed_card": round(moves / cards, DIGITS),
    }


def results_page(*, heads: Sequence[str], rows: Iterable[Sequence[str]], pictures: Sequence[tuple[str, str]]) -> str:
    """One self-contained HTML file without scripts; `pictures` are headings with SVG documents."""
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


WIDTH, HEIGHT = 760, 420
LEFT, RIGHT, TOP, BOTTOM = 56, 190, 36, 46
COLOURS = ("#0b6e4f", "#c1440e", "#2a5db0", "#8a5a00", "#7a3e9d", "#5b6770", "#b0246a", "#3f8f9c")
"""readable on white and on dark grey"""


def line_plot(
    series: Mapping[str, Sequence[tuple[float, float]]], *, title: str, x_label: str, y_label: str, y_from: float = 0.0
) -> str:
    """An SVG document. Points below `y_from` are left out."""
    xs = [x for points in series.values() for x, y in points if y >= y_from] or [0.0, 1.0]
    ys = [y for points in series.values() for _, y in points if y >= y_from] or [0.0, 1.0]
    low_x, high_x = min(xs), max(max(xs), min(xs) + 1.0)
    high_y = max(*ys, y_from + 1.0)

    def across(x: float) -> float:
        return round(LEFT + (x - low_x) / (high_x - low_x) * (WIDTH - LEFT - RIGHT), 1)

    def up(y: float) -> float:
        return round(HEIGHT - BOTTOM - (y - y_from) / (high_y - y_from) * (HEIGHT - TOP - BOTTOM), 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        f'font-size="12" role="img" aria-label="{escape(title, quote=True)}">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="20" font-size="14">{escape(title)}</text>',
    ]
    for tick in _ticks(y_from, high_y):
        parts.append(f'<path d="M{LEFT} {up(tick)}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{up(tick) + 4}" text-anchor="end">{tick:g}</text>')
    for tick in _ticks(low_x, high_x):
        parts.append(f'<text x="{across(tick)}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{tick:g}</text>')
    for place, (name, points) in enumerate(series.items()):
        colour = COLOURS[place % len(COLOURS)]
        path = " ".join(f"{across(x)},{up(y)}" for x, y in points if y >= y_from)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
        legend = TOP + 16 * place + 8
        parts.append(f'<path d="M{WIDTH - RIGHT + 12} {legend}h18" stroke="{colour}" stroke-width="3"/>')
        parts.append(f'<text x="{WIDTH - RIGHT + 36}" y="{legend + 4}">{escape(name)}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">{escape(x_label)}</text>')
    turned = f'transform="rotate(-90 14 {HEIGHT / 2})"'
    parts.append(f'<text x="14" y="{HEIGHT / 2}" text-anchor="middle" {turned}>{escape(y_label)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def plot_grid(plots: Sequence[str], *, title: str, columns: int = 2) -> str:
    """Several plots beside and below each other as one SVG document."""
    rows = -(-len(plots) // columns)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {columns * WIDTH} {rows * HEIGHT}" role="img" '
        f'aria-label="{escape(title, quote=True)}">'
    ]
    for place, plot in enumerate(plots):
        at = f'x="{place % columns * WIDTH}" y="{place // columns * HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
        parts.append(plot.replace("<svg ", f"<svg {at} ", 1).rstrip())
    return "\n".join([*parts, "</svg>", ""])


def _ticks(low: float, high: float) -> list[float]:
    """Round values, five to ten of them."""
    step = next(s for s in _steps() if (high - low) / s <= 10)
    first = -(-low // step) * step
    return [round(first + step * i, 6) for i in range(int((high - first) / step + 1e-9) + 1)]


def _steps() -> list[float]:
    return [base * 10.0**power for power in range(-3, 9) for base in (1.0, 2.0, 5.0)]
