"""Runs the tests of this folder in a node container.

    python -m tests.e2e.node [PYTEST ARGUMENTS]

Exit code 77, with every reason in the last line, where this machine cannot do it; otherwise what pytest says.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from tests.e2e.node.container import ROOT, Interrupted, run_inside
from tests.e2e.node.machine import obstacles
from tests.e2e.node.release import IMAGE, NO_IMAGE, SUITES
from tools.image import builder
from tools.image.debian import Unbuildable
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
            build.ensure([*build.PLANE, *build.NODE, "helm"], tell=tell)
        except build.Missing as missing:
            reasons.append(str(missing))
    if reasons:
        print(f"the kubelet suite cannot run here: {'; '.join(reasons)}")
        return IMPOSSIBLE
    chosen = arguments if any(each.startswith("tests/") for each in arguments) else [str(HERE.relative_to(ROOT))]
    options = [each for each in arguments if each not in chosen]
    # Programs are started while threads of gRPC run; all that it could do about that is to print warnings.
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
    with tempfile.TemporaryDirectory(prefix="tessera-e2e-image-") as folder:
        if any(not each.endswith(".py") or Path(each).name in SUITES for each in chosen):
            prepare_image(Path(folder))
        try:
            return run_inside(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, *chosen)
        except Interrupted as interrupted:
            print(f"ended by {interrupted}", flush=True)
            return INTERRUPTED


def prepare_image(folder: Path) -> None:
    """Builds the image that the chart installs; also here, because of the network. Without it only its tests are
    skipped."""
    archive = folder / "tessera.tar"
    try:
        builder.build(archive, cache=build.cache(os.environ) / "image", tell=tell)
        os.environ[IMAGE] = str(archive)
    except Unbuildable as error:
        os.environ[NO_IMAGE] = str(error)


def tell(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
