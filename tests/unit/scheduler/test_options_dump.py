from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
import yaml

from tessera.scheduler.configuration import SCHEDULER, build_settings, changes, chart_sections, describe, print_settings
from tessera.scheduler.settings import (
    DefragSettings,
    JournalSettings,
    Leadership,
    Listeners,
    NodeLockMode,
    PrivilegedMode,
    SelfManaged,
    Settings,
    TlsFiles,
)
from tessera.services.value_types import Address
from tessera.vendors.registry import schemas
from tessera.wire.device_config import dump_device_config, load_device_config

EVERYTHING = Settings(
    scheduler_name="mine",
    force_overwrite_default_scheduler=False,
    node_policy="spread",
    device_policy="mutex,numa",
    enable_ascend=True,
    enable_iluvatar=True,
    device_config_file="/f",
    node_selector={"gpu": "on", "a.b/c": ""},
    listeners=Listeners(Address("::1", 1), Address("", 2), Address("10.0.0.1", 3), client_ca="/ca", extender_tls=True),
    tls=SelfManaged("ns", "secret", "service", "webhook"),
    leadership=Leadership("ns", "lease", "host"),
    kubeconfig="/k",
    context="c",
    kube_qps=2.5,
    kube_burst=7,
    kube_timeout=1.5,
    reservation_s=60.0,
    gang_s=40.0,
    gang_starving_s=0.0,
    gang_hold_percent=25,
    node_lock=NodeLockMode.NEVER,
    node_lock_s=90.0,
    preemption=False,
    preemption_delay_s=7.0,
    nomination_s=8.0,
    defrag=DefragSettings(True, 60.0, 3, 9.0, 2, 90.0, True, "ns"),
    turn_s=10.5,
    privileged=PrivilegedMode.DENY,
    injects_downward_api=False,
    hook_path="/opt",
    allow_disable_control=True,
    journal=JournalSettings(8 << 20, "/j", 3 << 30, 2),
    legacy_metrics=True,
    hami_events=True,
    trusted_users=frozenset({"b", "a"}),
    dra=True,
    dra_convert=True,
    grace_s=0.0,
    shutdown_delay_s=5.0,
    device_sections={"nvidia": chart_sections()["nvidia"], "iluvatars": chart_sections()["iluvatars"]},
)
SINGLE = replace(
    Settings(),
    listeners=Listeners(None, None, None, Address("", 443)),
    tls=TlsFiles("/c", "/k"),
)
PLAIN = Settings(listeners=Listeners(webhook=None))


def printed(settings: Settings) -> tuple[str, dict[str, Any]]:
    """The device sections as a file, and the rest."""
    text = print_settings(settings)
    head, _, _ = text.partition(f"\n{SCHEDULER}:\n")
    whole = yaml.safe_load(text)
    return head, whole[SCHEDULER]


def as_flags(described: dict[str, Any]) -> dict[str, str | tuple[str, ...]]:
    def text(value: Any) -> str | tuple[str, ...]:
        if isinstance(value, bool):
            return "true" if value else "false"
        return tuple(value) if isinstance(value, list) else str(value)

    return {name: text(value) for name, value in described.items() if name != "HOSTNAME" and value != []}


@pytest.mark.parametrize("settings", [EVERYTHING, SINGLE, PLAIN], ids=["everything", "single", "plain"])
def test_printed_settings_used_as_flags_are_the_same_settings(settings: Settings) -> None:
    file, described = printed(settings)
    again = build_settings(as_flags(described), {"HOSTNAME": "host"}, lambda _path: file)
    assert again == settings


@pytest.mark.parametrize("settings", [EVERYTHING, SINGLE], ids=["sections", "chart"])
def test_printed_device_sections_load_again_to_the_same(settings: Settings) -> None:
    sections = chart_sections() if settings.device_sections is None else dict(settings.device_sections)
    file, _ = printed(settings)
    assert load_device_config(file, file="printed", schemas=schemas()) == sections
    assert dump_device_config(sections) in print_settings(settings)


@pytest.mark.parametrize("field", [f.name for f in fields(Settings) if f.name != "device_sections"])
def test_every_setting_that_differs_is_logged_at_start(field: str) -> None:
    changed = replace(Settings(), **{field: getattr(EVERYTHING, field)})
    assert changed != Settings(), f"EVERYTHING needs a value for {field} that is not the default"
    assert changes(changed), f"{field} differs from the default, and is not shown"


def test_nothing_is_logged_about_defaults() -> None:
    assert changes(Settings()) == {}
    assert changes(PLAIN) == {"webhook-bind": "none"}


def test_addresses_are_printed_as_they_are_written() -> None:
    described = describe(EVERYTHING)
    assert (described["extender-bind"], described["webhook-bind"]) == ("[::1]:1", ":2")
    assert describe(SINGLE)["metrics-bind-address"] == "none"
