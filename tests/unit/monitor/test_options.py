"""What the monitor is told by flags and variables."""

from __future__ import annotations

from pathlib import Path

import pytest

from tessera.monitor.settings import MonitorSettings, build_settings
from tessera.services.settings_table import SettingsError
from tessera.services.value_types import Address

NEEDED = {"NODE_NAME": "n1", "HOOK_PATH": "/usr/local/vgpu"}


def test_the_variables_of_hamis_monitor_are_enough() -> None:
    found = build_settings({}, NEEDED)
    assert found == MonitorSettings(node_name="n1", base=Path("/usr/local/vgpu"))
    assert (found.metrics, found.resync, found.legacy_metrics) == (Address("", 9394), 300.0, False)


def test_flags_win_over_variables() -> None:
    flags = {
        "node-name": "n2",
        "hook-path": "/x",
        "resync-interval": "90s",
        "metrics-bind-address": "127.0.0.1:1",
        "legacy-metrics": "true",
        "driver-root-ctr-path": "/d",
        "kubeconfig": "file",
        "context": "c",
    }
    assert build_settings(flags, {**NEEDED, "HAMI_RESYNC_INTERVAL": "nonsense"}) == MonitorSettings(
        node_name="n2",
        base=Path("/x"),
        metrics=Address("127.0.0.1", 1),
        legacy_metrics=True,
        resync=90.0,
        driver_root=Path("/d"),
        kubeconfig="file",
        context="c",
    )


@pytest.mark.parametrize(
    ("text", "seconds", "warned"),
    [("10m", 600.0, False), ("", 300.0, False), ("soon", 300.0, True), ("0s", 300.0, True), ("-1m", 300.0, True)],
)
def test_a_bad_resync_interval_is_a_warning(text: str, seconds: float, warned: bool) -> None:
    found = build_settings({}, {**NEEDED, "HAMI_RESYNC_INTERVAL": text})
    assert found.resync == seconds
    assert bool(found.warnings) is warned


def test_everything_that_is_wrong_comes_in_one_message() -> None:
    with pytest.raises(SettingsError) as caught:
        build_settings({"metrics-bind-address": "none", "log-level": "loud", "resync-interval": "5"}, {})
    for name in ("NODE_NAME", "HOOK_PATH", "--metrics-bind-address", "--log-level", "--resync-interval"):
        assert name in str(caught.value)
