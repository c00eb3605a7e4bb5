"""Settings of Sphinx, which makes the site of `make docs` from the pages beside this file."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from sphinx.application import Sphinx

from tessera import __version__

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
SOURCE = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Source"]

project = "Tessera"
author = "The Tessera Authors"
version = release = __version__
extensions = ["myst_parser"]
# Links in pages name headings as GitHub does.
myst_heading_anchors = 4
html_theme = "furo"
html_title = f"Tessera {release}"
html_copy_source = False
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_copyright = False
html_show_sphinx = False
# Two dashes of a flag stay two.
smartquotes = False
pygments_style = "friendly"
pygments_dark_style = "monokai"


def link_sources(_: Sphinx, page: str, text: list[str]) -> None:
    """Links to files outside docs/, which the site does not have, lead to the repository."""

    def address(match: re.Match[str]) -> str:
        target = ((DOCS / page).parent / match[1]).resolve()
        return match[0] if target.is_relative_to(DOCS) else f"]({SOURCE}/tree/main/{target.relative_to(ROOT)}"

    text[0] = re.sub(r"\]\((\.\./[^)#\s]+)", address, text[0])


def setup(app: Sphinx) -> None:
    """Sphinx calls it."""
    app.connect("source-read", link_sources)
