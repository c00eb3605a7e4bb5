"""Runs the robustness suite; see docs/reliability.md.

    ROBUSTNESS_S=180 ROBUSTNESS_SEED=1 python -m tests.robustness           a run
    ROBUSTNESS_FAULTS="pause, late write" python -m tests.robustness        a run with these faults only
    python -m tests.robustness HISTORY                                      judges a kept history again

The seed decides shapes, names and faults, and when they happen; not how the programs are interleaved. Exit code 1 with
a violation, 77 where this machine cannot run the suite.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import uvloop

from tests.e2e.control_plane import renamed
from tests.robustness.checker import Violation, check, excerpt
from tests.robustness.history import Event, History, encode, read
from tests.robustness.machine import find_libfaketime
from tests.robustness.nemesis import choose_kinds
from tests.robustness.run import Plan, run
from tools.kubernetes import build

IMPOSSIBLE = 77
"""exit code by which test programs traditionally say that they were skipped"""
DEFAULT_S = 180.0
TOLD = 3
"""violations with their steps: one cause often has many"""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.robustness", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("history", nargs="?", type=Path, help="judge this one, and run nothing")
    given = parser.parse_args(arguments)
    if given.history is not None:
        try:
            with given.history.open("rb") as lines:
                events = list(read(lines))
        except OSError as error:
            parser.error(str(error))
        return tell_verdict(events, check(events))
    has_clocks = find_libfaketime() is not None
    try:
        seconds = float(os.environ.get("ROBUSTNESS_S") or DEFAULT_S)
        seed = int(os.environ.get("ROBUSTNESS_SEED") or secrets.randbelow(10**6))
        kinds = choose_kinds(os.environ.get("ROBUSTNESS_FAULTS", ""), seconds=seconds, has_clocks=has_clocks)
    except ValueError as error:
        parser.error(f"ROBUSTNESS_S, ROBUSTNESS_SEED or ROBUSTNESS_FAULTS cannot be used: {error}")
    if subprocess.run([*renamed("robustness"), "true"], capture_output=True, check=False).returncode:
        tell("the robustness suite cannot run here: two machines need two host names (unshare --uts, as root)")
        return IMPOSSIBLE
    try:
        tools = build.ensure(tell=tell)
    except build.Missing as missing:
        tell(f"the robustness suite cannot run here: {missing}")
        return IMPOSSIBLE
    if not has_clocks:
        tell("no libfaketime here (apt install libfaketime): clocks are not moved")
    plan = Plan(seed, seconds, kinds)
    folder = Path(tempfile.mkdtemp(prefix="tessera-robustness-"))
    plane = folder / "plane"
    plane.mkdir()
    # The simulated nodes log every connection that a fault ends.
    logging.basicConfig(filename=folder / "suite.log")
    tell(f"seed {seed}, {seconds:g} s; history in {folder}")
    with (
        History(folder / "history.jsonl", time.monotonic) as history,
        # The loop of the services: on the default one a cancelled TLS handshake leaves a transport without a socket.
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        verdict = runner.run(run(tools, plane, history, plan=plan, tell=tell))
    for line in verdict.summary:
        tell(line)
    code = tell_verdict(history.events, verdict.violations)
    if code:
        tell(f"seed {seed}; the whole history: {history.path}, logs: {plane / 'logs'}")
    else:
        shutil.rmtree(folder)
    return code


def tell_verdict(events: list[Event], violations: list[Violation]) -> int:
    for violation in violations[:TOLD]:
        tell(f"\n{violation.kind} after {violation.at:.1f} s: {violation.text}")
        for event in excerpt(events, violation):
            tell(f"    {encode(event)}")
    tell("no violation" if not violations else f"{len(violations)} violations")
    return 1 if violations else 0


def tell(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    try:
        code = main(sys.argv[1:])
    except SystemExit as usage:
        code = int(usage.code or 0)
    sys.stdout.flush()
    # Not sys.exit: connections that a run leaves behind outlive uvloop's loop, and may crash the interpreter's end.
    os._exit(code)
