"""The configuration in words: complete, under the names by which it is set, and short at start."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import yaml

from tessera.node.configuration import changes, describe, print_configuration
from tessera.node.health.xids import HealthRules
from tessera.node.settings import (
    TABLE,
    AgentSettings,
    Configuration,
    DeviceListStrategy,
    InventoryKind,
    Paths,
)
from tessera.services.settings_table import Group
from tessera.vendors.nvidia.backend import MigAllowance
from tessera.wire.node_config import DeviceFilter, NodeSettings

USUAL = Configuration(settings=AgentSettings(node_name="n1"))
UNUSUAL = Configuration(
    settings=AgentSettings(
        node_name="n1",
        node=NodeSettings(mode="mig", filtered=DeviceFilter(index=(0,))),
        strategies=frozenset({DeviceListStrategy.CDI_CRI, DeviceListStrategy.ENVVAR}),
        mig_allowances=(MigAllowance(models=("A30",), profiles=("1g.6gb",)),),
        health=HealthRules(fatal_xids=frozenset({48, 31}), every_xid_is_ignored=True),
        paths=Paths(kubelet_socket=None),
    ),
    inventory=InventoryKind.SIMULATED,
    simulated=Path("cards.yaml"),
    metrics=None,
)


def test_everything_is_printed_under_the_name_that_sets_it() -> None:
    found = yaml.safe_load(print_configuration(UNUSUAL))
    (entry,) = found["nodeconfig"]
    assert (entry["name"], entry["operatingmode"], entry["filterdevices"]) == ("n1", "mig", {"uuid": [], "index": [0]})
    flags = found["device-plugin"]
    assert (flags["device-list-strategy"], flags["metrics-bind-address"]) == ("cdi-cri,envvar", "none")
    assert (flags["inventory"], flags["simulate"], flags["kubelet-socket"]) == ("simulated", "cards.yaml", "")
    assert (flags["DP_DISABLE_HEALTHCHECKS"], flags["DP_ENABLE_HEALTHCHECKS"]) == ("all", "31,48")
    assert found["migProfileAllowlist"] == [{"models": ["A30"], "profiles": ["1g.6gb"]}]


def test_at_start_only_what_is_unusual_is_said() -> None:
    assert changes(USUAL) == {"node-name": "n1"}
    assert set(changes(UNUSUAL)) == {
        "node-name",
        "inventory",
        "simulate",
        "operatingmode",
        "filterdevices",
        "device-list-strategy",
        "kubelet-socket",
        "metrics-bind-address",
        "DP_DISABLE_HEALTHCHECKS",
        "DP_ENABLE_HEALTHCHECKS",
    }


def test_after_a_reload_only_what_changed_is_said() -> None:
    changed = replace(UNUSUAL, settings=replace(UNUSUAL.settings, gds=True, node=NodeSettings(mode="mps")))
    assert changes(changed, since=UNUSUAL) == {
        "gds-enabled": True,
        "operatingmode": "mps",
        "filterdevices": {"uuid": [], "index": []},
    }
    assert changes(UNUSUAL, since=UNUSUAL) == {}


def test_no_flag_is_forgotten() -> None:
    elsewhere = {
        "config-file": "named in what it says",
        "node-config-file": "named in what it says",
        "device-discovery-strategy": "printed as inventory",
        "mig-strategy": "of the node",
        "device-split-count": "of the node",
        "device-memory-scaling": "of the node",
        "device-cores-scaling": "of the node",
        "log-format": "of the process",
        "log-level": "of the process",
        "v": "of the process",
        "print-config": "of the process",
    }
    wanted = {row.flag for row in TABLE if row.group is not Group.IGNORED}
    assert wanted - elsewhere.keys() == {name for name in describe(USUAL) if not name.isupper()}
