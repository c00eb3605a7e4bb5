"""HTTP for the verbs: paths, methods, bodies, responses and watches.

Every refusal is answered with a Status object. A bug in this server is logged and answered with a 500 that names it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from aiohttp import web

from tessera_lab.sandbox.api import discovery, protobuf, requests, subresources
from tessera_lab.sandbox.api.admission import ApiUser
from tessera_lab.sandbox.api.api_state import RequestContext
from tessera_lab.sandbox.api.errors import (
    StatusError,
    bad_request,
    internal,
    method_not_allowed,
    status_error,
    too_large_body,
    unauthorized,
    unsupported_media,
)
from tessera_lab.sandbox.api.faults import (
    ApiFaults,
    Delay,
    Drop,
    Fail,
    Fault,
    Hold,
    LoggedRequest,
    LoseAnswer,
    RequestLog,
)
from tessera_lab.sandbox.api.kinds import LOG, SCALE, Json, ReviewKind
from tessera_lab.sandbox.api.lists_and_watches import ListQuery, Watcher, WatchScope
from tessera_lab.sandbox.api.requests import (
    RequestTarget,
    convert,
    decode_json,
    decode_yaml,
    resolve_path,
    without_nulls,
)
from tessera_lab.sandbox.api.responses import ResponseForm, choose_form
from tessera_lab.sandbox.api.shapes import DeleteOptions
from tessera_lab.sandbox.api.store import ENCODE, Stored
from tessera_lab.sandbox.api.subresources import make_scale
from tessera_lab.sandbox.api.verbs import APPLY_PATCH, PATCHES, Verbs

HEALTH = ("/healthz", "/livez", "/readyz")
BODIES = ("application/json", "application/yaml", protobuf.MEDIA)
MAX_WARNING = 1024
"""characters of a warning; kube-apiserver cuts long ones too"""

_LOG = logging.getLogger(__name__)


WATCH_S, BOOKMARK_EVERY_S = 1800.0, 60.0
"""seconds that a watch lasts, and between its bookmarks"""


class Rest:
    """Answers requests. Without a token there is no authentication."""

    def __init__(self, verbs: Verbs, *, faults: ApiFaults, journal: RequestLog, token: str | None):
        self._verbs = verbs
        self._faults = faults
        self._journal = journal
        self._token = token

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """The aiohttp handler for every path."""
        agent = request.headers.get("User-Agent", "")
        fault = self._faults.take(request.method, request.path, agent)
        response = await self._before(fault) or await self._answer(request)
        if isinstance(fault, Hold) and fault.after_effect:
            await _held(fault)
        cut = isinstance(fault, Drop | LoseAnswer)
        status = 0 if cut else response.status
        self._journal.note(LoggedRequest(request.method, request.path, request.query_string, status, agent))
        return _cut(request) if cut else response

    async def _before(self, fault: Fault | None) -> web.StreamResponse | None:
        match fault:
            case Fail():
                refusal = status_error(fault.status, fault.message, retry_after_s=fault.retry_after_s)
                return _refused(refusal)
            case Drop():
                return web.Response()
            case Delay(seconds):
                await asyncio.sleep(seconds)
            case Hold(after_effect=False):
                await _held(fault)
        return None

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        try:
            return await self._dispatch(request)
        except StatusError as refusal:
            return _refused(refusal)
        except web.HTTPRequestEntityTooLarge:
            return _refused(too_large_body())
        except ConnectionError:
            raise
        except Exception as error:
            _LOG.exception("request failed: %s %s", request.method, request.path)
            return _refused(internal(f"{type(error).__name__}: {error}"))

    async def _dispatch(self, request: web.Request) -> web.StreamResponse:
        user = self._user(request)
        if request.path in HEALTH:
            return web.Response(text="ok")
        if subresources.is_service_proxy(request.path):
            return await subresources.pass_on(request, self._verbs.cluster.services)
        target = resolve_path(request.path)
        if target is None:
            if request.method != "GET":
                raise method_not_allowed()
            return _json(discovery.document(request.path))
        call = RequestContext(user=user, dry_run=requests.parse_dry_run(request.query), options=_options(request))
        if isinstance(target, ReviewKind):
            if request.method != "POST":
                raise method_not_allowed()
            return _json(self._verbs.review(target, await _body(request), call), status=201)
        form = choose_form(",".join(request.headers.getall("Accept", ())), request.query, self._verbs.cluster.now)
        match request.method:
            case "GET" if target.subresource == LOG:
                return self._log(request, target)
            case "GET" if target.name:
                return _stored(self._verbs.get(target), form, call, target=target)
            case "GET":
                return await self._collection(request, target, form)
            case "POST":
                made = await self._verbs.create(target, await _body(request), call)
                return _json(made, call) if isinstance(made, dict) else _stored(made, form, call, status=201)
            case "PUT":
                stored, created = await self._verbs.replace(target, await _body(request), call)
                return _stored(stored, form, call, target=target, status=201 if created else 200)
            case "PATCH":
                media, patch = await _patch(request)
                stored, created = await self._verbs.patch(target, media, patch, call)
                return _stored(stored, form, call, target=target, status=201 if created else 200)
            case "DELETE":
                return await self._delete(request, target, form, call)
        raise method_not_allowed()

    async def _collection(self, request: web.Request, target: RequestTarget, form: ResponseForm) -> web.StreamResponse:
        query = request.query
        selector = requests.parse_selector(target.kind, query)
        if requests.parse_flag(query, "watch"):
            return await self._watch(request, WatchScope(target.kind, target.namespace, selector, form.one))
        page = self._verbs.list(
            ListQuery(
                target.kind,
                target.namespace,
                selector,
                limit=requests.parse_limit(query),
                token=query.get("continue", ""),
                version=requests.parse_whole_number(query, "resourceVersion"),
                exact=query.get("resourceVersionMatch") == "Exact",
            )
        )
        return _bytes(form.many(target.kind, page))

    async def _delete(
        self, request: web.Request, target: RequestTarget, form: ResponseForm, call: RequestContext
    ) -> web.StreamResponse:
        options = await _delete_options(request)
        call.dry_run = call.dry_run or "All" in options.dry_run
        if not target.name:
            selector = requests.parse_selector(target.kind, request.query)
            page = await self._verbs.delete_all(target, selector, options, call)
            return _bytes(form.many(target.kind, page), call)
        done = await self._verbs.delete(target, options, call)
        return _json(done, call, status=200) if isinstance(done, dict) else _stored(done, form, call)

    async def _watch(self, request: web.Request, scope: WatchScope) -> web.StreamResponse:
        query = request.query
        asked_s = requests.parse_whole_number(query, "timeoutSeconds")
        version = requests.parse_whole_number(query, "resourceVersion")
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        # The watch is opened before the headers are sent: the client must see every change from then on.
        hub = self._verbs.cluster.hub
        watcher = hub.open(
            scope,
            version=version,
            initial_events=requests.parse_flag(query, "sendInitialEvents"),
            agent=request.headers.get("User-Agent", ""),
        )
        try:
            await response.prepare(request)
            every_s = BOOKMARK_EVERY_S if requests.parse_flag(query, "allowWatchBookmarks") else None
            await self._stream(response, watcher, float(asked_s or WATCH_S), every_s)
            if watcher.aborted:
                return _cut(request)
            await response.write_eof()
        except ConnectionError:
            pass
        finally:
            hub.close(watcher)
        return response

    async def _stream(
        self, response: web.StreamResponse, watcher: Watcher, timeout_s: float, bookmark_every_s: float | None
    ) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        bookmark_at = loop.time() + bookmark_every_s if bookmark_every_s else deadline
        while True:
            frames = watcher.take()
            if frames and not watcher.aborted:
                await response.write(frames)
            if watcher.ended or loop.time() >= deadline:
                return
            try:
                async with asyncio.timeout_at(min(deadline, bookmark_at)):
                    await watcher.wait()
            except TimeoutError:
                if bookmark_every_s:
                    watcher.bookmark(self._verbs.cluster.store.version)
                    bookmark_at = loop.time() + bookmark_every_s

    def _log(self, request: web.Request, target: RequestTarget) -> web.Response:
        """What a container wrote so far. Whoever follows it gets no more."""
        pod, query = self._verbs.get(target), request.query
        container = subresources.choose_container(pod.object, query)
        lines = subresources.select_lines(pod.object, container, query, self._verbs.cluster.read_log)
        if not pod.object["spec"].get("nodeName"):
            return web.Response(status=204)
        return web.Response(text="".join(lines), content_type="text/plain")

    def _user(self, request: web.Request) -> ApiUser:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if self._token and (scheme.lower() != "bearer" or token.strip() != self._token):
            raise unauthorized()
        return ApiUser()


async def _body(request: web.Request) -> Any:
    media = request.content_type if "Content-Type" in request.headers else "application/json"
    if media not in BODIES:
        raise unsupported_media(media, BODIES)
    return _decoded(media, await request.read())


def _decoded(media: str, content: bytes) -> Any:
    if media == protobuf.MEDIA:
        return protobuf.decode(content)
    return decode_yaml(content) if media == "application/yaml" else decode_json(content)


async def _patch(request: web.Request) -> tuple[str, Any]:
    media = request.content_type
    if media not in PATCHES:
        raise unsupported_media(media, PATCHES)
    content = await request.read()
    if media != APPLY_PATCH:
        return media, decode_json(content)
    if not request.query.get("fieldManager"):
        raise bad_request(
            "PatchOptions.meta.k8s.io is invalid: fieldManager: Required value: is required for apply patch"
        )
    return media, decode_yaml(content)


async def _delete_options(request: web.Request) -> DeleteOptions:
    content = await request.read()
    decoded = _decoded(request.content_type, content) if content.strip() else {}
    options = convert(without_nulls(decoded), DeleteOptions)
    if options.kind != "DeleteOptions":
        raise bad_request(f"a DELETE takes DeleteOptions, not {options.kind!r}")
    asked_s = requests.parse_whole_number(request.query, "gracePeriodSeconds")
    if asked_s is None:
        return options
    return DeleteOptions(
        grace_period_seconds=asked_s,
        propagation_policy=options.propagation_policy,
        preconditions=options.preconditions,
        dry_run=options.dry_run,
    )


def _options(request: web.Request) -> Json:
    names = ("fieldManager", "fieldValidation")
    return {name: request.query[name] for name in names if name in request.query}


async def _held(fault: Hold) -> None:
    fault.reached.set()
    await fault.release.wait()


def _cut(request: web.Request) -> web.StreamResponse:
    """Cuts the connection as a crash would. The returned response is never sent."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=500)


def _stored(
    stored: Stored, form: ResponseForm, call: RequestContext, *, target: RequestTarget | None = None, status: int = 200
) -> web.Response:
    if target is not None and target.subresource == SCALE:
        return _json(make_scale(stored.object), call, status=status)
    return _bytes(form.one(stored), call, status=status)


def _json(content: Json, call: RequestContext | None = None, *, status: int | None = None) -> web.Response:
    return _bytes(ENCODE(content), call, status=status or content.get("code", 200))


def _refused(refusal: StatusError) -> web.Response:
    response = _bytes(ENCODE(refusal.status()), status=refusal.code)
    if refusal.retry_after_s is not None:
        response.headers["Retry-After"] = str(refusal.retry_after_s)
    return response


def _bytes(body: bytes, call: RequestContext | None = None, *, status: int = 200) -> web.Response:
    response = web.Response(body=body, status=status, content_type="application/json")
    for text in dict.fromkeys(call.warnings if call is not None else ()):
        response.headers.add("Warning", f'299 - "{_quotable(text)}"')
    return response


def _quotable(text: str) -> str:
    printable = "".join(letter if letter.isprintable() else " " for letter in text[:MAX_WARNING])
    return printable.replace("\\", "\\\\").replace('"', '\\"')
