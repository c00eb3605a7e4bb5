"""Who may use what this process serves to people: TokenReview and SubjectAccessReview decide.

What is read has no object in the API, so the apiserver is asked about a path, as for the metrics of Kubernetes' own
components. A ClusterRole with `nonResourceURLs: [PATH], verbs: [get]` allows it. Who has pods moved must be allowed to
evict pods in all namespaces. Verdicts are kept for a short time and
by the digest of the token, never by the token itself. If the apiserver cannot say, the caller is refused.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import structlog

from tessera.http11.router import Request, Response
from tessera.kube.client import KubeClient
from tessera.kube.errors import KubeError
from tessera.kube.resources import SUBJECT_ACCESS_REVIEWS, TOKEN_REVIEWS

log = structlog.get_logger(__name__)

ALLOWED_S = 30.0
"""that an allowed token needs no other review: so long may a right that was taken away still count"""
REFUSED_S = 10.0
"""that a refused token is refused without asking again"""
MAX_VERDICTS = 512
"""that are kept; beyond, the oldest leaves"""
MAX_REVIEWS = 16
"""under way at once: strangers must not make this process flood the apiserver"""

JSON = "application/json"
BEARER = b"bearer "
OWN_HEADER = b"X-Tessera-Token"
"""for callers behind the apiserver's proxy, which keeps `Authorization` to itself"""
CHALLENGE = b"WWW-Authenticate: Bearer\r\n"


def error_response(status: int, sentence: str, headers: bytes = b"") -> Response:
    body = msgspec.json.encode({"error": sentence})
    return Response(status, body, JSON, headers=b"Cache-Control: no-store\r\n" + headers)


def bearer_token(request: Request) -> bytes:
    """What the caller sent as `Authorization: Bearer`, or as `X-Tessera-Token`; empty if it sent neither."""
    text = request.headers.get(b"Authorization", b"")
    token = text[len(BEARER) :].strip() if text[: len(BEARER)].lower() == BEARER else b""
    return token or request.headers.get(OWN_HEADER, b"").strip()


@dataclass(frozen=True, slots=True)
class Right:
    """What the apiserver is asked about."""

    text: str
    """for people"""
    attributes: Mapping[str, Any]
    """of the spec of a SubjectAccessReview"""


def get_on_path(path: str) -> Right:
    attributes = {"nonResourceAttributes": {"path": path, "verb": "get"}}
    return Right(f"`get` on the path {path}", attributes)


EVICT_PODS = Right(
    "`create` on pods/eviction in all namespaces",
    {"resourceAttributes": {"verb": "create", "version": "v1", "resource": "pods", "subresource": "eviction"}},
)


@dataclass(frozen=True, slots=True)
class _Verdict:
    refusal: Response | None
    until: float
    user: str


class AccessReview:
    """Decides about one right. Used from one event loop."""

    def __init__(self, client: KubeClient, right: Right, *, clock: Callable[[], float] | None = None) -> None:
        self._client = client
        self._right = right
        self._clock = clock or asyncio.get_running_loop().time
        self._verdicts: dict[bytes, _Verdict] = {}
        """by digest of the token, the oldest first"""
        self._reviews: dict[bytes, asyncio.Task[Response | None]] = {}

    async def refuse(self, request: Request) -> Response | None:
        """The refusal; None if the caller is allowed. The route must read headers."""
        token = bearer_token(request)
        if not token:
            return error_response(401, "a token is needed: kubectl create token NAME makes one", CHALLENGE)
        digest = hashlib.sha256(token).digest()
        known = self._verdicts.get(digest)
        if known is not None and self._clock() < known.until:
            return known.refusal
        review = self._reviews.get(digest)
        if review is None:
            if len(self._reviews) >= MAX_REVIEWS:
                return error_response(503, "too many callers ask for access at once; try again")
            review = self._reviews[digest] = asyncio.create_task(self._review(digest, token))
            review.add_done_callback(lambda _: self._reviews.pop(digest, None))
        # Callers with the same token share the review, so that one who goes away must not end it.
        return await asyncio.shield(review)

    def user_of(self, request: Request) -> str:
        """The name of a caller that was reviewed lately; empty if it was not."""
        known = self._verdicts.get(hashlib.sha256(bearer_token(request)).digest())
        return "" if known is None else known.user

    async def _review(self, digest: bytes, token: bytes) -> Response | None:
        try:
            refusal, user = await self._ask(token.decode("latin-1"))
        except (KubeError, msgspec.MsgspecError, KeyError, TypeError) as error:
            log.warning("access not reviewed", right=self._right.text, error=str(error))
            return error_response(503, "the apiserver cannot be asked about your rights now; try again")
        self._verdicts.pop(digest, None)
        if len(self._verdicts) >= MAX_VERDICTS:
            del self._verdicts[next(iter(self._verdicts))]
        lasts = ALLOWED_S if refusal is None else REFUSED_S
        self._verdicts[digest] = _Verdict(refusal, self._clock() + lasts, user)
        return refusal

    async def _ask(self, token: str) -> tuple[Response | None, str]:
        """The refusal, or None, and who it is."""
        body = {"apiVersion": TOKEN_REVIEWS.api_version, "kind": "TokenReview", "spec": {"token": token}}
        answer = await self._client.create(TOKEN_REVIEWS.path(), body, dict[str, Any])
        status = answer.get("status") or {}
        if status.get("authenticated") is not True:
            return error_response(401, "the apiserver does not know this token, or it has expired", CHALLENGE), ""
        user = status["user"]
        spec = {
            **self._right.attributes,
            "user": user.get("username", ""),
            "groups": user.get("groups") or [],
            "uid": user.get("uid", ""),
            "extra": user.get("extra") or {},
        }
        body = {"apiVersion": SUBJECT_ACCESS_REVIEWS.api_version, "kind": "SubjectAccessReview", "spec": spec}
        answer = await self._client.create(SUBJECT_ACCESS_REVIEWS.path(), body, dict[str, Any])
        if (answer.get("status") or {}).get("allowed") is True:
            return None, spec["user"]
        return error_response(403, f"{spec['user']} may not do this: it needs {self._right.text}"), ""
