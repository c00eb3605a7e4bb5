from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from tessera.cli.grouped import wants_print
from tessera.scheduler.configuration import build_settings
from tessera.scheduler.settings import (
    TABLE,
    Leadership,
    Listeners,
    PrivilegedMode,
    SelfManaged,
    Settings,
    TlsFiles,
)
from tessera.services.common_settings import LogFormat, LogLevel, LogOptions, read_log_options
from tessera.services.settings_table import Flags, Group, SettingsError, Sources, given_in
from tessera.services.value_types import Address, FlagKind
from tessera.vendors.base import Switches
from tessera.vendors.pod_reader import PolicyDefaults

POD = {"POD_NAMESPACE": "gpu", "POD_NAME": "sched-0", "HOSTNAME": "sched-0"}
FILES = {"cert_file": "/tls/tls.crt", "key_file": "/tls/tls.key"}
OWN = SelfManaged("gpu", "tessera-scheduler-tls", "tessera-scheduler", "tessera-webhook")
LEASE = {"leader-elect": "true", "leader-elect-resource-name": "hami-scheduler"}


def no_file(path: str) -> str:
    raise FileNotFoundError(2, "No such file or directory", path)


def settings(flags: Flags, environ: Mapping[str, str] | None = None) -> Settings:
    return build_settings(flags, environ or {}, no_file)


def problems(flags: Flags, environ: Mapping[str, str] | None = None) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        settings(flags, environ)
    return list(caught.value.problems)


def test_nothing_given_means_the_defaults_without_a_webhook() -> None:
    assert settings({}) == Settings(listeners=Listeners(webhook=None))


def test_in_a_cluster_the_webhook_has_certificates_of_our_own() -> None:
    assert settings({}, POD) == Settings(tls=OWN, defrag=replace(Settings().defrag, lease_namespace="gpu"))


@pytest.mark.parametrize(
    ("flags", "name", "value"),
    [
        ({"node-scheduler-policy": "spread"}, "policies", PolicyDefaults("spread", "spread")),
        ({"gpu-scheduler-policy": "mutex,numa"}, "policies", PolicyDefaults("binpack", "mutex,numa")),
        ({"gpu-scheduler-policy": "topology-aware"}, "policies", PolicyDefaults("binpack", "topology-aware")),
        ({"node-scheduler-policy": "", "gpu-scheduler-policy": ""}, "policies", PolicyDefaults()),
        ({"enable-ascend": "true"}, "switches", Switches(ascend=True)),
        ({"enable-iluvatar": "1"}, "switches", Switches(iluvatar=True)),
        ({"node-label-selector": ("gpu=on", "zone=a,b=c")}, "node_selector", {"gpu": "on", "zone": "a", "b": "c"}),
        ({"kubeconfig": ""}, "kubeconfig", None),
        ({"kube-qps": "2.5"}, "kube_qps", 2.5),
        ({"kube-qps": "2.5"}, "kube_burst", 10),
        ({"kube-qps": "0"}, "kube_qps", None),
        ({"kube-qps": "-1"}, "kube_burst", None),
        ({"kube-qps": "5", "kube-burst": "20"}, "kube_burst", 20),
        ({"kube-timeout": "7"}, "kube_timeout", 7.0),
        ({"kube-timeout": "1m"}, "kube_timeout", 60.0),
        ({"kube-timeout": "0"}, "kube_timeout", 30.0),
        ({"turn-timeout": "0"}, "turn_s", 0.0),
        ({"trusted-user": ("a", "system:serviceaccount:x:y")}, "trusted_users", {"a", "system:serviceaccount:x:y"}),
        ({"trusted-user": "a,b"}, "trusted_users", {"a,b"}),
        ({"device-config-file": ""}, "device_sections", None),
        (
            {"debug": "true", "profiling": "true", "node-lock-retry-timeout": "28s", "vmodule": "x=3"},
            "privileged",
            PrivilegedMode.IGNORE,
        ),
    ],
)
def test_a_flag_sets_its_setting(flags: Flags, name: str, value: object) -> None:
    assert getattr(settings(flags), name) == value


@pytest.mark.parametrize(
    ("flags", "environ", "lease"),
    [
        (LEASE | {"leader-elect-resource-namespace": "kube-system"}, {"HOSTNAME": "h"}, ("kube-system", "h")),
        (LEASE, POD, ("gpu", "sched-0")),
        (LEASE, {"POD_NAMESPACE": "gpu", "POD_NAME": "p"}, ("gpu", "p")),
        (LEASE | {"leader-elect-resource-namespace": ""}, {**POD, "HOSTNAME": "node-1"}, ("gpu", "node-1")),
    ],
)
def test_leader_election_follows_the_lease_of_the_scheduler_on_this_host(
    flags: Flags, environ: Mapping[str, str], lease: tuple[str, str]
) -> None:
    namespace, identity = lease
    assert settings(flags, environ).leadership == Leadership(namespace, "hami-scheduler", identity)


def test_without_leader_election_a_named_lease_is_not_followed() -> None:
    assert settings({**LEASE, "leader-elect": "false"}, POD).leadership is None


def at(text: str) -> Address:
    host, _, port = text.rpartition(":")
    return Address(host, int(port))


@pytest.mark.parametrize(
    ("flags", "environ", "listeners", "tls"),
    [
        (FILES, {}, Listeners(), TlsFiles("/tls/tls.crt", "/tls/tls.key")),
        (FILES, POD, Listeners(), TlsFiles("/tls/tls.crt", "/tls/tls.key")),
        ({"cert_file": "", "key_file": ""}, POD, Listeners(), OWN),
        ({"tls-secret": "ns/n"}, {}, Listeners(), SelfManaged("ns", "n", OWN.service, OWN.webhook_configuration)),
        ({"tls-secret": "n"}, POD, Listeners(), SelfManaged("gpu", "n", OWN.service, OWN.webhook_configuration)),
        (
            {"webhook-service": "s", "webhook-configuration": "w"},
            POD,
            Listeners(),
            SelfManaged("gpu", OWN.secret, "s", "w"),
        ),
        ({"webhook-bind": "none"}, POD, Listeners(webhook=None), None),
        ({"webhook-bind": "none", "extender-tls": "true"}, POD, Listeners(webhook=None, extender_tls=True), OWN),
        (
            {"webhook-bind": ":1", "extender-bind": ":2", "metrics-bind-address": "none"},
            POD,
            Listeners(extender=at(":2"), webhook=at(":1"), metrics=None),
            OWN,
        ),
        ({"extender-bind": "none", "extender-tls": "true"}, {}, Listeners(None, None, extender_tls=True), None),
        (
            FILES | {"extender-tls": "true", "client-ca-file": "/ca"},
            {},
            Listeners(extender_tls=True, client_ca="/ca"),
            TlsFiles("/tls/tls.crt", "/tls/tls.key"),
        ),
        # the dashboard needs a certificate, and asks for one of our own where it can
        (
            {"webhook-bind": "none", "dashboard-bind": ":9444"},
            POD,
            Listeners(webhook=None, dashboard=at(":9444")),
            OWN,
        ),
        (
            FILES | {"http_bind": ":443", "dashboard-bind": ":9444"},
            {},
            Listeners(None, None, single=at(":443"), dashboard=at(":9444")),
            TlsFiles("/tls/tls.crt", "/tls/tls.key"),
        ),
        # HAMi's one listener
        ({"http_bind": "0.0.0.0:80"}, POD, Listeners(None, None, single=at("0.0.0.0:80")), None),
        (
            FILES | {"http_bind": ":443"},
            POD,
            Listeners(None, None, single=at(":443")),
            TlsFiles("/tls/tls.crt", "/tls/tls.key"),
        ),
        (
            FILES | {"http_bind": ":443", "client-ca-file": "/ca"},
            POD,
            Listeners(None, None, single=at(":443"), client_ca="/ca"),
            TlsFiles("/tls/tls.crt", "/tls/tls.key"),
        ),
        (
            {"http_bind": ":443", "tls-secret": "ns/n", "webhook-service": "s"},
            {},
            Listeners(None, None, single=at(":443")),
            SelfManaged("ns", "n", "s", OWN.webhook_configuration),
        ),
        # port 0 is another one each time, and two hosts can share a port
        (
            {"extender-bind": "127.0.0.1:0", "metrics-bind-address": ":0"},
            {},
            Listeners(at("127.0.0.1:0"), None, at(":0")),
            None,
        ),
        (
            {"extender-bind": "127.0.0.1:80", "metrics-bind-address": "10.0.0.1:80"},
            {},
            Listeners(at("127.0.0.1:80"), None, at("10.0.0.1:80")),
            None,
        ),
    ],
)
def test_listeners_and_certificates_go_together(
    flags: Flags, environ: Mapping[str, str], listeners: Listeners, tls: TlsFiles | SelfManaged | None
) -> None:
    found = settings(flags, environ)
    assert (found.listeners, found.tls) == (listeners, tls)


@pytest.mark.parametrize(
    ("flags", "environ", "said"),
    [
        ({}, {"HAMI_NODELOCK_EXPIRE": "5 minutes"}, ["HAMI_NODELOCK_EXPIRE: expected a duration"]),
        ({"turn-timeout": "5m"}, {}, ["--turn-timeout: a bind must not wait longer than its reservation"]),
        ({"node-lock-retry-timeout": "28"}, {}, ["--node-lock-retry-timeout: expected a duration"]),
        ({"trusted-user": ("a", "")}, {}, ["--trusted-user: expected a text"]),
        ({"v": "=high"}, {}, ['--v: expected a whole number, found "high"']),
        (
            {"leader-elect": "true"},
            {},
            [
                "--leader-elect: needs --leader-elect-resource-name",
                "--leader-elect: needs --leader-elect-resource-namespace",
                "--leader-elect: needs the host's name",
            ],
        ),
        ({"dra-convert": "true"}, {}, ["--dra-convert: needs --dra"]),
        ({"cert_file": "/c"}, POD, ["--cert_file: is given without --key_file"]),
        ({"key_file": "/k"}, POD, ["--key_file: is given without --cert_file"]),
        (FILES | {"tls-secret": "a/b"}, {}, ["--tls-secret: makes certificates of our own and excludes --cert_file"]),
        (FILES | {"webhook-service": "s"}, {}, ["--webhook-service: is for certificates of our own"]),
        ({"webhook-configuration": "w"}, {}, ["--webhook-configuration: is for certificates of our own"]),
        (
            {"tls-secret": "n"},
            {},
            ['--tls-secret: expected NAMESPACE/NAME, or NAME where POD_NAMESPACE is set, found "n"'],
        ),
        ({"tls-secret": "a/B"}, {}, ["--tls-secret: expected NAMESPACE/NAME"]),
        ({"tls-secret": "a/b/c"}, {}, ["--tls-secret: expected NAMESPACE/NAME"]),
        ({"webhook-bind": ":9443"}, {}, ["--webhook-bind: needs a certificate"]),
        ({"extender-tls": "true"}, {}, ["--extender-tls: needs a certificate"]),
        ({"dashboard-bind": ":9444"}, {}, ["--dashboard-bind: needs a certificate"]),
        ({"dashboard-bind": ":9395"}, POD, ["--dashboard-bind: :9395 is taken by --metrics-bind-address :9395"]),
        (
            {"client-ca-file": "/ca"},
            POD,
            ["--client-ca-file: client certificates are only asked for over TLS: give --extender-tls"],
        ),
        (
            {"client-ca-file": "/ca", "http_bind": ":80"},
            POD,
            ["--client-ca-file: client certificates are only asked for over TLS: give --cert_file"],
        ),
        (
            {"http_bind": ":80", "webhook-bind": ":81"},
            {},
            ["--http_bind: is one listener for everything and excludes --webhook-bind"],
        ),
        (
            {"http_bind": ":80", "extender-tls": "true"},
            {},
            ["--http_bind: is one listener for everything and excludes --extender-tls"],
        ),
        ({"http_bind": "none"}, {}, ["--http_bind: expected HOST:PORT or :PORT"]),
        ({"http_bind": ":9395"}, {}, ["--metrics-bind-address: :9395 is taken by --http_bind :9395"]),
        (
            {"extender-bind": "127.0.0.1:9443"},
            POD,
            ["--webhook-bind: :9443 is taken by --extender-bind 127.0.0.1:9443"],
        ),
        ({"device-config-file": "/nope"}, {}, ["--device-config-file: cannot read /nope: No such file or directory"]),
    ],
)
def test_a_bad_configuration_says_what_is_wrong(flags: Flags, environ: Mapping[str, str], said: list[str]) -> None:
    found = problems(flags, environ)
    assert len(found) == len(said)
    for problem, expected in zip(found, said, strict=True):
        assert problem.startswith(expected)


def test_all_problems_come_at_once() -> None:
    flags: dict[str, Any] = {"kube-qps": "x", "node-lock": "y", "resource-name": "gpu", "device-config-file": "/nope"}
    found = problems(flags, {"HAMI_NODELOCK_EXPIRE": "z"})
    assert {text.partition(":")[0] for text in found} == {
        "--kube-qps",
        "--node-lock",
        "--resource-name",
        "--device-config-file",
        "HAMI_NODELOCK_EXPIRE",
    }


@pytest.mark.parametrize(
    ("flags", "options"),
    [
        ({}, LogOptions()),
        ({"v": "=4"}, LogOptions()),
        ({"v": "5"}, LogOptions(level=LogLevel.DEBUG)),
        ({"v": "10", "log-level": "error"}, LogOptions(level=LogLevel.ERROR)),
        ({"log-format": "json"}, LogOptions(format=LogFormat.JSON)),
        ({"log-format": "xml", "v": "x"}, LogOptions()),
    ],
)
def test_verbosity_of_hami_and_our_own_flags_set_the_log(flags: Flags, options: LogOptions) -> None:
    assert read_log_options(Sources(flags, {})) == options


def test_flags_can_be_listed_by_their_group() -> None:
    flags = {"debug": "true", "logtostderr": "true", "kube-qps": "5", "resource-name": "a.b/c"}
    assert given_in(Group.IGNORED, TABLE, flags) == ["--debug", "--logtostderr"]
    assert given_in(Group.OVERRIDES, TABLE, flags) == ["--resource-name"]


@pytest.mark.parametrize(("text", "wanted"), [("true", True), ("false", False), ("?", False)])
def test_printing_is_asked_for_by_a_switch(text: str, wanted: bool) -> None:
    assert wants_print({"print-config": text}) is wanted


def test_every_flag_is_known_by_the_reader_of_its_value() -> None:
    """Nonsense behind any flag that has an effect is noticed, unless any text will do."""
    free = {"kubeconfig", "context", "client-ca-file", "cert_file", "key_file", "leader-elect-resource-name"}
    free |= {"leader-elect-resource-namespace", "device-config-file", "scheduler-name", "trusted-user", "journal-file"}
    for row in TABLE:
        if row.group is not Group.IGNORED and row.flag not in free:
            value = ("~?",) if row.type.kind in (FlagKind.LIST, FlagKind.SET) else "~?"
            assert any(f"--{row.flag}:" in text for text in problems({row.flag: value}, POD)), row.flag
