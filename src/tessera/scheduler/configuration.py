"""From flags, environment and files to `Settings`, and from these to text.

A flag wins over the environment, which wins over the default; flags of HAMi v2.4 win over the device configuration,
which is checked by building the vendors. Pure: files come through `read_file`. Everything that is wrong comes in one
`SettingsError`, which names flags, or file and line, and nothing is started.

HAMi's `--http_bind` is one listener for everything but metrics, with TLS only where a certificate is given. Without
it there are separate listeners, and in a cluster the scheduler makes its own certificates. A combination that would
serve less than it promises is a problem; it is never weakened silently.

As text, for `--print-config` and the line that is logged at start, every setting appears under the name of its flag,
spelled as the flag reads it. Device sections are printed as in device-config.yaml, so that the output can be used as
such a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import Any

import msgspec
import yaml

from tessera.scheduler.settings import (
    ASCEND_SECTION,
    IGNORED,
    OVERRIDES,
    PRESETS,
    CertificateFlags,
    LeaderElectionFlags,
    Leadership,
    Listeners,
    Override,
    SelfManaged,
    Settings,
    Tls,
    TlsFiles,
)
from tessera.services import settings_table
from tessera.services.common_settings import PRINT_CONFIG, read_log_options
from tessera.services.settings_table import Flags, ReadFile, Sources
from tessera.services.value_types import Address, parse_dns_name
from tessera.vendors.base import Switches
from tessera.vendors.registry import build_vendors, families, schemas
from tessera.wire.device_config import dump_device_config, empty_section, load_device_config
from tessera.wire.errors import quoted

DEFAULT_BURST = 10
"""requests, as in HAMi; only where --kube-qps sets a limit"""

DEFAULT_SECRET = "tessera-scheduler-tls"

_WILDCARDS = frozenset({"", "0.0.0.0", "::"})
_NEEDS = "needs a certificate: give --cert_file and --key_file, or --tls-secret"

Sections = Mapping[str, Any]
Scalar = str | int | bool

SCHEDULER = "scheduler"
"""key of what is not device configuration"""

_HEAD = "# The effective configuration, good as a --device-config-file too: the part `scheduler` is not read there.\n"
_REST = "\n# What flags and environment set, under the names of the flags.\n"


def build_settings(flags: Flags, environ: Mapping[str, str], read_file: ReadFile) -> Settings:
    """What the service is told. Raises SettingsError with all problems."""
    sources = Sources(flags, environ)
    listeners, tls = read_listeners_and_tls(sources)
    settings = sources.load(Settings, listeners=listeners, tls=tls, leadership=_read_leadership(sources))
    if settings.kube_qps and "kube-burst" not in sources:
        settings = replace(settings, kube_burst=DEFAULT_BURST)
    if "enable-ascend" not in sources:
        settings = replace(settings, enable_ascend=names_ascend(sources))
    settings = replace(settings, device_sections=read_device_sections(sources, settings, read_file))
    if settings.turn_s >= settings.reservation_s:
        sources.blame("turn-timeout", "a bind must not wait longer than its reservation lasts (--reservation-timeout)")
    if settings.dra_convert and not settings.dra:
        sources.blame("dra-convert", "needs --dra, or no claim that it makes would be allocated")
    # Problems with these count as well, though they set nothing here.
    for each in (*IGNORED, PRINT_CONFIG):
        sources.read(each)
    read_log_options(sources)
    sources.check()
    return settings


def _read_leadership(sources: Sources) -> Leadership | None:
    flags = sources.load(LeaderElectionFlags)
    if not flags.is_wanted:
        return None
    namespace = flags.namespace or sources.environ.get("POD_NAMESPACE", "")
    identity = sources.environ.get("HOSTNAME") or sources.environ.get("POD_NAME", "")
    if not flags.name:
        sources.blame("leader-elect", "needs --leader-elect-resource-name, the Lease of the kube-scheduler beside it")
    if not namespace:
        sources.blame("leader-elect", "needs --leader-elect-resource-namespace where POD_NAMESPACE is not set")
    if not identity:
        sources.blame("leader-elect", "needs the host's name in HOSTNAME, to know its kube-scheduler by")
    return Leadership(namespace, flags.name, identity)


def read_listeners_and_tls(sources: Sources) -> tuple[Listeners, Tls]:
    """Where to listen, and the serving certificate."""
    flags = sources.load(CertificateFlags)
    is_single = "http_bind" in sources
    listeners = _read_single(sources) if is_single else sources.load(Listeners)
    tls = _read_tls(sources, flags)
    names_tls = _names_tls(flags)
    if tls is None and not is_single and not names_tls:
        tls = _default_tls(sources, flags, listeners)
        listeners = _without_webhook(sources, listeners) if tls is None else listeners
    if tls is None and listeners.dashboard:
        sources.blame("dashboard-bind", _NEEDS)
    if not isinstance(tls, SelfManaged) and flags.secret is None:
        for flag in ("webhook-service", "webhook-configuration"):
            if flag in sources:
                sources.blame(flag, "is for certificates of our own: give --tls-secret too")
    if listeners.client_ca and not (names_tls if is_single else listeners.extender_tls):
        needs = "--cert_file and --key_file" if is_single else "--extender-tls"
        sources.blame("client-ca-file", f"client certificates are only asked for over TLS: give {needs} too")
    _check_ports(sources, listeners)
    return listeners, tls


def _read_single(sources: Sources) -> Listeners:
    for flag in ("extender-bind", "webhook-bind", "extender-tls"):
        if flag in sources:
            sources.blame("http_bind", f"is one listener for everything and excludes --{flag}; keep one of them")
    return sources.load(Listeners, extender=None, webhook=None, extender_tls=False)


def _names_tls(flags: CertificateFlags) -> bool:
    """Whether flags name a certificate; an emptied chart value names none."""
    return flags.secret is not None or bool(flags.cert_file or flags.key_file)


def _read_tls(sources: Sources, flags: CertificateFlags) -> Tls:
    """The certificate that flags name; None where they name none, or wrongly."""
    if not flags.cert_file and not flags.key_file:
        return None if flags.secret is None else _self_managed(sources, flags, flags.secret)
    if flags.secret is not None:
        sources.blame("tls-secret", "makes certificates of our own and excludes --cert_file and --key_file")
    if flags.cert_file and flags.key_file:
        return TlsFiles(flags.cert_file, flags.key_file)
    have, lack = ("cert_file", "key_file") if flags.cert_file else ("key_file", "cert_file")
    sources.blame(have, f"is given without --{lack}")
    return None


def _default_tls(sources: Sources, flags: CertificateFlags, listeners: Listeners) -> Tls:
    """Our own certificates, where a listener needs one and the namespace is known."""
    namespace = sources.environ.get("POD_NAMESPACE", "")
    is_needed = listeners.webhook or listeners.dashboard or (listeners.extender and listeners.extender_tls)
    return _self_managed(sources, flags, f"{namespace}/{DEFAULT_SECRET}") if is_needed and namespace else None


def _self_managed(sources: Sources, flags: CertificateFlags, secret: str) -> SelfManaged | None:
    namespace, slash, name = secret.rpartition("/")
    namespace = namespace if slash else sources.environ.get("POD_NAMESPACE", "")
    try:
        parse_dns_name(namespace)
        parse_dns_name(name)
    except ValueError:
        text = f"expected NAMESPACE/NAME, or NAME where POD_NAMESPACE is set, found {quoted(secret)}"
        sources.blame("tls-secret", text)
        return None
    return SelfManaged(namespace, name, flags.service, flags.webhook_configuration)


def _without_webhook(sources: Sources, listeners: Listeners) -> Listeners:
    """Without a certificate there can be no webhook; that is a problem only where a flag asks for it."""
    if listeners.webhook and "webhook-bind" in sources:
        sources.blame("webhook-bind", _NEEDS)
    if listeners.extender and listeners.extender_tls:
        sources.blame("extender-tls", _NEEDS)
    return replace(listeners, webhook=None)


def _check_ports(sources: Sources, listeners: Listeners) -> None:
    named: dict[str, Address | None] = {
        "http_bind": listeners.single,
        "extender-bind": listeners.extender,
        "webhook-bind": listeners.webhook,
        "metrics-bind-address": listeners.metrics,
        "dashboard-bind": listeners.dashboard,
    }
    for (first, one), (second, two) in combinations(named.items(), 2):
        if one and two and one.port == two.port != 0 and (one.host == two.host or {one.host, two.host} & _WILDCARDS):
            sources.blame(second, f"{two} is taken by --{first} {one}")


def chart_sections() -> dict[str, Any]:
    """What the chart ships."""
    return {family.section: family.chart for family in families()}


def names_ascend(sources: Sources) -> bool:
    """Whether a v2.4.0 flag names Ascend chips, which that version always served."""
    return any(override.flag in sources for override in OVERRIDES if override.section == ASCEND_SECTION)


def read_device_sections(sources: Sources, settings: Settings, read_file: ReadFile) -> Sections | None:
    """Decoded sections; None = the chart's values as they are, or what cannot be used."""
    file, switches = settings.device_config_file, settings.switches
    written = {override: sources.read(override.setting) for override in OVERRIDES}
    overrides = {override: value for override, value in written.items() if value is not None}
    base: Sections | None = chart_sections()
    if file:
        load = partial(load_device_config, file=file, schemas=schemas())
        base = sources.load_file("device-config-file", file, read_file, load)
    if base is None:
        return None
    sections = _overridden(sources, base, overrides, file)
    problem = _problem(sections, switches)
    if problem is not None:
        # Only the flags are to blame for what the file alone does not have.
        if overrides and _problem(base, switches) != problem:
            flags = ", ".join(f"--{override.flag}" for override in overrides)
            sources.problems.append(f"{file or 'the chart'} as overridden by {flags}: {problem}")
        else:
            sources.problems.append(f"{file}: {problem}")
    return sections if file or overrides else None


def _problem(sections: Sections, switches: Switches) -> str | None:
    try:
        build_vendors(sections, switches)
    except ValueError as error:
        return str(error)
    return None


def _overridden(sources: Sources, base: Sections, overrides: Mapping[Override, Scalar], file: str) -> Sections:
    sections = dict(base)
    for override, value in overrides.items():
        section = sections.get(override.section, empty_section(schemas()[override.section]))
        if not override.chips:
            sections[override.section] = _with(_preset(section, override.section), override.key, value)
            continue
        changed = _with_chip(section, override, value)
        if changed is None:
            sources.blame(override.flag, f"{file} has no {override.chips[0]} under {override.section} to be named so")
        else:
            sections[override.section] = changed
    return sections


def _preset(section: Any, name: str) -> Any:
    """The section, or v2.4's own values where it is empty."""
    if section != empty_section(schemas()[name]):
        return section
    for key, value in PRESETS.get(name, {}).items():
        section = _with(section, key, value)
    return section


def _with_chip(section: Any, override: Override, value: Scalar) -> Any | None:
    """The section with one chip changed; None where it has no such chip."""
    words = [chip.common_word for chip in section.configs]
    word = next((word for word in override.chips if word in words), None)
    if word is None:
        return None
    chips = tuple(_with(c, override.key, value) if c.common_word == word else c for c in section.configs)
    return msgspec.structs.replace(section, configs=chips)


def _with(section: Any, key: str, value: Scalar) -> Any:
    """The section with the value of one key, spelled as in the file, replaced."""
    names = {field.encode_name: field.name for field in msgspec.structs.fields(section)}
    return msgspec.structs.replace(section, **{names[key]: value})


def print_settings(settings: Settings) -> str:
    """The effective configuration as YAML."""
    sections = chart_sections() if settings.device_sections is None else settings.device_sections
    rest = yaml.safe_dump({SCHEDULER: describe(settings)}, sort_keys=False, width=120, allow_unicode=True)
    return f"{_HEAD}{dump_device_config(sections)}{_REST}{rest}"


def changes(settings: Settings) -> dict[str, Any]:
    """What differs from the defaults. Device sections are not listed: `--print-config` has them."""
    usual = describe(Settings())
    return {flag: value for flag, value in describe(settings).items() if usual.get(flag) != value}


def describe(settings: Settings) -> dict[str, Any]:
    """Everything but the device sections, by flag."""
    said = settings_table.describe(settings)
    # The two forms of listening exclude each other.
    for flag in ("extender-bind", "webhook-bind", "extender-tls") if settings.listeners.single else ("http_bind",):
        del said[flag]
    return said | _describe_tls(settings) | _describe_leadership(settings)


def _describe_tls(settings: Settings) -> dict[str, Any]:
    match settings.tls:
        case TlsFiles(certificate, key):
            return {"cert_file": certificate, "key_file": key}
        case SelfManaged(namespace, secret, service, configuration):
            name = f"{namespace}/{secret}"
            return {"tls-secret": name, "webhook-service": service, "webhook-configuration": configuration}
    return {}


def _describe_leadership(settings: Settings) -> dict[str, Any]:
    lease = settings.leadership
    if lease is None:
        return {"leader-elect": False}
    return {
        "leader-elect": True,
        "leader-elect-resource-name": lease.name,
        "leader-elect-resource-namespace": lease.namespace,
        "HOSTNAME": lease.identity,
    }
