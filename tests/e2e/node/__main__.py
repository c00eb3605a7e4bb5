"""Runs the tests of this folder in a node container.

    python -m tests.e2e.node [PYTEST ARGUMENTS]

Exit code 77, with every reason in the last line, where this machine cannot do it; otherwise what pytest says.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.e2e.node.container import ROOT, Interrupted, run_inside
from tests.e2e.node.machine import obstacles
from tools.kubernetes import build

HERE = Path(__file__).resolve().parent
IMPOSSIBLE = 77
"""exit code by which test programs traditionally say that they were skipped"""
INTERRUPTED = 130
"""exit code of a shell after SIGINT"""


def main(arguments: list[str]) -> int:
    reasons = obstacles()
    if not reasons:
        try:
            # Here, where Go finds its modules; inside there is no network.
            build.ensure([*build.PLANE, *build.NODE], tell=lambda text: print(text, flush=True))
        except build.Missing as missing:
            reasons.append(str(missing))
    if reasons:
        print(f"the kubelet suite cannot run here: {'; '.join(reasons)}")
        return IMPOSSIBLE
    chosen = arguments if any(each.startswith("tests/") for each in arguments) else [str(HERE.relative_to(ROOT))]
    options = [each for each in arguments if each not in chosen]
    # Programs are started while threads of gRPC run; all that it could do about that is to print warnings.
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
    try:
        return run_inside(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, *chosen)
    except Interrupted as interrupted:
        print(f"ended by {interrupted}", flush=True)
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
