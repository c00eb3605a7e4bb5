"""uv.lock and its exports in requirements/ must say the same: installations use the exports."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
EXPORTS = ("dev.txt", "fuzz.txt")


def toml(name: str) -> dict[str, Any]:
    return tomllib.loads((ROOT / name).read_text(encoding="utf-8"))


def pins(export: str) -> set[tuple[str, str]]:
    text = (ROOT / "requirements" / export).read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z0-9-]+)==([^ ;\\]+)", text, flags=re.MULTILINE))


def canonical(requirement: str) -> tuple[str, str]:
    parsed = Requirement(requirement)
    return parsed.name, str(parsed.specifier)


def test_the_exports_pin_exactly_what_the_lock_holds() -> None:
    packages = toml("uv.lock")["package"]
    locked = {(package["name"], package["version"]) for package in packages if "registry" in package["source"]}
    assert set().union(*map(pins, EXPORTS)) == locked


def test_the_lock_was_made_for_these_dependencies() -> None:
    project = toml("pyproject.toml")
    (ours,) = (package for package in toml("uv.lock")["package"] if package["name"] == project["project"]["name"])
    asked = {
        "": project["project"]["dependencies"],
        **project["dependency-groups"],
    }
    locked = {"": ours["metadata"]["requires-dist"], **ours["metadata"]["requires-dev"]}
    for group, requirements in asked.items():
        assert {canonical(text) for text in requirements} == {
            canonical(f"{entry['name']}{entry.get('specifier', '')}") for entry in locked[group]
        }


@pytest.mark.parametrize("export", EXPORTS)
def test_an_export_names_no_package_index(export: str) -> None:
    """so that the index, the proxy and the certificates are the ones that pip is configured with"""
    assert "://" not in (ROOT / "requirements" / export).read_text(encoding="utf-8")
