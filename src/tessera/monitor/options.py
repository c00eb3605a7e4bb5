"""From flags and environment to `Settings`: a flag wins over its variable, which wins over the default. Pure.

Everything that is wrong comes in one `OptionsError`, and nothing is started; only a bad HAMI_RESYNC_INTERVAL is a
warning, as it is for HAMi.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from tessera.monitor.flags import FLAGS
from tessera.monitor.settings import DEFAULT_ADDRESS, DRIVER_ROOT, RESYNC_S, Settings
from tessera.node.configuration.values import folder_of
from tessera.services import flag_values as read
from tessera.services.durations import parse_span
from tessera.services.logs import LogFormat, LogLevel, LogOptions
from tessera.services.option_sources import Flags, Given, OptionsError

__all__ = ["Flags", "OptionsError", "build_settings", "log_options"]

DEBUG_VERBOSITY = 5
"""HAMi's chart runs at 4, so that it must not mean debug"""
RESYNC = "HAMI_RESYNC_INTERVAL"

T = TypeVar("T")
D = TypeVar("D")

_VARIABLES = {flag.name: flag.env for flag in FLAGS}


def build_settings(flags: Flags, environ: Mapping[str, str]) -> Settings:
    """Raises OptionsError with all problems."""
    given = Given(flags, environ)
    node = _read(given, "node-name", read.dns_name_of, "")
    base = _read(given, "hook-path", folder_of, None)
    for name in ("node-name", "hook-path"):
        if name not in given and not any(map(environ.get, _VARIABLES[name])):
            given.blame(name, f"is needed, or variable {_VARIABLES[name][0]}")
    resync, warnings = _resync(given)
    settings = Settings(
        node_name=node,
        base=base or Path("/"),
        metrics=given.read("metrics-bind-address", read.some_address_of, DEFAULT_ADDRESS),
        legacy_metrics=given.read("legacy-metrics", read.switch_of, False),
        resync=resync,
        driver_root=_read(given, "driver-root-ctr-path", folder_of, DRIVER_ROOT),
        kubeconfig=given.read("kubeconfig", read.text_of, "") or None,
        context=given.read("context", read.text_of, "") or None,
        warnings=warnings,
    )
    _log_options(given)
    given.check()
    return settings


def log_options(flags: Flags) -> LogOptions:
    """How to log. `build_settings` has said what is wrong with these flags; here that counts as not given."""
    return _log_options(Given(flags, {}))


def _read(given: Given, name: str, parse: Callable[[str], T], default: D) -> T | D:
    if name in given:
        return given.read(name, parse, default)
    return given.from_environment(_VARIABLES[name][0], parse, default)


def _resync(given: Given) -> tuple[float, tuple[str, ...]]:
    text = given.environ.get(RESYNC, "")
    if "resync-interval" in given or not text:
        return given.read("resync-interval", parse_span, RESYNC_S), ()
    try:
        return parse_span(text), ()
    except ValueError as error:
        return RESYNC_S, (f"{RESYNC}: {error}; 5m holds",)


def _log_options(given: Given) -> LogOptions:
    verbosity = given.read("v", lambda text: read.whole_of(text.removeprefix("=")), 0)
    level = LogLevel.DEBUG if verbosity >= DEBUG_VERBOSITY else LogLevel.INFO
    return LogOptions(
        format=given.read("log-format", read.one_of(LogFormat), None),
        level=given.read("log-level", read.one_of(LogLevel), level),
    )
