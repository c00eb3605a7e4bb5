"""The suite of a real kubelet (`tests/e2e/node`), in namespaces of its own, where this machine allows it.

Its parts start with the first test and are waited for here, after the last one (`tests/e2e/conftest.py`).
"""

from __future__ import annotations

import re
from contextlib import nullcontext

import pytest

from tests.e2e.conftest import KUBELET_SUITES, Tell
from tests.e2e.kubelet_suite import PARTS
from tests.e2e.node import release
from tests.e2e.node.__main__ import IMPOSSIBLE

SUMMARY = re.compile(r"=+ (\d.* in [\d.]+s.*?) =+")


@pytest.mark.parametrize("part", PARTS)
def test_containers_of_a_real_kubelet_get_exactly_their_slices(
    pytestconfig: pytest.Config, tell: Tell, part: str
) -> None:
    code, said = pytestconfig.stash[KUBELET_SUITES][part].wait()
    title = f"kubelet, {part}"
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled() if capture else nullcontext():
        print("", *(f"    {line}" for line in said), sep="\n", flush=True)
    if code == IMPOSSIBLE:
        tell(f"{title:<24} skipped: {said[-1]}")
        pytest.skip(said[-1])
    found = [match[1] for line in said if (match := SUMMARY.fullmatch(line))]
    tell(f"{title:<24} {found[-1] if found else 'did not end'}")
    assert code == 0, "see its output above"
    skipped = [line for line in said if line.startswith("SKIPPED")]
    for line in skipped:
        tell(f"{title:<24} {line}")
    assert all(release.IMPOSSIBLE in line for line in skipped)
    assert bool(skipped) is ("skipped" in found[-1])
