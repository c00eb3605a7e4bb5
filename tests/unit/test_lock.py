"""The locked files in requirements/ must satisfy the project: installations use nothing else."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
LOCKS = ("dev.txt", "docs.txt", "fuzz.txt", "plugin.txt")


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def text_of(lock: str) -> str:
    return (ROOT / "requirements" / lock).read_text(encoding="utf-8")


def pins(lock: str) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for name, version in re.findall(r"^([a-z0-9-]+)==([^ ;\\]+)", text_of(lock), flags=re.MULTILINE):
        found.setdefault(name, set()).add(version)
    return found


def asked() -> list[tuple[str, str]]:
    groups = project()["dependency-groups"]
    own = [*project()["project"]["dependencies"], *groups["dev"]]
    alone = [(f"{group}.txt", text) for group in ("docs", "fuzz", "plugin") for text in groups[group]]
    return [*(("dev.txt", text) for text in own), *alone]


@pytest.mark.parametrize(("lock", "requirement"), asked())
def test_every_dependency_is_locked_at_a_version_that_satisfies_it(lock: str, requirement: str) -> None:
    wanted = Requirement(requirement)
    versions = pins(lock).get(wanted.name.lower(), set())
    assert any(version in wanted.specifier for version in versions)


@pytest.mark.parametrize("lock", LOCKS)
def test_every_locked_package_has_hashes(lock: str) -> None:
    entries = re.split(r"\n(?=[a-z0-9-]+==)", text_of(lock))
    assert entries
    assert all("--hash=sha256:" in entry for entry in entries)


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_names_no_package_index(lock: str) -> None:
    """so that the index, the proxy and the certificates are the ones that pip is configured with"""
    assert "://" not in text_of(lock)
