"""From flags, environment and files to `Settings`: the one place that knows what `tessera scheduler` is told and how.

A flag wins over the environment, which wins over the default; flags of HAMi v2.4 win over the device configuration.
Pure: files come through `read_file`. Everything that is wrong comes in one `OptionsError`, and nothing is started.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from tessera.core.policies import POLICIES
from tessera.scheduler.configuration.device_sections import ReadFile, device_sections, names_ascend
from tessera.scheduler.configuration.flags import FLAGS, IGNORED_DURATION, Group
from tessera.scheduler.configuration.listeners import listeners_and_tls
from tessera.scheduler.settings import Leadership, NodeLockMode, PrivilegedMode, Settings
from tessera.services import flag_values as read
from tessera.services.durations import parse_duration, parse_span
from tessera.services.logs import LogFormat, LogLevel, LogOptions
from tessera.services.option_sources import Flags, Given, OptionsError
from tessera.vendors.base import Switches
from tessera.vendors.pod_reader import PolicyDefaults

N = TypeVar("N", int, float)

__all__ = ["Flags", "OptionsError", "ReadFile", "build_settings", "flags_of", "log_options", "wants_print"]

NODE_POLICIES = tuple(name for name, policy in POLICIES.items() if policy.nodes)

DEFAULT_BURST = 10
"""requests, as in HAMi; only where --kube-qps sets a limit"""

DEBUG_VERBOSITY = 5
"""HAMi's chart runs at 4, so that it must not mean debug"""

_DEFAULT = Settings()


def build_settings(flags: Flags, environ: Mapping[str, str], read_file: ReadFile) -> Settings:
    """What the service is told. Raises OptionsError with all problems."""
    given = Given(flags, environ)
    switches = Switches(
        ascend=given.read("enable-ascend", read.switch_of, names_ascend(given)),
        iluvatar=given.read("enable-iluvatar", read.switch_of, False),
    )
    file = given.read("device-config-file", read.text_of, "")
    listeners, tls = listeners_and_tls(given)
    qps = _limit(given.read("kube-qps", read.number_of, None))
    burst = _limit(given.read("kube-burst", read.whole_of, DEFAULT_BURST if qps else None))
    settings = Settings(
        scheduler_name=given.read("scheduler-name", read.some_text, _DEFAULT.scheduler_name),
        force_overwrite_default_scheduler=given.read("force-overwrite-default-scheduler", read.switch_of, True),
        policies=_policies(given),
        switches=switches,
        device_sections=device_sections(given, file=file, switches=switches, read_file=read_file),
        device_config_file=file,
        node_selector=given.read("node-label-selector", read.labels_of, {}),
        listeners=listeners,
        tls=tls,
        leadership=_leadership(given),
        kubeconfig=_home(given.read("kubeconfig", read.text_of, ""), environ) or None,
        context=given.read("context", read.text_of, "") or None,
        kube_qps=qps,
        kube_burst=burst,
        kube_timeout=_limit(given.read("kube-timeout", read.seconds_of, None)) or _DEFAULT.kube_timeout,
        reservation_seconds=given.read("reservation-timeout", parse_span, _DEFAULT.reservation_seconds),
        node_lock=given.read("node-lock", read.one_of(NodeLockMode), _DEFAULT.node_lock),
        node_lock_seconds=_node_lock_seconds(given),
        turn_seconds=given.read("turn-timeout", parse_duration, _DEFAULT.turn_seconds),
        privileged=given.read("privileged", read.one_of(PrivilegedMode), _DEFAULT.privileged),
        injects_identity=given.read("inject-identity", read.switch_of, _DEFAULT.injects_identity),
        hook_path=given.read("hook-path", read.directory_of, _DEFAULT.hook_path),
        allow_disable_control=given.read("allow-disable-control", read.switch_of, False),
        legacy_metrics=given.read("legacy-metrics", read.switch_of, False),
        trusted_users=frozenset(given.read_each("trusted-user", read.some_text)),
        grace_seconds=given.read("grace-period", parse_duration, _DEFAULT.grace_seconds),
    )
    if settings.turn_seconds >= settings.reservation_seconds:
        given.blame("turn-timeout", "a bind must not wait longer than its reservation lasts (--reservation-timeout)")
    given.read(IGNORED_DURATION, parse_duration, 0.0)
    given.read("print-config", read.switch_of, False)
    _log_options(given)
    given.check()
    return settings


def log_options(flags: Flags) -> LogOptions:
    """How to log. `build_settings` has said what is wrong with these flags; here that counts as not given."""
    return _log_options(Given(flags, {}))


def wants_print(flags: Flags) -> bool:
    """Whether the configuration is only to be printed."""
    return Given(flags, {}).read("print-config", read.switch_of, False)


def flags_of(group: Group, flags: Flags) -> list[str]:
    """The flags of a group that were given."""
    return [f"--{flag.name}" for flag in FLAGS if flag.group is group and flag.name in flags]


def _log_options(given: Given) -> LogOptions:
    verbosity = given.read("v", lambda text: read.whole_of(text.removeprefix("=")), 0)
    level = LogLevel.DEBUG if verbosity >= DEBUG_VERBOSITY else LogLevel.INFO
    return LogOptions(
        format=given.read("log-format", read.one_of(LogFormat), None),
        level=given.read("log-level", read.one_of(LogLevel), level),
    )


def _policies(given: Given) -> PolicyDefaults:
    default = PolicyDefaults()
    node = given.read("node-scheduler-policy", read.words_of(("", *NODE_POLICIES), several=False), "")
    device = given.read("gpu-scheduler-policy", read.words_of(("", *POLICIES), several=True), "")
    # A chart value that was emptied means the default, as it does in HAMi.
    return PolicyDefaults(node=node or default.node, device=device or default.device)


def _leadership(given: Given) -> Leadership | None:
    wanted = given.read("leader-elect", read.switch_of, False)
    name = given.read("leader-elect-resource-name", read.text_of, "")
    namespace = given.read("leader-elect-resource-namespace", read.text_of, "")
    namespace = namespace or given.environ.get("POD_NAMESPACE", "")
    identity = given.environ.get("HOSTNAME") or given.environ.get("POD_NAME", "")
    if not wanted:
        return None
    if not name:
        given.blame("leader-elect", "needs --leader-elect-resource-name, the Lease of the kube-scheduler beside it")
    if not namespace:
        given.blame("leader-elect", "needs --leader-elect-resource-namespace where POD_NAMESPACE is not set")
    if not identity:
        given.blame("leader-elect", "needs the host's name in HOSTNAME, to know its kube-scheduler by")
    return Leadership(namespace, name, identity)


def _node_lock_seconds(given: Given) -> float:
    if "node-lock-timeout" in given:
        return given.read("node-lock-timeout", parse_span, _DEFAULT.node_lock_seconds)
    return given.from_environment("HAMI_NODELOCK_EXPIRE", parse_span, _DEFAULT.node_lock_seconds)


def _limit(value: N | None) -> N | None:
    """A limit; 0 and less is none."""
    return value if value is not None and value > 0 else None


def _home(path: str, environ: Mapping[str, str]) -> str:
    """`--kubeconfig=~/file` reaches us as it is written: no shell looks behind the equals sign."""
    home = environ.get("HOME", "")
    return f"{home}{path[1:]}" if home and (path == "~" or path.startswith("~/")) else path
