"""From what is known of a scheduler's start to its `Settings`, by the scheduler's own reading of flags and files.

Flags that say nothing about placement (addresses, certificates, leases) are left out: they could only fail here. Where
nobody knows the flags, every vendor is switched on: one without cards and pods changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tessera.inspect.state import InspectionError, Setup
from tessera.scheduler.configuration.options import build_settings
from tessera.scheduler.settings import TABLE, Settings
from tessera.services.settings_table import Group, SettingsError
from tessera.services.value_types import FlagKind

DEVICE_CONFIG = "device-config-file"

_ADMITTING = ("scheduler-name", "force-overwrite-default-scheduler", "privileged", "inject-identity")
_PLACING = (Group.PLACEMENT, Group.DEVICES, Group.OVERRIDES)
DECIDING = frozenset(row.flag for row in TABLE if row.group in _PLACING or row.flag in _ADMITTING)
"""flags that decide about pods, by first name"""

_NAMES = {name: row for row in TABLE for name in row.names}

UNKNOWN = {"enable-ascend": "true", "enable-iluvatar": "true"}
"""what is assumed where nobody knows the flags"""


def settings_of(setup: Setup) -> Settings:
    """Raises InspectionError where the scheduler itself would not start with this."""
    flags = dict(UNKNOWN if setup.flags is None else setup.flags)
    flags.pop(DEVICE_CONFIG, None)
    text = setup.device_config
    if text is not None:
        flags[DEVICE_CONFIG] = setup.device_config_from

    def read_file(_path: str) -> str:
        return text or ""

    try:
        return build_settings(flags, {}, read_file)
    except SettingsError as error:
        raise InspectionError(
            f"the scheduler's configuration cannot be used: {error}\nTo go on with another: --device-config-file FILE"
        ) from error


def deciding_flags(arguments: Sequence[str]) -> dict[str, str | tuple[str, ...]]:
    """The flags of a command line that decide placement, by first name; what is no such flag is passed over."""
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
        if flag.flag in DECIDING:
            before = found.get(flag.flag, ())
            repeats = flag.type.kind in (FlagKind.LIST, FlagKind.SET) and not isinstance(before, str)
            found[flag.flag] = (*before, value) if repeats else value
    return found


def given_flags(texts: Sequence[str]) -> Mapping[str, str | tuple[str, ...]]:
    """What `--scheduler-flag NAME=VALUE` says; raises InspectionError for a flag that decides nothing."""
    for text in texts:
        name = text.lstrip("-").partition("=")[0]
        flag = _NAMES.get(name)
        if flag is None or flag.flag not in DECIDING:
            raise InspectionError(f"--scheduler-flag {text}: the scheduler has no flag {name} that decides placement")
    return deciding_flags([f"--{text.lstrip('-')}" for text in texts])
