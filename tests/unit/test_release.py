"""What a release is made from: one version, one address, workflows with few rights, files that name real things."""

from __future__ import annotations

import hashlib
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tessera import __version__
from tools import generate, krew

ROOT = Path(__file__).parents[2]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
PLACEHOLDER = "example-org"

Json = dict[str, Any]


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def document(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


# -- version and address


def test_a_new_version_reaches_every_file_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate, "__version__", "9.8.7")
    changed = {str(path.relative_to(ROOT)): text for path, text in generate.outdated().items()}
    assert {"charts/tessera/Chart.yaml", "Dockerfile", "README.md", "docs/install.md", "docs/asking-a-cluster.md"} <= {
        *changed
    }
    assert yaml.safe_load(changed["charts/tessera/Chart.yaml"])["version"] == "9.8.7"
    for name, text in changed.items():
        assert __version__ not in text, f"{name} names the version where tools/generate.py does not look"


def test_a_new_address_reaches_every_file_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    named = subprocess.run(
        ["git", "grep", "--files-with-matches", PLACEHOLDER], cwd=ROOT, capture_output=True, text=True, check=True
    )
    monkeypatch.setattr(generate, "address", lambda: "https://github.com/somewhere-else/tessera")
    changed = {str(path.relative_to(ROOT)): text for path, text in generate.outdated().items()}
    here = {str(Path(__file__).relative_to(ROOT))}
    assert {*changed} == {*named.stdout.split()} - here
    texts = {name: text.replace("`example-org` stands for the organisation", "") for name, text in changed.items()}
    assert [name for name, text in texts.items() if PLACEHOLDER in text] == []


def test_a_file_that_no_longer_names_the_release_is_an_error() -> None:
    with pytest.raises(generate.GenerateError, match="names neither the version nor the address"):
        generate.release("nothing of it")


def test_the_plain_manifests_have_the_version() -> None:
    rendered = text_of("deploy/tessera.yaml")
    assert {*re.findall(r"helm\.sh/chart: tessera-(\S+)", rendered)} == {__version__}
    assert f"image: tessera:{__version__}\n" in rendered


def test_the_changelog_has_a_section_and_a_link_for_each_version() -> None:
    text = text_of("CHANGELOG.md")
    headings = re.findall(r"^## \[(.+?)\](?: - \d{4}-\d{2}-\d{2})?$", text, flags=re.MULTILINE)
    assert headings == ["Unreleased", *sorted(headings[1:], key=lambda v: [*map(int, v.split("."))], reverse=True)]
    assert __version__ in headings
    assert re.findall(r"^\[(.+?)\]: https://", text, flags=re.MULTILINE) == headings


# -- workflows


def jobs(path: Path) -> Iterator[tuple[str, Json]]:
    yield from document(path)["jobs"].items()


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_has_few_rights_and_runs_code_that_cannot_change(path: Path) -> None:
    found, text = document(path), path.read_text(encoding="utf-8")
    assert found["permissions"] in ({}, {"contents": "read"})
    for action in re.findall(r"uses: (\S+.*)", text):
        assert action.startswith("./") or re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action), action
    for name, job in jobs(path):
        needed = job.get("needs", [])
        assert {*([needed] if isinstance(needed, str) else needed)} <= {*found["jobs"]}, name
        if "uses" not in job:
            assert job["timeout-minutes"] <= 90, name
        for step in job.get("steps", ()):
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False, name
            assert not re.search(r"\$\{\{ *(github\.(event|head_ref)|inputs)", step.get("run", "")), name
        rights = job.get("permissions", found["permissions"])
        writes = {right for right, level in rights.items() if level == "write"}
        assert path.stem == "release" or not writes, name


def test_only_jobs_that_publish_may_write_and_each_only_what_it_publishes() -> None:
    writes = {
        name: {right for right, level in job.get("permissions", {}).items() if level == "write"}
        for name, job in jobs(GITHUB / "workflows" / "release.yml")
    }
    assert writes == {
        "checks": set(),
        "wheel": set(),
        "plugin": set(),
        "image": {"packages", "id-token"},
        "chart": {"packages", "id-token"},
        "release": {"contents", "id-token", "attestations"},
    }


def test_workflows_and_hooks_call_verbs_and_files_that_exist() -> None:
    verbs = {*re.findall(r"^([a-z0-9]+):", text_of("Makefile"), flags=re.MULTILINE)}
    for path in WORKFLOWS:
        text = path.read_text(encoding="utf-8")
        for called in re.findall(r"\bmake ((?:[a-z0-9]+ )*[a-z0-9]+)(?= |$)", text, flags=re.MULTILINE):
            assert {*called.split()} <= verbs, called
        for lock in re.findall(r"--requirement (\S+)", text):
            assert (ROOT / lock).is_file(), lock
    for hook in document(ROOT / ".pre-commit-config.yaml")["repos"][0]["hooks"]:
        assert re.match(r"(\.venv/bin/(ruff|python|lint-imports)|grep) ", hook["entry"]), hook["id"]
    for update in document(GITHUB / "dependabot.yml")["updates"]:
        for folder in update.get("directories", [update.get("directory")]):
            assert (ROOT / folder.lstrip("/")).is_dir(), folder


def test_the_notes_of_a_release_are_the_section_of_its_version() -> None:
    """As the workflow cuts them out of the changelog."""
    (command,) = re.findall(r"(awk -v version=.*) CHANGELOG\.md", text_of(".github/workflows/release.yml"))
    notes = subprocess.run(
        ["sh", "-c", f"version={__version__}; {command} CHANGELOG.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert notes.strip().startswith("### ")
    assert "## [" not in notes
    assert "]: https://" not in notes


# -- issues, owners


@pytest.mark.parametrize("path", [GITHUB / "ISSUE_TEMPLATE" / f"{name}.yml" for name in ("bug", "feature")])
def test_a_form_for_issues_can_be_filled_in(path: Path) -> None:
    form = document(path)
    assert {"name", "description", "body"} <= form.keys()
    ids = [field["id"] for field in form["body"]]
    assert len({*ids}) == len(ids)
    for field in form["body"]:
        assert field["type"] in ("textarea", "input", "dropdown", "checkboxes")
        assert field["attributes"]["label"]


def test_owners_are_teams_of_the_maintainers_and_own_what_is_there() -> None:
    maintainers = text_of("MAINTAINERS.md")
    for line in text_of(".github/CODEOWNERS").splitlines():
        if line and not line.startswith("#"):
            path, owner = line.split()
            assert (ROOT / path.strip("/*")).exists(), path
            assert f"| `{owner.partition('/')[2]}` |" in maintainers, owner
    for path in re.findall(r"`((?:src|docs|charts|deploy|scripts)[\w/.]*)`", maintainers):
        assert (ROOT / path).exists(), path


# -- the kubectl plugin


def test_the_manifest_for_krew_has_the_checksum_of_each_archive(tmp_path: Path) -> None:
    names = [krew.archive_name("Linux", "x86_64"), krew.archive_name("Linux", "aarch64")]
    names.append(krew.archive_name("Darwin", "arm64"))
    with pytest.raises(krew.KrewError, match="is missing"):
        krew.manifest(tmp_path)
    for name in names:
        (tmp_path / name).write_text(name)
    found = yaml.safe_load(krew.manifest(tmp_path))
    assert (found["metadata"]["name"], found["spec"]["version"]) == ("tessera", f"v{__version__}")
    assert len(found["spec"]["shortDescription"]) <= 50
    for name, platform in zip(names, found["spec"]["platforms"], strict=True):
        labels = platform["selector"]["matchLabels"]
        assert name == f"kubectl-tessera_{labels['os']}_{labels['arch']}.tar.gz"
        assert platform["uri"] == f"{generate.address()}/releases/download/v{__version__}/{name}"
        assert platform["sha256"] == hashlib.sha256(name.encode()).hexdigest()


def test_there_is_no_archive_for_machines_that_nobody_builds_on() -> None:
    for system, machine in (("Windows", "x86_64"), ("Linux", "riscv64")):
        with pytest.raises(krew.KrewError, match="no archive is made"):
            krew.archive_name(system, machine)
