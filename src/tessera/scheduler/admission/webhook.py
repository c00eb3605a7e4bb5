"""The webhook: an AdmissionReview in, its response out.

Every body gets a response that the apiserver understands; an internal fault gets code 500. Only creations are
decided; anything else that a wrong configuration sends passes unchanged. HTTP is not handled here.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from dataclasses import replace
from typing import Any

import msgspec
import structlog

from tessera.core.ledger.ledger import Ledger
from tessera.kube.errors import KubeError
from tessera.scheduler.admission.claim_owners import NO_CLAIMS, ClaimLookup, ClaimOwner
from tessera.scheduler.admission.pod_admission import admit
from tessera.scheduler.observer import SchedulerObserver
from tessera.scheduler.settings import Settings
from tessera.vendors.base import Vendor
from tessera.wire import admission
from tessera.wire.admission import Review, Verdict
from tessera.wire.errors import WireError

log = structlog.get_logger(__name__)

CREATE = "CREATE"


class Webhook:
    """Answers for one scheduler."""

    def __init__(
        self,
        vendors: Mapping[str, Vendor],
        settings: Settings,
        ledger: Ledger,
        *,
        claims: ClaimLookup | None = None,
        observer: SchedulerObserver,
    ) -> None:
        """`claims`: None if ResourceClaims are left to another scheduler."""
        self._vendors = vendors
        self._settings = settings
        self._as_written = replace(settings, dra_convert=False)
        self._ledger = ledger
        self._claims = claims
        self._observer = observer

    def answer(self, body: bytes, content_type: str) -> bytes | Coroutine[Any, Any, bytes]:
        """The body of the answer; later if the API has to be asked about claims."""
        asked, verdict = _read(body, content_type)
        if asked is None or verdict is not None:
            return self._encode(asked, verdict or admission.allowed())
        if self._claims is None:
            return self._encode(asked, self._decide(asked, self._as_written))
        return self._answer_with_claims(asked, self._claims)

    async def _answer_with_claims(self, asked: Review, claims: ClaimLookup) -> bytes:
        owner = await claims.find_owner(asked)
        verdict = self._decide(asked, self._settings, owner)
        if verdict.requires is not None and not asked.dry_run:
            try:
                await claims.templates.use(asked.namespace, verdict.requires)
            except KubeError as error:
                log.warning("a ResourceClaimTemplate cannot be written", namespace=asked.namespace, error=str(error))
                # The pod can be placed as it was written.
                verdict = self._decide(asked, self._as_written, owner)
                why = f"the pod's requests do not become a ResourceClaim: its template cannot be written: {error}"
                verdict = replace(verdict, warnings=(*verdict.warnings, why))
        return self._encode(asked, verdict)

    def _decide(self, asked: Review, settings: Settings, claims: ClaimOwner = NO_CLAIMS) -> Verdict:
        try:
            return admit(
                _document(asked),
                namespace=asked.namespace,
                vendors=self._vendors,
                settings=settings,
                ledger=self._ledger,
                user=asked.username,
                claims=claims,
            )
        except WireError as error:
            return admission.errored(admission.BAD_REQUEST, str(error))
        except Exception as error:
            # A fault that one pod triggers must not take the webhook down for all others.
            log.exception("admission failed", namespace=asked.namespace, name=asked.name)
            return admission.errored(admission.FAULT, f"the webhook failed: {type(error).__name__}")

    def _encode(self, asked: Review | None, verdict: Verdict) -> bytes:
        if asked is not None and verdict.code == admission.FORBIDDEN:
            self._observer.on_denied(asked.namespace, asked.pod_name, verdict.message)
        return admission.encode_verdict(verdict, asked)


def _read(body: bytes, content_type: str) -> tuple[Review | None, Verdict | None]:
    """The request, and the verdict if that needs no look at the pod."""
    refused = admission.content_refusal(content_type) or admission.size_refusal(body)
    if refused is not None:
        return None, refused
    try:
        asked = admission.decode_review(body)
    except WireError as error:
        return None, admission.errored(admission.BAD_REQUEST, str(error))
    refused = admission.pod_refusal(asked)
    return asked, refused or (None if asked.operation == CREATE else admission.allowed())


def _document(asked: Review) -> Any:
    try:
        return msgspec.json.decode(asked.object) if asked.object else None
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise WireError(f"not a valid Pod: {error}") from error
