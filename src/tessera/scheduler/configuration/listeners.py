"""From flags to listeners and certificates: who is served where, and with which certificate.

HAMi's `--http_bind` is one listener for everything but metrics, with TLS only where a certificate is given. Without
it there are separate listeners, and in a cluster the certificates are our own. Combinations that would not serve what
they promise are problems, never silently weaker.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

from tessera.scheduler.settings import Listeners, SelfManaged, TlsFiles
from tessera.services.addresses import Address
from tessera.services.flag_values import address_of, dns_name_of, some_address_of, switch_of, text_of
from tessera.services.option_sources import Given
from tessera.wire.quotes import quoted

DEFAULT_SECRET = "tessera-scheduler-tls"
DEFAULT_SERVICE = "tessera-scheduler"
DEFAULT_WEBHOOK = "tessera-webhook"

Tls = TlsFiles | SelfManaged | None

_DEFAULT = Listeners()
_WILDCARDS = frozenset({"", "0.0.0.0", "::"})
_FILES = ("cert_file", "key_file")
_NEEDS = "needs a certificate: give --cert_file and --key_file, or --tls-secret"


def listeners_and_tls(given: Given) -> tuple[Listeners, Tls]:
    """Where to listen, and the serving certificate."""
    tls = _asked_tls(given)
    listeners = _single(given) if "http_bind" in given else _separate(given)
    if tls is None and "http_bind" not in given and not _asks_tls(given):
        tls = _default_tls(given, listeners)
        listeners = _without_webhook(given, listeners) if tls is None else listeners
    _check_certificates(given, listeners, tls)
    _check_ports(given, listeners)
    return listeners, tls


def _single(given: Given) -> Listeners:
    for flag in ("extender-bind", "webhook-bind", "extender-tls"):
        if flag in given:
            given.blame("http_bind", f"is one listener for everything and excludes --{flag}; keep one of them")
    return Listeners(
        extender=None,
        webhook=None,
        metrics=given.read("metrics-bind-address", address_of, _DEFAULT.metrics),
        single=given.read("http_bind", some_address_of, None),
        client_ca=given.read("client-ca-file", text_of, ""),
    )


def _separate(given: Given) -> Listeners:
    return Listeners(
        extender=given.read("extender-bind", address_of, _DEFAULT.extender),
        webhook=given.read("webhook-bind", address_of, _DEFAULT.webhook),
        metrics=given.read("metrics-bind-address", address_of, _DEFAULT.metrics),
        client_ca=given.read("client-ca-file", text_of, ""),
        extender_tls=given.read("extender-tls", switch_of, False),
    )


def _asks_tls(given: Given) -> bool:
    """Whether flags say which certificate; an emptied chart value says nothing."""
    return "tls-secret" in given or any(given.read(flag, text_of, "") for flag in _FILES)


def _asked_tls(given: Given) -> Tls:
    """The certificate that flags ask for; None where they do not, or wrongly."""
    certificate, key = (given.read(flag, text_of, "") for flag in _FILES)
    if not certificate and not key:
        return given.read("tls-secret", lambda text: _own(given, text), None)
    if "tls-secret" in given:
        given.blame("tls-secret", "makes certificates of our own and excludes --cert_file and --key_file")
    if certificate and key:
        return TlsFiles(certificate, key)
    have, lack = _FILES if certificate else reversed(_FILES)
    given.blame(have, f"is given without --{lack}")
    return None


def _default_tls(given: Given, listeners: Listeners) -> Tls:
    """Our own certificates where something needs one and we know our namespace."""
    namespace = given.environ.get("POD_NAMESPACE", "")
    needed = listeners.webhook or (listeners.extender and listeners.extender_tls)
    return _own(given, f"{namespace}/{DEFAULT_SECRET}") if needed and namespace else None


def _own(given: Given, secret: str) -> SelfManaged:
    namespace, slash, name = secret.rpartition("/")
    namespace = namespace if slash else given.environ.get("POD_NAMESPACE", "")
    try:
        dns_name_of(namespace)
        dns_name_of(name)
    except ValueError:
        text = f"expected NAMESPACE/NAME, or NAME where POD_NAMESPACE is set, found {quoted(secret)}"
        raise ValueError(text) from None
    service = given.read("webhook-service", dns_name_of, DEFAULT_SERVICE)
    configuration = given.read("webhook-configuration", dns_name_of, DEFAULT_WEBHOOK)
    return SelfManaged(namespace, name, service, configuration)


def _without_webhook(given: Given, listeners: Listeners) -> Listeners:
    """Without a certificate there can be no webhook: a problem only where somebody asked for it."""
    if listeners.webhook and "webhook-bind" in given:
        given.blame("webhook-bind", _NEEDS)
    if listeners.extender and listeners.extender_tls:
        given.blame("extender-tls", _NEEDS)
    return replace(listeners, webhook=None)


def _check_certificates(given: Given, listeners: Listeners, tls: Tls) -> None:
    if not isinstance(tls, SelfManaged) and "tls-secret" not in given:
        for flag in ("webhook-service", "webhook-configuration"):
            if flag in given:
                given.blame(flag, "is for certificates of our own: give --tls-secret too")
    single = "http_bind" in given
    if listeners.client_ca and not (_asks_tls(given) if single else listeners.extender_tls):
        needs = "--cert_file and --key_file" if single else "--extender-tls"
        given.blame("client-ca-file", f"client certificates are only asked for over TLS: give {needs} too")


def _check_ports(given: Given, listeners: Listeners) -> None:
    named: dict[str, Address | None] = {
        "http_bind": listeners.single,
        "extender-bind": listeners.extender,
        "webhook-bind": listeners.webhook,
        "metrics-bind-address": listeners.metrics,
    }
    for (first, one), (second, two) in combinations(named.items(), 2):
        if one and two and one.port == two.port != 0 and (one.host == two.host or {one.host, two.host} & _WILDCARDS):
            given.blame(second, f"{two} is taken by --{first} {one}")
