"""The device configuration: Deployments of HAMi as they are, flags over the file, and what can be wrong."""

from __future__ import annotations

from typing import Any

import click
import pytest

from tessera.cli.grouped import flags_of_params
from tessera.cli.scheduler import command
from tessera.scheduler.configuration import build_settings
from tessera.scheduler.settings import OVERRIDES, TABLE, Leadership, Listeners, Settings, TlsFiles
from tessera.services.settings_table import Flags, SettingsError
from tessera.services.value_types import AMOUNT, RESOURCE, SWITCH, Address
from tessera.vendors.ascend import CHART as VNPUS
from tessera.vendors.base import Vendor
from tessera.vendors.nvidia.backend import CHART as NVIDIA
from tessera.vendors.registry import build_vendors
from tests.support.hami_deployments import V2_4_0, V2_4_1, V2_4_1_FILE, V2_10

ENVIRONMENT = {"POD_NAMESPACE": "kube-system", "POD_NAME": "s-0", "HOSTNAME": "s-0", "HAMI_NODELOCK_EXPIRE": "4m"}

SINGLE = Listeners(extender=None, webhook=None, single=Address("0.0.0.0", 443))
TLS = TlsFiles("/tls/tls.crt", "/tls/tls.key")


def settings(flags: Flags, text: str = "") -> Settings:
    return build_settings(flags, ENVIRONMENT, lambda _path: text)


def started(arguments: list[str], text: str = "") -> Settings:
    """What a container with these arguments is told."""
    with command.make_context("scheduler", list(arguments)) as context:
        return settings(flags_of_params(TABLE, context.params), text)


def vendors(settings: Settings) -> dict[str, Vendor]:
    return build_vendors(settings.device_sections, settings.switches)


def problems(flags: Flags, text: str) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        settings(flags, text)
    return list(caught.value.problems)


def test_a_v2_4_0_deployment_starts_on_the_charts_values_with_its_flags_over_them() -> None:
    found = started(V2_4_0)
    assert (found.listeners, found.tls, found.node_lock_s) == (SINGLE, TLS, 240.0)
    assert found.device_sections is not None
    nvidia = found.device_sections["nvidia"]
    assert nvidia.resource_count_name == "nvidia.com/vgpu"
    assert (nvidia.default_memory, nvidia.default_gpu_num, nvidia.default_cores) == (5000, 2, 10)
    assert nvidia.overwrite_env is True
    assert nvidia.mig_profile_allowlist == NVIDIA.mig_profile_allowlist
    by_key = vendors(found)
    assert by_key["MLU"].names.count == "cambricon.com/mlunum"
    assert by_key["Iluvatar"].names.all == ("iluvatar.ai/vgpu", "iluvatar.ai/vcuda-memory", "iluvatar.ai/vcuda-core")
    assert by_key["Ascend910B3"].names.count == "huawei.com/Ascend910"
    assert by_key["Ascend910B3"].names.memory == "huawei.com/Ascend910-memory"
    assert by_key["Ascend310P"].names.count == "huawei.com/Ascend310P"
    assert by_key["Metax-SGPU"].names.count == "metax-tech.com/sgpu"


def test_a_v2_4_1_deployment_starts_with_its_flags_over_its_file() -> None:
    found = started(V2_4_1, V2_4_1_FILE)
    assert (found.listeners, found.tls) == (SINGLE, TLS)
    assert found.device_sections is not None
    assert found.device_sections["nvidia"].default_memory == 0
    by_key = vendors(found)
    assert by_key["DCU"].names.count == "hygon.com/dcu"
    assert by_key["MLU"].names.count == "cambricon.com/vmlu"
    assert by_key["Ascend910B"].names.count == "huawei.com/Ascend910B"
    assert "Metax-SGPU" not in by_key or not by_key["Metax-SGPU"].names.count


def test_a_v2_10_deployment_starts() -> None:
    found = started(V2_10, "nvidia: {resourceCountName: nvidia.com/gpu}\n")
    assert (found.listeners, found.tls, found.node_lock_s) == (SINGLE, TLS, 240.0)
    assert found.leadership == Leadership("kube-system", "hami-scheduler", "s-0")
    assert found.node_selector == {"gpu": "on", "zone": "a"}
    assert (found.legacy_metrics, found.force_overwrite_default_scheduler) == (True, True)
    assert (found.switches.ascend, found.switches.iluvatar) == (True, True)
    assert vendors(found)["NVIDIA"].names.all == ("nvidia.com/gpu",)


def test_without_file_and_flags_the_charts_values_stand_as_they_are() -> None:
    assert settings({}).device_sections is None


@pytest.mark.parametrize("override", OVERRIDES, ids=lambda override: override.flag)
def test_every_old_flag_changes_its_one_key_of_the_charts_values(override: Any) -> None:
    text: str = {RESOURCE: "example.com/x", AMOUNT: "7", SWITCH: "true"}[override.type]
    found = settings({override.flag: text}).device_sections
    assert found is not None
    section = found[override.section]
    if override.chips:
        section = next(chip for chip in section.configs if chip.common_word in override.chips)
    values = {key: getattr(section, name) for key, name in _fields(section).items()}
    assert values[override.key] == {"7": 7, "true": True}.get(text, text)


def _fields(section: Any) -> dict[str, str]:
    return dict(zip(section.__struct_encode_fields__, section.__struct_fields__, strict=True))


def test_the_newer_flag_of_enflame_wins_over_its_older_name() -> None:
    flags = {"enflame-drs-gcu-resource-name": "e.com/new", "enflame-vgcu-resource-name": "e.com/old"}
    assert (settings(flags).device_sections or {})["enflame"].drs == "e.com/new"


def test_a_flag_creates_the_section_that_a_file_does_not_have() -> None:
    found = settings(
        {"device-config-file": "/f", "dcu-name": "a.com/dcu", "iluvatar-cores": "a.com/core"},
        "nvidia: {resourceCountName: nvidia.com/gpu}\n",
    )
    assert found.device_sections is not None
    assert set(found.device_sections) == {"nvidia", "hygon", "iluvatar"}
    assert found.device_sections["hygon"].resource_count_name == "a.com/dcu"
    assert found.device_sections["hygon"].resource_memory_name == ""
    assert found.device_sections["iluvatar"].resource_count_name == "iluvatar.ai/vgpu"
    assert found.device_sections["iluvatar"].resource_core_name == "a.com/core"


@pytest.mark.parametrize(
    ("flags", "ascend"),
    [
        ({}, False),
        ({"ascend310p-memory": "a.com/b"}, True),
        ({"ascend-name": "a.com/b", "enable-ascend": "false"}, False),
    ],
)
def test_chips_that_v2_4_0_always_served_are_served_where_its_flags_name_them(flags: Flags, ascend: bool) -> None:
    found = settings(flags)
    assert found.switches.ascend is ascend
    assert any(key.startswith("Ascend") for key in vendors(found)) is ascend


def test_other_chips_keep_their_names() -> None:
    found = settings({"ascend-name": "a.com/b"}).device_sections
    assert found is not None
    changed = [new.common_word for new, old in zip(found["vnpus"].configs, VNPUS.configs, strict=True) if new != old]
    assert changed == ["Ascend910B3"]


@pytest.mark.parametrize(
    ("flags", "text", "said"),
    [
        ({}, "nvidia: {resourceCountNam: a.com/b}\nmetax: 3\n", ["/f:1: nvidia: unknown key", "/f:2: metax: expected"]),
        ({}, "nvidia: [", ["/f:2: not valid YAML"]),
        ({}, "", ["/f: all configurations are empty"]),
        (
            {},
            "nvidia: {resourceCountName: a.com/b}\nhygon: {resourceCountName: a.com/b}\n",
            ["/f: the vendors DCU and NVIDIA both claim the resource a.com/b"],
        ),
        (
            {"resource-name": "a.com/b", "default-mem": "3"},
            "hygon: {resourceCountName: a.com/b}\n",
            ["/f as overridden by --resource-name, --default-mem: the vendors DCU and NVIDIA both claim"],
        ),
        (
            {"default-mem": "3"},
            "nvidia: {resourceCountName: a.com/b}\nhygon: {resourceCountName: a.com/b}\n",
            ["/f: the vendors DCU and NVIDIA both claim the resource a.com/b"],
        ),
        (
            {"resource-name": "gpu"},
            "nvidia: {}\nhygon: {resourceCountName: a.com/b}\n",
            ["--resource-name: expected a"],
        ),
        ({"default-mem": "1.5"}, "hygon: {resourceCountName: a.com/b}\n", ["--default-mem: expected a whole number"]),
        (
            {"ascend-name": "a.com/b"},
            "hygon: {resourceCountName: c.com/d}\n",
            ["--ascend-name: /f has no Ascend910B3 under vnpus to be named so"],
        ),
    ],
)
def test_a_device_configuration_that_cannot_be_used_names_the_file_or_the_flags(
    flags: dict[str, str], text: str, said: list[str]
) -> None:
    found = problems({**flags, "device-config-file": "/f"}, text)
    assert len(found) == len(said)
    for problem, expected in zip(found, said, strict=True):
        assert expected in problem


def test_flags_may_repair_what_is_wrong_in_the_file() -> None:
    text = "nvidia: {resourceCountName: a.com/b}\nhygon: {resourceCountName: a.com/b}\n"
    found = settings({"device-config-file": "/f", "dcu-name": "a.com/dcu"}, text)
    assert vendors(found)["DCU"].names.count == "a.com/dcu"


def test_names_in_flags_that_clash_with_the_chart_are_blamed_on_the_flags() -> None:
    with pytest.raises(SettingsError, match="the chart as overridden by --resource-name: the vendors"):
        settings({"resource-name": "hygon.com/dcunum"})


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (PermissionError(13, "Permission denied"), "cannot read /f: Permission denied"),
        (OSError("odd"), "cannot read /f: odd"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no"), "cannot read /f: it is not UTF-8 text"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(error: Exception, said: str) -> None:
    def read(_path: str) -> str:
        raise error

    with pytest.raises(SettingsError) as caught:
        build_settings({"device-config-file": "/f"}, {}, read)
    assert caught.value.problems == (f"--device-config-file: {said}",)


def test_a_deployment_with_an_unknown_flag_is_told_the_nearest() -> None:
    with pytest.raises(click.NoSuchOption) as caught:
        command.make_context("scheduler", ["--resource-men=a.com/b"])
    assert "'--resource-mem'" in caught.value.format_message()
