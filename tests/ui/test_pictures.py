"""The pictures of the docs, taken as a reader would see them. `make ui PICTURES=docs/images` writes them.

Without PICTURES the pictures are taken all the same, and thrown away: a picture that cannot be taken fails here.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.ui.browser import PHONE
from tests.ui.conftest import Readers
from tests.ui.described_cluster import small_cluster
from tests.ui.scripted_page import ScriptedPage

WANTED = os.environ.get("PICTURES", "")
MAX_BYTES = 300_000
# Light: GitHub's own page is light for most readers, and on a dark one a light picture is still read easily.
PICTURES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "dashboard": (
        "node=h100-1&card=GPU-h100-1-5",
        "#details .more-lines",
        {"viewport": {"width": 1440, "height": 760}},
    ),
    "dashboard-waiting": ("view=waiting", ".waiting-pod", {"viewport": {"width": 1440, "height": 480}}),
    "dashboard-time": ("view=time", ".record", {"viewport": {"width": 1440, "height": 700}}),
    "dashboard-totals": (
        "view=totals",
        ".figure",
        {"viewport": {"width": 1440, "height": 640}, "color_scheme": "dark"},
    ),
    "dashboard-phone": ("", ".map", {"viewport": PHONE, "is_mobile": True}),
}


@pytest.mark.parametrize("name", PICTURES)
async def test_a_picture_of_the_docs(readers: Readers, name: str, tmp_path: Path) -> None:
    fragment, ready, settings = PICTURES[name]
    async with ScriptedPage(small_cluster()) as served:
        viewer = await readers.open(served, fragment, reduced_motion="reduce", **settings)
        await viewer.page.wait_for_selector(ready)
        await viewer.painted()
        path = (Path(WANTED) if WANTED else tmp_path) / f"{name}.png"
        await viewer.page.screenshot(path=path, animations="disabled")
        assert path.stat().st_size < MAX_BYTES
