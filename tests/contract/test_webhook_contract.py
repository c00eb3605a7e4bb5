"""What Tessera's webhook relies on: which requests call it, with what, and the effect of its responses."""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import trustme
from aiohttp import web

from tests.contract.client import Client, Json
from tests.contract.conftest import Space
from tests.contract.manifests import pod

CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"


@dataclass
class Hook:
    """A scripted webhook on this machine that records its requests."""

    url: str = ""
    ca: str = ""
    answer: Callable[[Json], Json] = lambda request: {"allowed": True}
    asked: list[Json] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)

    async def handle(self, request: web.Request) -> web.Response:
        review = await request.json()
        self.asked.append(review)
        self.paths.append(request.path_qs)
        response = {"uid": review["request"]["uid"]} | self.answer(review["request"])
        return web.json_response({"apiVersion": review["apiVersion"], "kind": "AdmissionReview", "response": response})


@pytest.fixture
async def hook() -> AsyncIterator[Hook]:
    found = Hook()
    authority = trustme.CA()
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    app = web.Application()
    app.router.add_post("/webhook", found.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    found.url = f"https://127.0.0.1:{runner.addresses[0][1]}/webhook"
    found.ca = base64.b64encode(authority.cert_pem.bytes()).decode()
    yield found
    await runner.cleanup()


Register = Callable[..., Any]


@pytest.fixture
async def register(api: Client, space: Space, hook: Hook) -> AsyncIterator[Register]:
    """Registers the hook for pods of the test's namespace."""
    names: list[str] = []

    async def registered(**changes: Any) -> None:
        webhook = {
            "name": "pods.contract.tessera.io",
            "clientConfig": {"url": hook.url, "caBundle": hook.ca},
            "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": space.name}},
            "sideEffects": "None",
            "admissionReviewVersions": ["v1", "v1beta1"],
            "timeoutSeconds": 5,
        }
        names.append(f"{space.name}-{len(names)}")
        await api.made(CONFIGURATIONS, {"metadata": {"name": names[-1]}, "webhooks": [webhook | changes]})
        # kube-apiserver learns of a new configuration through an informer: ask until it has.
        for _ in range(200):
            await api.post(space.pods(), pod("probe"), dryRun="All")
            if hook.asked:
                break
        hook.asked.clear()
        hook.paths.clear()

    yield registered
    for name in names:
        await api.delete(f"{CONFIGURATIONS}/{name}")


def patching(*operations: Json) -> Callable[[Json], Json]:
    patch = base64.b64encode(json.dumps(operations).encode()).decode()
    return lambda request: {"allowed": True, "patchType": "JSONPatch", "patch": patch}


async def test_a_webhook_sees_the_pod_with_defaults_and_without_identity(
    api: Client, space: Space, hook: Hook, register: Register
) -> None:
    await register()
    await api.made(space.pods(), pod() | {"metadata": {"generateName": "gen-", "labels": {"a": "1"}}})
    (review,) = hook.asked
    request = review["request"]
    assert (review["kind"], review["apiVersion"]) == ("AdmissionReview", "admission.k8s.io/v1")
    assert hook.paths == ["/webhook?timeout=5s"]
    assert request["kind"] == {"group": "", "version": "v1", "kind": "Pod"}
    assert request["resource"] == {"group": "", "version": "v1", "resource": "pods"}
    assert (request["operation"], request["namespace"], request["dryRun"]) == ("CREATE", space.name, False)
    assert "name" not in request
    found = request["object"]
    assert (found["kind"], found["apiVersion"], found["spec"]["schedulerName"]) == ("Pod", "v1", "default-scheduler")
    assert "uid" not in found["metadata"]
    resources = found["spec"]["containers"][0]["resources"]
    assert resources["requests"] == resources["limits"]
    assert resources["limits"]["nvidia.com/gpumem"] == "3k"
    assert request["oldObject"] is None


async def test_a_webhooks_patch_is_applied(api: Client, space: Space, hook: Hook, register: Register) -> None:
    await register()
    env = [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['x']"}}}]
    hook.answer = patching(
        {"op": "replace", "path": "/spec/schedulerName", "value": "hami-scheduler"},
        {"op": "add", "path": "/spec/containers/0/env", "value": env},
        {"op": "add", "path": "/spec/containers/0/resources/limits/nvidia.com~1gpucores", "value": "2000"},
    )
    made = await api.made(space.pods(), pod())
    assert made["spec"]["schedulerName"] == "hami-scheduler"
    container = made["spec"]["containers"][0]
    assert container["env"][0]["valueFrom"]["fieldRef"]["apiVersion"] == "v1"
    assert container["resources"]["requests"]["nvidia.com/gpucores"] == "2k"


async def test_warnings_reach_the_client(api: Client, space: Space, hook: Hook, register: Register) -> None:
    await register()
    hook.answer = lambda request: {"allowed": True, "warnings": ['say "less"', "more"]}
    answer = await api.post(space.pods(), pod())
    assert answer.headers.getall("Warning") == ['299 - "say \\"less\\""', '299 - "more"']


@pytest.mark.parametrize(
    ("status", "code", "said"),
    [
        ({"message": "write 2048"}, 400, ": write 2048"),
        ({"message": "no", "code": 403, "reason": "Forbidden"}, 403, ": no"),
        ({"reason": "Teapot"}, 400, ": Teapot"),
        ({"code": 200}, 400, " without explanation"),
    ],
)
async def test_a_denied_pod_is_not_created(
    api: Client, space: Space, hook: Hook, register: Register, status: Json, code: int, said: str
) -> None:
    await register()
    hook.answer = lambda request: {"allowed": False, "status": status}
    answer = await api.post(space.pods(), pod())
    assert answer.status == code
    assert answer.message == f'admission webhook "pods.contract.tessera.io" denied the request{said}'
    assert (await api.get(space.pods("p"))).status == 404


async def test_a_webhook_that_speaks_v1beta1_only_is_asked_in_it(
    api: Client, space: Space, hook: Hook, register: Register
) -> None:
    await register(admissionReviewVersions=["v1beta1"])
    await api.made(space.pods(), pod())
    assert hook.asked[0]["apiVersion"] == "admission.k8s.io/v1beta1"


@pytest.mark.parametrize(
    ("changes", "asked"),
    [
        ({"objectSelector": {"matchExpressions": [{"key": "skip", "operator": "DoesNotExist"}]}}, ["a"]),
        ({"rules": [{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"]}]}, ["a", "b"]),
    ],
)
async def test_a_webhook_is_asked_only_about_what_it_wants(
    api: Client, space: Space, hook: Hook, register: Register, changes: Json, asked: list[str]
) -> None:
    await register(**changes)
    await api.made(space.pods(), pod("a"))
    await api.made(space.pods(), pod("b", labels={"skip": "1"}))
    # A controller manager creates objects in a new namespace too, sooner or later.
    pods = [each["request"] for each in hook.asked if each["request"]["resource"]["resource"] == "pods"]
    assert [each["name"] for each in pods] == asked


@pytest.mark.parametrize(
    "answer",
    [
        lambda request: {"uid": "another", "allowed": True},
        lambda request: {"allowed": True, "patchType": "JSONPatch", "patch": "!"},
        patching({"op": "replace", "path": "/nowhere/at/all", "value": 1}),
    ],
)
async def test_a_useless_answer_counts_as_none(
    api: Client, space: Space, hook: Hook, register: Register, answer: Callable[[Json], Json]
) -> None:
    await register()
    hook.answer = answer
    refused = await api.post(space.pods(), pod())
    assert (refused.status, refused.reason) == (500, "InternalError")


async def test_a_webhook_that_cannot_be_reached_fails_the_request_or_is_passed_over(
    api: Client, space: Space, hook: Hook, register: Register
) -> None:
    await register(name="one.contract.tessera.io", failurePolicy="Ignore")
    hook.answer = lambda request: {"uid": "nonsense", "allowed": True}
    assert (await api.post(space.pods(), pod("passed"))).status == 201
    await register(name="two.contract.tessera.io", failurePolicy="Fail")
    answer = await api.post(space.pods(), pod("failed"))
    assert (answer.status, answer.reason) == (500, "InternalError")
    assert 'failed calling webhook "two.contract.tessera.io"' in answer.message
