"""One call of the webhook: an AdmissionReview in, its response out.

Every body gets a response that the apiserver understands; an internal fault gets code 500. Only creations are
decided; anything else that a wrong configuration sends passes unchanged. HTTP is not handled here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec
import structlog

from tessera.core.ledger import Ledger
from tessera.scheduler.admission.pod_admission import AdmissionSettings, admit
from tessera.vendors.base import Vendor
from tessera.wire import admission
from tessera.wire.admission import Review, Verdict
from tessera.wire.errors import WireError

log = structlog.get_logger(__name__)

CREATE = "CREATE"


def review(
    body: bytes,
    content_type: str,
    *,
    vendors: Mapping[str, Vendor],
    settings: AdmissionSettings,
    ledger: Ledger,
    observe: Callable[[Verdict, Review | None], None] = lambda _verdict, _review: None,
) -> bytes:
    """The body of the answer. `observe` sees what was decided, and about what, if that could be read."""
    asked: Review | None = None
    refused = admission.content_refusal(content_type) or admission.size_refusal(body)
    try:
        if refused is None:
            asked = admission.decode_review(body)
            refused = admission.container_refusal(asked)
        verdict = refused or _decide(asked, vendors=vendors, settings=settings, ledger=ledger)
    except WireError as error:
        verdict = admission.errored(admission.BAD_REQUEST, str(error))
    except Exception as error:
        # A fault that one pod triggers must not take the webhook down for all others.
        log.exception("admission failed", namespace=asked.namespace if asked else "", name=asked.name if asked else "")
        verdict = admission.errored(admission.FAULT, f"the webhook failed: {type(error).__name__}")
    observe(verdict, asked)
    return admission.encode_verdict(verdict, asked)


def _decide(
    asked: Review | None, *, vendors: Mapping[str, Vendor], settings: AdmissionSettings, ledger: Ledger
) -> Verdict:
    assert asked is not None  # what could not be read was refused before
    if asked.operation != CREATE:
        return admission.allowed()
    try:
        document = msgspec.json.decode(asked.object) if asked.object else None
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise WireError(f"not a valid Pod: {error}") from error
    return admit(
        document, namespace=asked.namespace, vendors=vendors, settings=settings, ledger=ledger, user=asked.username
    )
