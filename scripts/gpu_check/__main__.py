"""Runs the requested checks, all by default; exit status 1 if one failed."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

from scripts.gpu_check.report import Report

PARTS = {
    "cards": "inventory, registration and events",
    "mps": "sharing through MPS",
    "shares": "shares side by side through MPS, and a restart of the agent",
    "mig": "dynamic MIG instances",
    "agent": "the whole agent, from a bound pod to a torch process",
    "dra": "ResourceClaims, from the CDI spec to a torch process",
    "hami-core": "HAMi's library in a container (needs --library)",
}
NEEDS_LIBRARY = "hami-core"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/gpu-check",
        description="Checks the node agent on the first NVIDIA card. Needs root, an idle card, torch and nvidia-smi.",
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all by default")
    parser.add_argument("--library", type=Path, metavar="FILE", help="HAMi-core's libvgpu.so, for the part hami-core")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the results as a table to FILE")
    given = parser.parse_args()
    unknown = [part for part in given.parts if part not in PARTS]
    if unknown:
        parser.error(f"there is no part {unknown[0]}; there are {', '.join(PARTS)}")
    if NEEDS_LIBRARY in given.parts and given.library is None:
        parser.error(f"the part {NEEDS_LIBRARY} needs --library")
    report = Report()
    for part in given.parts or [each for each in PARTS if each != NEEDS_LIBRARY or given.library is not None]:
        report.begin(f"{part}: {PARTS[part]}")
        report.part = part
        more = {"library": given.library} if part == NEEDS_LIBRARY else {}
        try:
            importlib.import_module(f"scripts.gpu_check.{part.replace('-', '_')}").run(report, **more)
        except Exception as error:
            report.crashed(error)
    if given.markdown is not None:
        given.markdown.write_text(report.markdown())
    print(f"\n{len(report.lines) - report.failed} of {len(report.lines)} checks passed")
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
