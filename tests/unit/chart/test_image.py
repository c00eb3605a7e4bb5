"""The Dockerfile: what it copies is there and not left out, and what it installs is locked. Not built here."""

from __future__ import annotations

import re
import tomllib
from fnmatch import fnmatch
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[3]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")


def copied() -> list[str]:
    """What is copied from the repository."""
    lines = re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, flags=re.MULTILINE)
    return [source for line in lines for source in line.split()[:-1]]


def is_sent(path: str) -> bool:
    """Whether .dockerignore lets it through: the last pattern that fits decides."""
    sent = True
    for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines():
        pattern = line.strip().removeprefix("!")
        if pattern and not line.startswith("#") and any(fnmatch(part, pattern) for part in (path, path.split("/")[0])):
            sent = line.startswith("!")
    return sent


def pins(lock: str) -> dict[str, str]:
    text = (ROOT / "requirements" / lock).read_text(encoding="utf-8")
    assert "://" not in text
    entries = re.split(r"\n(?=[a-z0-9-]+==)", text)
    assert all("--hash=sha256:" in entry for entry in entries)
    return dict(re.findall(r"^([a-z0-9-]+)==([^ ;\\]+)", text, flags=re.MULTILINE))


def test_everything_that_is_copied_is_there_and_sent_to_the_builder() -> None:
    assert copied()
    for source in copied():
        assert (ROOT / source).exists(), source
        assert is_sent(source), source
    for kept_away in (".git", ".venv", "tests", "charts", "requirements/dev.txt"):
        assert not is_sent(kept_away), kept_away


def test_what_is_installed_has_the_versions_that_are_tested() -> None:
    tested = pins("dev.txt")
    for lock in ("runtime.txt", "build.txt"):
        assert pins(lock).items() <= tested.items(), lock
        assert f"--require-hashes --only-binary=:all: --requirement requirements/{lock}" in DOCKERFILE


def test_everything_that_the_project_needs_is_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    for lock, texts in (
        ("runtime.txt", project["project"]["dependencies"]),
        ("build.txt", project["build-system"]["requires"]),
    ):
        for wanted in map(Requirement, texts):
            assert pins(lock)[wanted.name.lower()] in wanted.specifier


def test_it_does_not_run_as_root_and_starts_the_program() -> None:
    last = DOCKERFILE.rpartition("FROM ")[2]
    assert "\nUSER 65532:65532\n" in last
    assert '\nENTRYPOINT ["tessera"]\n' in last
