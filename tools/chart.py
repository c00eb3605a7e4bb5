"""Checks the Helm chart, and renders the plain manifests in deploy/ from it.

    python -m tools.chart            lint, render for several versions of Kubernetes, write deploy/tessera.yaml
    python -m tools.chart --check    the same, but say where deploy/tessera.yaml is not what the chart gives, and fail

Helm is found or built as for the end-to-end tests. Nothing reaches a cluster.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from difflib import unified_diff
from pathlib import Path
from typing import Any

import yaml

from tools.kubernetes import build

ROOT = Path(__file__).resolve().parents[1]
CHART = ROOT / "charts" / "tessera"
EXAMPLES = CHART / "examples"
MANIFESTS = ROOT / "deploy" / "tessera.yaml"
RELEASE, NAMESPACE = "tessera", "tessera-system"
KUBERNETES = ("1.26.0", "1.29.0", "1.30.0", "1.33.0", "1.36.0")
"""the oldest supported version, those that enable more features, and the newest tested one"""
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""the first is ten times as fast, and not everywhere"""
SHOWN_LINES = 40
"""lines of a difference between file and chart"""

HEAD = f"""\
# Tessera without Helm: `kubectl apply --server-side -f deploy/tessera.yaml`. Rendered from charts/tessera by
# `make chart`, with its default values, for Kubernetes {KUBERNETES[-1]}: on another version change the tag of the image
# kube-scheduler to it. Before 1.36 take out the MutatingAdmissionPolicy and its binding. Not for versions before 1.30.
# Write the image that your nodes can pull for `tessera`.
apiVersion: v1
kind: Namespace
metadata:
  name: {NAMESPACE}
  labels:
    # Agents use folders of their node.
    pod-security.kubernetes.io/enforce: privileged
"""


class ChartFault(Exception):
    """Helm failed; the text is its message."""


def helm_of(found: Path | None = None) -> Path:
    """The path of Helm; raises build.Missing or build.BuildFailed."""
    return found or build.ensure(["helm"], tell=lambda text: print(text, flush=True))["helm"]


def run(helm: Path, *arguments: str) -> str:
    """The output of one command; raises ChartFault."""
    done = subprocess.run([helm, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ChartFault(f"helm {' '.join(arguments)}:\n{done.stdout}{done.stderr}")
    return done.stdout


def lint(helm: Path, values: Sequence[Path] = ()) -> str:
    return run(helm, "lint", "--strict", "--quiet", str(CHART), *(f"--values={path}" for path in values))


def template(helm: Path, *, kubernetes: str = KUBERNETES[-1], values: Sequence[Path] = (), settings: str = "") -> str:
    """The chart's objects as YAML; `settings` are more values, as helm's --set takes them."""
    return run(
        helm,
        *("template", RELEASE, str(CHART), f"--namespace={NAMESPACE}", f"--kube-version={kubernetes}"),
        *(f"--values={path}" for path in values),
        *((f"--set={settings}",) if settings else ()),
    )


def objects(
    helm: Path, *, kubernetes: str = KUBERNETES[-1], values: Sequence[Path] = (), settings: str = ""
) -> list[dict[str, Any]]:
    """The same, read."""
    rendered = template(helm, kubernetes=kubernetes, values=values, settings=settings)
    return [each for each in yaml.load_all(rendered, Loader=LOADER) if each is not None]


def manifests(helm: Path) -> str:
    """The text of deploy/tessera.yaml."""
    rendered = template(helm).replace("app.kubernetes.io/managed-by: Helm", "app.kubernetes.io/managed-by: kubectl")
    return HEAD + "\n".join(line.rstrip() for line in rendered.splitlines()) + "\n"


def outdated(helm: Path) -> str:
    """The difference between the file and the rendered chart; empty = none."""
    before = MANIFESTS.read_text(encoding="utf-8") if MANIFESTS.exists() else ""
    after = manifests(helm)
    lines = unified_diff(before.splitlines(), after.splitlines(), "deploy/tessera.yaml", "the chart", lineterm="")
    return "\n".join(list(lines)[:SHOWN_LINES])


def main() -> int:
    parser = argparse.ArgumentParser(description="Checks the Helm chart, and renders deploy/tessera.yaml from it.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail where the file is outdated")
    check = parser.parse_args().check
    examples = sorted(EXAMPLES.glob("*.yaml"))
    try:
        helm = helm_of()
        for values in ([], *([path] for path in examples)):
            lint(helm, values)
            for version in KUBERNETES:
                template(helm, kubernetes=version, values=values)
        print(f"chart: default values and {len(examples)} examples render for Kubernetes {', '.join(KUBERNETES)}")
        if not check:
            MANIFESTS.parent.mkdir(exist_ok=True)
            MANIFESTS.write_text(manifests(helm), encoding="utf-8")
            print(f"chart: {MANIFESTS.relative_to(ROOT)} written")
        elif difference := outdated(helm):
            print(f"chart: the manifests are not what the chart gives; run `make chart`\n{difference}", file=sys.stderr)
            return 1
    except (build.Missing, build.BuildFailed, ChartFault) as error:
        print(f"chart: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
