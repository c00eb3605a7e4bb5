"""What the agent is told, by whom, and who wins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tessera.node.configuration import NO_FILE
from tessera.node.settings import (
    TABLE,
    AgentSettings,
    Configuration,
    DeviceIdStrategy,
    DeviceListStrategy,
    InventoryKind,
    Paths,
)
from tessera.services.settings_table import Group
from tessera.services.value_types import Address
from tessera.vendors.nvidia.backend import MigAllowance
from tests.support.agent import JSON, node_json, problems, told


def test_without_any_configuration_everything_has_its_default_and_that_is_said() -> None:
    found = told()
    expected = AgentSettings(node_name="n1", environ={"NODE_NAME": "n1"})
    assert found == Configuration(settings=expected, files=(JSON,), node_config="{}", warnings=(NO_FILE,))
    assert (found.settings.node.split_count, found.settings.node.memory_scaling) == (10, 1.0)
    assert (found.settings.node.core_scaling, found.settings.node.log_level) == (1.0, "")


# -- who wins

SHARING: list[tuple[str, str, dict[str, Any], str, Any]] = [
    ("device-split-count=3", "deviceSplitCount: 4", {"devicesplitcount": 5}, "split_count", (3, 4, 5)),
    ("device-memory-scaling=1.5", "deviceMemoryScaling: 2", {"devicememoryscaling": 3}, "memory_scaling", (1.5, 2, 3)),
    ("device-cores-scaling=1.5", "deviceCoreScaling: 2", {"devicecorescaling": 3}, "core_scaling", (1.5, 2, 3)),
]


@pytest.mark.parametrize(("flag", "section", "entry", "name", "values"), SHARING)
def test_for_sharing_the_nodes_own_json_wins_over_the_yaml_which_wins_over_flags(
    flag: str, section: str, entry: dict[str, Any], name: str, values: tuple[Any, Any, Any]
) -> None:
    yaml = f"nvidia: {{{section}, resourceCountName: nvidia.com/gpu}}"
    assert getattr(told(flag).settings.node, name) == values[0]
    assert getattr(told(flag, yaml=yaml).settings.node, name) == values[1]
    assert getattr(told(flag, yaml=yaml, json=node_json(**entry)).settings.node, name) == values[2]


ELSE: list[tuple[str, str, dict[str, str], str, str, tuple[Any, Any, Any]]] = [
    (
        "device-list-strategy=cdi-cri",
        "plugin: {deviceListStrategy: volume-mounts}",
        {"DEVICE_LIST_STRATEGY": "envvar,cdi-annotations"},
        "strategies",
        "plugin: {deviceListStrategy: [volume-mounts, envvar]}",
        (
            {DeviceListStrategy.CDI_CRI},
            {DeviceListStrategy.ENVVAR, DeviceListStrategy.CDI_ANNOTATIONS},
            {DeviceListStrategy.VOLUME_MOUNTS},
        ),
    ),
    (
        "device-id-strategy=uuid",
        "plugin: {deviceIDStrategy: index}",
        {"DEVICE_ID_STRATEGY": "index"},
        "id_strategy",
        "plugin: {deviceidstrategy: index}",
        (DeviceIdStrategy.UUID, DeviceIdStrategy.INDEX, DeviceIdStrategy.INDEX),
    ),
    (
        "pass-device-specs=false",
        "plugin: {passDeviceSpecs: true}",
        {"PASS_DEVICE_SPECS": "true"},
        "pass_device_specs",
        "plugin: {passDeviceSpecs: 'true'}",
        (False, True, True),
    ),
    (
        "fail-on-init-error=true",
        "failOnInitError: false",
        {"FAIL_ON_INIT_ERROR": "0"},
        "fail_on_init_error",
        "FailOnInitError: false",
        (True, False, False),
    ),
    (
        "cdi-annotation-prefix=a.b/",
        "plugin: {cdiAnnotationPrefix: c.d/}",
        {"CDI_ANNOTATION_PREFIX": "e.f/x-"},
        "cdi_annotation_prefix",
        "plugin: {cdiAnnotationPrefix: c.d/}",
        ("a.b/", "e.f/x-", "c.d/"),
    ),
    ("gds-enabled=false", "gdsEnabled: true", {"GDS_ENABLED": "t"}, "gds", "gdsEnabled: true", (False, True, True)),
    ("mofed-enabled=", "mofedEnabled: true", {"MOFED_ENABLED": "1"}, "mofed", "mofedEnabled: true", (None, True, True)),
]


@pytest.mark.parametrize(("flag", "section", "environ", "name", "spelled", "values"), ELSE)
def test_for_the_rest_a_flag_wins_over_its_variable_which_wins_over_the_yamls_flags(
    flag: str, section: str, environ: dict[str, str], name: str, spelled: str, values: tuple[Any, Any, Any]
) -> None:
    yaml = f"nvidia: {{deviceSplitCount: 4}}\nflags: {{{section}}}"
    if values[0] is not None:
        assert getattr(told(flag, yaml=yaml, environ=environ).settings, name) == values[0]
    else:
        assert problems(flag, yaml=yaml, environ=environ)
    assert getattr(told(yaml=yaml, environ=environ).settings, name) == values[1]
    assert getattr(told(yaml=yaml).settings, name) == values[2]
    assert getattr(told(yaml=f"nvidia: {{deviceSplitCount: 4}}\nflags: {{{spelled}}}").settings, name) is not None


def test_every_path_can_be_moved_and_follows_its_neighbours() -> None:
    found = told(
        "plugin-dir=/p",
        "hook-path=/h",
        "state-dir=/s",
        "cdi-dir=/c",
        "mps-dir=/m",
        "lock-dir=/l",
        "nvidia-driver-root=/d",
        "driver-root-ctr-path=/here",
        "nvidia-cdi-hook-path=/ctk",
        "pod-resources-socket=/r.sock",
    ).settings.paths
    assert found == Paths(
        plugins=Path("/p"),
        kubelet_socket=Path("/p/kubelet.sock"),
        pod_resources=Path("/r.sock"),
        hook=Path("/h"),
        lock=Path("/l"),
        state=Path("/s"),
        cdi=Path("/c"),
        mps=Path("/m"),
        dev_root=Path("/d"),
        driver_root=Path("/d"),
        driver_root_here=Path("/here"),
        cdi_hook=Path("/ctk"),
    )
    assert told("dev-root=/x", "nvidia-driver-root=/d").settings.paths.dev_root == Path("/x")
    assert told(HOOK_PATH="/opt").settings.paths.hook == Path("/opt")
    assert told(CONTAINER_DRIVER_ROOT="/a").settings.paths.driver_root_here == Path("/a")
    assert told(DRIVER_ROOT_CTR_PATH="/b", CONTAINER_DRIVER_ROOT="/a").settings.paths.driver_root_here == Path("/b")


def test_the_version_of_the_library_is_part_of_a_file_name() -> None:
    assert told("library-version=v2.10.0").settings.library_version == "v2.10.0"
    assert told("library-version=").settings.library_version == ""


def test_an_empty_socket_is_none() -> None:
    found = told("kubelet-socket=", "pod-resources-socket=").settings.paths
    assert (found.kubelet_socket, found.pod_resources) == (None, None)
    assert told(KUBELET_SOCKET="/k").settings.paths.kubelet_socket == Path("/k")


def test_the_section_says_what_the_library_and_the_resource_are_told() -> None:
    yaml = """
nvidia:
  resourceCountName: example.com/gpu
  disableCoreLimit: true
  libCudaLogLevel: 1
  deviceMemoryScaling: 1.5
  migProfileAllowlist:
    - models: [A30, A100]
      profiles: [1g.6gb, 2g.12gb+me]
"""
    found = told("resource-name=x.com/y", "disable-core-limit=false", yaml=yaml).settings
    assert (found.resource, found.disable_core_limit) == ("example.com/gpu", True)
    assert (found.node.log_level, found.node.memory_scaling) == ("1", 1.5)
    assert found.mig_allowances == (MigAllowance(models=("A30", "A100"), profiles=("1g.6gb", "2g.12gb+me")),)


@pytest.mark.parametrize(
    ("yaml", "flag", "expected"),
    [
        (None, "disable-core-limit=true", True),
        ("nvidia: {disableCoreLimit: false, deviceSplitCount: 1}", "disable-core-limit=true", False),
        ("nvidia: {deviceSplitCount: 1}", "disable-core-limit=true", True),
        ("nvidia: {disableCoreLimit: true}", "disable-core-limit=false", True),
    ],
)
def test_the_core_limit_is_off_where_the_file_says_so_or_else_the_flag(
    yaml: str | None, flag: str, expected: bool
) -> None:
    assert told(flag, yaml=yaml).settings.disable_core_limit is expected


@pytest.mark.parametrize(
    ("yaml", "flags", "expected"),
    [
        (None, (), "nvidia.com/gpu"),
        (None, ("resource-name=x.com/y",), "x.com/y"),
        (None, ("resource-name=",), "nvidia.com/gpu"),
        ("nvidia: {deviceSplitCount: 1}", ("resource-name=x.com/y",), "x.com/y"),
    ],
)
def test_the_resource_has_a_name_in_any_case(yaml: str | None, flags: tuple[str, ...], expected: str) -> None:
    assert told(*flags, yaml=yaml).settings.resource == expected


@pytest.mark.parametrize(
    ("arguments", "environ", "name"),
    [
        ((), {}, "n1"),
        (("node-name=n2",), {}, "n2"),
        ((), {"NODE_NAME": "", "NodeName": "n3"}, "n3"),
        ((), {"NodeName": "n3"}, "n1"),
    ],
)
def test_the_node_is_named_by_flag_or_variable(arguments: tuple[str, ...], environ: dict[str, str], name: str) -> None:
    assert told(*arguments, environ=environ).settings.node_name == name


@pytest.mark.parametrize(
    ("arguments", "environ", "on"),
    [
        ((), {"ENABLE_TOPOLOGY_SCORE": "true"}, True),
        ((), {"ENABLE_TOPOLOGY_SCORE": "True"}, False),
        ((), {"ENABLE_TOPOLOGY_SCORE": "yes"}, False),
        ((), {}, False),
        (("enable-topology-score=1",), {}, True),
        (("enable-topology-score=false",), {"ENABLE_TOPOLOGY_SCORE": "true"}, False),
    ],
)
def test_pair_scores_are_on_for_the_word_true(arguments: tuple[str, ...], environ: dict[str, str], on: bool) -> None:
    assert told(*arguments, environ=environ).settings.topology_scores is on


def test_which_faults_count_comes_from_the_two_variables() -> None:
    found = told(DP_DISABLE_HEALTHCHECKS="79, soon", DP_ENABLE_HEALTHCHECKS="31")
    assert (found.settings.health.ignored_xids, found.settings.health.fatal_xids) == (frozenset({79}), frozenset({31}))
    assert found.settings.health.health_checks
    assert any('"soon" is neither a number nor all' in text for text in found.warnings)
    assert not told(DP_DISABLE_HEALTHCHECKS="all").settings.health.health_checks
    only = told(DP_DISABLE_HEALTHCHECKS="all", DP_ENABLE_HEALTHCHECKS="48").settings.health
    assert (only.health_checks, only.every_xid_is_ignored, only.fatal_xids) == (True, True, frozenset({48}))


# -- the cards


@pytest.mark.parametrize(
    ("arguments", "environ", "kind", "file"),
    [
        ((), {}, InventoryKind.AUTO, None),
        (("inventory=null",), {}, InventoryKind.NULL, None),
        (("simulate=cards.yaml",), {}, InventoryKind.SIMULATED, Path("cards.yaml")),
        (("simulate=c", "inventory=simulated"), {}, InventoryKind.SIMULATED, Path("c")),
        ((), {"DEVICE_DISCOVERY_STRATEGY": "nvml"}, InventoryKind.NVML, None),
        (("inventory=auto",), {"DEVICE_DISCOVERY_STRATEGY": "nvml"}, InventoryKind.AUTO, None),
    ],
)
def test_who_knows_the_cards(
    arguments: tuple[str, ...], environ: dict[str, str], kind: InventoryKind, file: Path | None
) -> None:
    found = told(*arguments, environ=environ)
    assert (found.inventory, found.simulated) == (kind, file)
    assert found.settings.has_real_cards is (kind is not InventoryKind.SIMULATED)


# -- the process


def test_where_to_listen_and_whom_to_ask() -> None:
    found = told("kubeconfig=~/k", "context=c", "metrics-bind-address=127.0.0.1:0", HOME="/home/me")
    assert (found.kubeconfig, found.context) == ("/home/me/k", "c")
    assert found.metrics == Address("127.0.0.1", 0)
    assert told("metrics-bind-address=none").metrics is None
    assert told("kubeconfig=/k").kubeconfig == "/k"


def test_every_flag_is_known_by_the_reader_of_its_value() -> None:
    """Nonsense behind any flag that has an effect is noticed, unless any text will do."""
    free = {"kubeconfig", "context", "config-file", "node-config-file", "simulate"}
    for row in TABLE:
        if row.group is not Group.IGNORED and row.flag not in free:
            assert any(text.startswith(f"--{row.flag}:") for text in problems(f"{row.flag}=~?")), row.flag
