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
    "mig": "dynamic MIG instances",
    "agent": "the whole agent, from a bound pod to a torch process",
}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/gpu-check",
        description="Checks the node agent on the first NVIDIA card. Needs root, an idle card, torch and nvidia-smi.",
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all by default")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the results as a table to FILE")
    given = parser.parse_args()
    unknown = [part for part in given.parts if part not in PARTS]
    if unknown:
        parser.error(f"there is no part {unknown[0]}; there are {', '.join(PARTS)}")
    report = Report()
    for part in given.parts or PARTS:
        report.begin(f"{part}: {PARTS[part]}")
        report.part = part
        try:
            importlib.import_module(f"scripts.gpu_check.{part}").run(report)
        except Exception as error:
            report.crashed(error)
    if given.markdown is not None:
        given.markdown.write_text(report.markdown())
    print(f"\n{len(report.lines) - report.failed} of {len(report.lines)} checks passed")
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
