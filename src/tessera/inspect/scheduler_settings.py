"""Builds the scheduler's `Settings` from what is known of its flags and files, with the scheduler's own parser.

Flags that do not affect placement (addresses, certificates, leases) are left out: they could only fail here. If the
flags are unknown, every vendor is switched on, and claims are read: what is not there changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from tessera.inspect.state import InspectionError, Setup
from tessera.scheduler.configuration import build_settings
from tessera.scheduler.settings import TABLE, Settings
from tessera.services.settings_table import Group, SettingsError
from tessera.services.value_types import FlagKind

DEVICE_CONFIG = "device-config-file"

_ADMISSION = ("scheduler-name", "force-overwrite-default-scheduler", "privileged", "inject-identity", "dra-convert")
_PLACEMENT = (Group.PLACEMENT, Group.DEVICES, Group.OVERRIDES)
PLACEMENT_FLAGS = frozenset(row.flag for row in TABLE if row.group in _PLACEMENT or row.flag in _ADMISSION)
"""flags that affect placement or admission, by first name"""

_NAMES = {name: row for row in TABLE for name in row.names}

ASSUMED_FLAGS = {"enable-ascend": "true", "enable-iluvatar": "true", "dra": "true"}
"""what is assumed if the flags are unknown"""


def build_offline_settings(setup: Setup) -> Settings:
    """Raises InspectionError if the scheduler itself would not start with this setup."""
    flags = dict(ASSUMED_FLAGS if setup.flags is None else setup.flags)
    flags.pop(DEVICE_CONFIG, None)
    if setup.device_config is not None:
        flags[DEVICE_CONFIG] = setup.device_config_from
    try:
        return build_settings(flags, {}, lambda _path: setup.device_config or "")
    except SettingsError as error:
        raise InspectionError(
            f"the scheduler's configuration is invalid: {error}\nUse another one with --device-config-file FILE"
        ) from error


def select_placement_flags(arguments: Sequence[str]) -> dict[str, str | tuple[str, ...]]:
    """The flags of a command line that affect placement, by first name. All others are ignored."""
    found: dict[str, str | tuple[str, ...]] = {}
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.lstrip("-").partition("=")
        flag = _NAMES.get(name) if word.startswith("-") else None
        if flag is None:
            continue
        if not equals:
            value = "true" if flag.type.kind is FlagKind.SWITCH else (rest.pop(0) if rest else "")
        if flag.flag in PLACEMENT_FLAGS:
            before = found.get(flag.flag, ())
            repeats = flag.type.kind in (FlagKind.LIST, FlagKind.SET) and not isinstance(before, str)
            found[flag.flag] = (*before, value) if repeats else value
    return found


def parse_scheduler_flags(texts: Sequence[str]) -> dict[str, str | tuple[str, ...]]:
    """Parses `--scheduler-flag NAME=VALUE`. Raises InspectionError for a flag that does not affect placement."""
    for text in texts:
        name = text.lstrip("-").partition("=")[0]
        flag = _NAMES.get(name)
        if flag is None or flag.flag not in PLACEMENT_FLAGS:
            raise InspectionError(f"--scheduler-flag {text}: the scheduler has no flag {name} that affects placement")
    return select_placement_flags([f"--{text.lstrip('-')}" for text in texts])
