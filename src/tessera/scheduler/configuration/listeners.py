"""From flags to listeners and certificates: what is served where, and with which certificate.

HAMi's `--http_bind` is one listener for everything but metrics, with TLS only where a certificate is given. Without
it there are separate listeners, and in a cluster the scheduler makes its own certificates. A combination that would
serve less than it promises is a problem; it is never weakened silently.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

from tessera.scheduler.settings import CertificateFlags, Listeners, SelfManaged, Tls, TlsFiles
from tessera.services.addresses import Address
from tessera.services.settings_table import Sources
from tessera.services.value_types import parse_dns_name
from tessera.wire.quotes import quoted

DEFAULT_SECRET = "tessera-scheduler-tls"

_WILDCARDS = frozenset({"", "0.0.0.0", "::"})
_NEEDS = "needs a certificate: give --cert_file and --key_file, or --tls-secret"


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
