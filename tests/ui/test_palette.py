"""The colours of slices can be told apart by everyone, and seen on their background, in both themes."""

from __future__ import annotations

import re
from itertools import combinations

import numpy as np
import pytest

from tests.ui.scripted_page import STATIC

Colour = tuple[float, float, float]
"""linear red, green and blue, from 0 to 1"""

LEAST_CONTRAST = 3.0
"""of marks to their background, as WCAG 2.2 (1.4.11) has it"""
LEAST_DISTANCE = 10.0
"""in CIELAB, as delta E 1976; 2.3 is what a trained eye can tell apart in large patches side by side"""

# Of linear RGB: vision without one kind of cones (Machado, Oliveira and Fernandes 2009, severity 1.0).
VISION = {
    "usual": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
WHITE = np.array([0.9505, 1.0, 1.089])


def _linear(text: str) -> Colour:
    parts = [int(text[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return red, green, blue


def _lab(colour: Colour, vision: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    x, y, z = TO_XYZ @ np.clip(VISION[vision] @ np.array(colour), 0, 1) / WHITE
    f = [value ** (1 / 3) if value > 0.008856 else 7.787 * value + 16 / 116 for value in (x, y, z)]
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def _luminance(colour: Colour) -> float:
    return float(TO_XYZ[1] @ np.array(colour))


def _contrast(one: str, other: str) -> float:
    low, high = sorted((_luminance(_linear(one)), _luminance(_linear(other))))
    return (high + 0.05) / (low + 0.05)


def _palette(theme: str) -> list[str]:
    found = re.search(rf"export const {theme.upper()} = \[(.*?)\]", (STATIC / "palette.js").read_text())
    assert found is not None
    return re.findall(r"#[0-9a-f]{6}", found[1])


def _token(theme: str, name: str) -> str:
    style = (STATIC / "style.css").read_text()
    block = style.split(":root {")[1] if theme == "light" else style.split(':root[data-theme="dark"] {')[1]
    found = re.search(rf"--{name}: (#[0-9a-f]{{6}})", block)
    assert found is not None
    return found[1]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_eight_colours_and_the_rest_are_seen_on_the_surface_of_a_node(theme: str) -> None:
    assert len(_palette(theme)) == 8
    for colour in (*_palette(theme), _token(theme, "rest")):
        assert _contrast(colour, _token(theme, "surface")) >= LEAST_CONTRAST, colour


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("vision", VISION)
def test_no_two_colours_look_alike(theme: str, vision: str) -> None:
    for one, other in combinations(_palette(theme), 2):
        distance = np.linalg.norm(_lab(_linear(one), vision) - _lab(_linear(other), vision))
        assert distance >= LEAST_DISTANCE, f"{one} and {other} with {vision}: {distance:.1f}"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_no_colour_of_a_slice_looks_like_unhealthy(theme: str) -> None:
    for colour in _palette(theme):
        distance = np.linalg.norm(_lab(_linear(colour), "usual") - _lab(_linear(_token(theme, "bad")), "usual"))
        assert distance >= 2 * LEAST_DISTANCE, colour


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", ["text", "muted", "accent", "good", "warn", "bad"])
def test_text_can_be_read_on_every_surface(theme: str, name: str) -> None:
    for surface in ("page", "surface", "raised"):
        assert _contrast(_token(theme, name), _token(theme, surface)) >= 4.5, surface
