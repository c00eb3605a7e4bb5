"""One call of the webhook: an AdmissionReview in, its response out.

Every body gets a response that the apiserver understands; an internal fault gets code 500. Only creations are
decided; anything else that a wrong configuration sends passes unchanged. HTTP is not handled here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

import msgspec
import structlog

from tessera.core.ledger import Ledger
from tessera.kube.errors import KubeError
from tessera.scheduler.admission.claim_owners import NO_CLAIMS, ClaimOwner
from tessera.scheduler.admission.pod_admission import AdmissionSettings, admit
from tessera.vendors.base import Vendor
from tessera.wire import admission
from tessera.wire.admission import Review, Verdict
from tessera.wire.errors import WireError

log = structlog.get_logger(__name__)

CREATE = "CREATE"


class ClaimApi(Protocol):
    """The API as far as claims of new pods are concerned."""

    async def find_owner(self, asked: Review) -> ClaimOwner:
        """Whose the claims of the pod are."""
        ...

    async def use_template(self, namespace: str, template: Mapping[str, Any]) -> None:
        """Makes sure that a ResourceClaimTemplate exists. Raises KubeError."""
        ...


Observe = Callable[[Verdict, Review | None], None]
"""sees what was decided, and about what, if that could be read"""


def observe_nothing(_verdict: Verdict, _review: Review | None) -> None: ...


def review(
    body: bytes,
    content_type: str,
    *,
    vendors: Mapping[str, Vendor],
    settings: AdmissionSettings,
    ledger: Ledger,
    observe: Observe = observe_nothing,
) -> bytes:
    """The body of the answer, for a scheduler that leaves ResourceClaims to others."""
    asked, verdict = _read(body, content_type)
    if asked is not None and verdict is None:
        verdict = _decide(asked, vendors=vendors, settings=replace(settings, converts=False), ledger=ledger)
    return _answer(asked, verdict, observe)


async def review_with_claims(
    body: bytes,
    content_type: str,
    *,
    vendors: Mapping[str, Vendor],
    settings: AdmissionSettings,
    ledger: Ledger,
    claims: ClaimApi,
    observe: Observe = observe_nothing,
) -> bytes:
    """The same for a scheduler that allocates them."""
    asked, verdict = _read(body, content_type)
    if asked is not None and verdict is None:
        owner = await claims.find_owner(asked)
        verdict = _decide(asked, vendors=vendors, settings=settings, ledger=ledger, claims=owner)
        if verdict.requires is not None and not asked.dry_run:
            try:
                await claims.use_template(asked.namespace, verdict.requires)
            except KubeError as error:
                log.warning("a ResourceClaimTemplate cannot be written", namespace=asked.namespace, error=str(error))
                # The pod can be placed as it was written.
                as_is = replace(settings, converts=False)
                verdict = _decide(asked, vendors=vendors, settings=as_is, ledger=ledger, claims=owner)
                why = f"the pod's requests do not become a ResourceClaim: its template cannot be written: {error}"
                verdict = replace(verdict, warnings=(*verdict.warnings, why))
    return _answer(asked, verdict, observe)


def _read(body: bytes, content_type: str) -> tuple[Review | None, Verdict | None]:
    """The request, and the verdict if that needs no look at the pod."""
    refused = admission.content_refusal(content_type) or admission.size_refusal(body)
    if refused is not None:
        return None, refused
    try:
        asked = admission.decode_review(body)
    except WireError as error:
        return None, admission.errored(admission.BAD_REQUEST, str(error))
    refused = admission.container_refusal(asked)
    return asked, refused or (None if asked.operation == CREATE else admission.allowed())


def _decide(
    asked: Review,
    *,
    vendors: Mapping[str, Vendor],
    settings: AdmissionSettings,
    ledger: Ledger,
    claims: ClaimOwner = NO_CLAIMS,
) -> Verdict:
    try:
        return admit(
            _document(asked),
            namespace=asked.namespace,
            vendors=vendors,
            settings=settings,
            ledger=ledger,
            user=asked.username,
            claims=claims,
        )
    except WireError as error:
        return admission.errored(admission.BAD_REQUEST, str(error))
    except Exception as error:
        # A fault that one pod triggers must not take the webhook down for all others.
        log.exception("admission failed", namespace=asked.namespace, name=asked.name)
        return admission.errored(admission.FAULT, f"the webhook failed: {type(error).__name__}")


def _answer(asked: Review | None, verdict: Verdict | None, observe: Observe) -> bytes:
    verdict = verdict or admission.allowed()
    observe(verdict, asked)
    return admission.encode_verdict(verdict, asked)


def _document(asked: Review) -> Any:
    try:
        return msgspec.json.decode(asked.object) if asked.object else None
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise WireError(f"not a valid Pod: {error}") from error
