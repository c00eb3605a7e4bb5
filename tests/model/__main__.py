"""The model for as long as you like: `python -m tests.model --steps 10000000 --seed 1`, with progress.

Lives of all profiles take turns, each with the next seed. A life that fails says how to live it again and ends the run.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time

import structlog

from tests.model.profiles import PROFILES
from tests.model.test_model import LIFE, live


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.model", description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--profile", choices=PROFILES, action="append", help="only this one; may be repeated")
    given = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    races = went_beside = 0
    names, started, done, seed = given.profile or list(PROFILES), time.monotonic(), 0, given.seed
    while done < given.steps:
        for name in names:
            life = live(name, seed, LIFE)
            races += life.api.races
            went_beside += life.api.went_beside
        done += LIFE * len(names)
        seed += 1
        progress = f"{done} steps, {races} races for claimed devices, {went_beside} pods beside them"
        print(f"{progress}, in {time.monotonic() - started:.0f} s, next seed {seed}", file=sys.stderr, flush=True)
    print(f"{done} steps, seeds {given.seed} to {seed - 1}, {time.monotonic() - started:.0f} s: no fault")
    return 0


if __name__ == "__main__":
    sys.exit(main())
