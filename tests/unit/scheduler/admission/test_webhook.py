from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from tessera.core.ledger.ledger import Ledger
from tessera.core.model.requests import MAX_CONTAINERS
from tessera.scheduler.admission.webhook import Webhook
from tessera.scheduler.observer import SchedulerObserver
from tessera.scheduler.settings import Settings
from tessera.vendors.base import ResourceNames, Vendor
from tessera.wire.admission import FORBIDDEN
from tests.support.admission import SAMPLES, patched, vendors

JSON = "application/json"


def answer(
    body: bytes, content_type: str = JSON, *, by: dict[str, Vendor] | None = None, **settings: Any
) -> dict[str, Any]:
    denials = Denials()
    makers = vendors() if by is None else by
    text = Webhook(makers, Settings(**settings), Ledger(vendors()), observer=denials).answer(body, content_type)
    assert isinstance(text, bytes)
    found: dict[str, Any] = json.loads(text)
    status = found["response"]["status"]
    assert denials.messages == ([status["message"]] if status["code"] == FORBIDDEN else [])
    return found


class Denials(SchedulerObserver):
    def __init__(self) -> None:
        self.messages: list[str] = []

    def on_denied(self, namespace: str, name: str, message: str) -> None:
        self.messages.append(message)


def recorded(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((SAMPLES / f"{name}.request.json").read_bytes())
    return found


def asked(request: dict[str, Any], version: str = "admission.k8s.io/v1") -> bytes:
    return json.dumps({"kind": "AdmissionReview", "apiVersion": version, "request": request}).encode()


@pytest.mark.parametrize("version", ["admission.k8s.io/v1", "admission.k8s.io/v1beta1"])
def test_a_recorded_request_is_answered_in_its_own_version(version: str) -> None:
    request = recorded("kubectl-gpu")["request"]
    found = answer(asked(request, version))
    assert (found["apiVersion"], found["kind"]) == (version, "AdmissionReview")
    response = found["response"]
    assert (response["uid"], response["allowed"], response["patchType"]) == (request["uid"], True, "JSONPatch")
    stored = patched(request["object"], json.loads(base64.b64decode(response["patch"])))
    assert stored["spec"]["schedulerName"] == "hami-scheduler"


def test_a_pod_without_devices_gets_an_answer_without_a_patch() -> None:
    response = answer((SAMPLES / "plain.request.json").read_bytes())["response"]
    assert response["allowed"]
    assert "patch" not in response
    assert "warnings" not in response


def test_the_user_and_the_namespace_of_the_request_count() -> None:
    request = recorded("plain")["request"]
    request["object"]["metadata"]["annotations"] = {"hami.io/vgpu-node": "n1"}
    assert answer(asked(request))["response"]["status"]["code"] == 403
    assert answer(asked(request), trusted_users=frozenset({"admin"}))["response"]["allowed"]


@pytest.mark.parametrize("operation", ["UPDATE", "DELETE", "CONNECT", ""])
def test_only_creations_are_decided(operation: str) -> None:
    request = recorded("kubectl-gpu")["request"] | {"operation": operation}
    response = answer(asked(request))["response"]
    assert response["allowed"]
    assert "patch" not in response


@pytest.mark.parametrize(
    ("body", "content_type", "code", "message"),
    [
        (b"{}", "text/plain", 400, "contentType=text/plain, expected application/json"),
        (b"", JSON, 400, "request body is empty"),
        (b" " * (7 * 2**20 + 1), JSON, 413, "request entity is too large; limit is 7340032 bytes"),
        (b"{", JSON, 400, "not a valid AdmissionReview: "),
        (b"\xff", JSON, 400, "not a valid AdmissionReview: "),
        (b"{}", JSON, 400, "expected AdmissionReview"),
        (asked({"operation": "CREATE"}), JSON, 400, "not a valid Pod: "),
        (asked({"operation": "CREATE", "object": None}), JSON, 400, "not a valid Pod: "),
        (asked({"operation": "CREATE", "object": {"spec": 1}}), JSON, 400, "not a valid Pod: "),
        (asked({"operation": "CREATE", "object": {}}), JSON, 403, "pod has no containers"),
    ],
)
def test_what_cannot_be_read_is_an_answer_too(body: bytes, content_type: str, code: int, message: str) -> None:
    response = answer(body, content_type)["response"]
    assert not response["allowed"]
    assert response["status"]["code"] == code
    assert response["status"]["message"].startswith(message)


@pytest.mark.parametrize(
    "raw",
    [b'"\xff"', b'"\\ud800"', b"1e999999", b'{"a":' * 100_000 + b"1" + b"}" * 100_000],
    ids=["no UTF-8", "half a character", "beyond all numbers", "bottomless"],
)
def test_an_object_that_no_apiserver_writes_is_an_answer_too(raw: bytes) -> None:
    body = b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"operation":"CREATE","object":'
    response = answer(body + raw + b"}}")["response"]
    assert response["status"]["code"] == 400


class Broken(Vendor):
    key = "broken"

    def mutate(self, *_: Any) -> bool:
        raise ZeroDivisionError("a secret")


def test_a_fault_of_ours_is_an_answer_that_gives_nothing_away() -> None:
    response = answer((SAMPLES / "plain.request.json").read_bytes(), by={"broken": Broken(ResourceNames())})["response"]
    assert not response["allowed"]
    assert response["uid"] == recorded("plain")["request"]["uid"]
    assert response["status"] == {"code": 500, "message": "the webhook failed: ZeroDivisionError"}


def variables(count: int) -> list[dict[str, str]]:
    return [{"name": f"V{number}", "value": ""} for number in range(count)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"containers": [{"name": f"c{number}"} for number in range(70_000)]}, "values (lists, objects and their"),
        ({"containers": [{"name": "c", "env": variables(10_001)}]}, "values (lists, objects and their"),
        ({"nodeName": "n" * (4 << 20)}, "bytes; at most 4194304"),
    ],
    ids=["containers", "variables", "text"],
)
def test_a_pod_that_would_keep_others_waiting_is_refused_before_it_is_read(
    monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], message: str
) -> None:
    request = recorded("kubectl-gpu")["request"]
    request["object"]["spec"] |= change
    monkeypatch.setattr("tessera.scheduler.admission.webhook.admit", None)
    response = answer(asked(request))["response"]
    assert (response["allowed"], response["status"]["code"]) == (False, 403)
    assert message in response["status"]["message"]


def test_a_pod_as_large_as_etcd_takes_is_completed() -> None:
    request = recorded("kubectl-gpu")["request"]
    spec = request["object"]["spec"]
    spec["containers"][0] |= {"args": ["<" * 240_000] * 6, "env": variables(9_000)}
    assert len(json.dumps(request)) > 1.5 * 2**20
    response = answer(asked(request))["response"]
    assert response["allowed"]
    assert response["patch"]


@pytest.mark.parametrize("field", ["containers", "initContainers", "ephemeralContainers"])
def test_a_pod_with_more_containers_than_anybody_needs_is_refused(field: str) -> None:
    request = recorded("kubectl-gpu")["request"]
    spec = request["object"]["spec"]
    there = len(spec["containers"]) if field != "containers" else 0
    spec[field] = [{"name": f"c{number}"} for number in range(MAX_CONTAINERS - there)]
    assert "in one pod; at most" not in answer(asked(request))["response"]["status"].get("message", "")
    spec[field].append({"name": "more"})
    response = answer(asked(request))["response"]
    assert (response["allowed"], response["status"]["code"]) == (False, 403)
    assert response["status"]["message"] == f"{MAX_CONTAINERS + 1} containers in one pod; at most {MAX_CONTAINERS}"
    assert "patch" not in response
