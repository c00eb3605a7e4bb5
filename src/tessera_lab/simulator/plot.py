"""Line plots as SVG, without a library: a panel with axes, a legend and a title for screen readers, or several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

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
