"""Builds the image without a container engine.

    python -m tools.image [--name NAME] [--output FILE]

The file is an OCI archive: `ctr images import FILE`, or any tool that copies such archives into a registry. Beside it
is the bill of materials, which the image has too. Needs the apt of Debian or Ubuntu and a package index for pip.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from tools.image.builder import ROOT, build
from tools.image.debian import Unbuildable
from tools.kubernetes.build import cache

OUTPUT = ROOT / "build" / "tessera-image.tar"


def main() -> int:
    parser = argparse.ArgumentParser(description="Builds the OCI image without a container engine.")
    parser.add_argument("--name", default="", help="docker.io/library/tessera:VERSION unless given")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="the archive (default: %(default)s)")
    given = parser.parse_args()
    try:
        built = build(
            given.output, cache=cache(os.environ) / "image", name=given.name, tell=lambda text: print(text, flush=True)
        )
    except Unbuildable as error:
        print(f"image: {error}", file=sys.stderr)
        return 1
    given.output.with_suffix(".sbom.json").write_text(json.dumps(built.sbom, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
