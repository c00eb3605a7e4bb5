from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tessera.wire.admission import (
    MAX_BODY,
    MAX_VALUES,
    V1,
    VERSIONS,
    Review,
    Verdict,
    allowed,
    content_refusal,
    decode_review,
    denied,
    encode_verdict,
    errored,
    patched,
    size_refusal,
)
from tessera.wire.errors import WireError
from tessera.wire.objects import Pod, decode_object

SAMPLES = Path(__file__).parents[2] / "samples" / "admission"


def sample(name: str) -> bytes:
    return (SAMPLES / f"{name}.request.json").read_bytes()


def review(**request: Any) -> bytes:
    return msgspec.json.encode({"apiVersion": V1, "kind": "AdmissionReview", "request": {"uid": "u", **request}})


def answer(verdict: Verdict, to: Review | None = None) -> Any:
    return msgspec.json.decode(encode_verdict(verdict, to))


@pytest.mark.parametrize("name", sorted(path.name.split(".")[0] for path in SAMPLES.glob("*.json")))
def test_a_recorded_request_is_read_as_it_was_sent(name: str) -> None:
    sent = msgspec.json.decode(sample(name))["request"]
    read = decode_review(sample(name))
    assert (read.api_version, read.uid, read.operation) == (V1, sent["uid"], "CREATE")
    assert (read.namespace, read.name) == (sent["namespace"], sent.get("name", ""))
    assert read.username == sent["userInfo"]["username"]
    assert msgspec.json.decode(read.object) == sent["object"]
    pod = decode_object(bytes(read.object), Pod)
    assert pod.spec.scheduler_name == "default-scheduler"
    assert [c.name for c in pod.app_containers] == [c["name"] for c in sent["object"]["spec"]["containers"]]


@pytest.mark.parametrize(("name", "has_name"), [("plain", True), ("generateName", False), ("deployment", False)])
def test_a_pod_whose_name_is_generated_has_none_yet(name: str, has_name: bool) -> None:
    pod = decode_object(bytes(decode_review(sample(name)).object), Pod)
    assert bool(pod.metadata.name) is has_name
    assert bool(pod.metadata.generate_name) is not has_name


@pytest.mark.parametrize("version", VERSIONS)
def test_the_answer_speaks_the_version_of_the_request(version: str) -> None:
    read = decode_review(sample("plain").replace(b'"admission.k8s.io/v1"', f'"{version}"'.encode()))
    said = answer(allowed(), read)
    assert (said["apiVersion"], said["kind"]) == (version, "AdmissionReview")
    assert said["response"]["uid"] == read.uid


@pytest.mark.parametrize(
    ("verdict", "response"),
    [
        (allowed(), {"allowed": True, "status": {"code": 200}}),
        (allowed("not ours"), {"allowed": True, "status": {"code": 200, "message": "not ours"}}),
        (
            denied("pod has node assigned"),
            {"allowed": False, "status": {"code": 403, "reason": "Forbidden", "message": "pod has node assigned"}},
        ),
        (errored(400, "bad"), {"allowed": False, "status": {"code": 400, "message": "bad"}}),
        (patched([]), {"allowed": True, "status": {"code": 200}}),
        (allowed(warnings=["a", "b"]), {"allowed": True, "status": {"code": 200}, "warnings": ["a", "b"]}),
        (
            denied("no", warnings=["why"]),
            {"allowed": False, "status": {"code": 403, "reason": "Forbidden", "message": "no"}, "warnings": ["why"]},
        ),
    ],
)
def test_an_answer_has_the_shape_the_apiserver_knows(verdict: Verdict, response: dict[str, Any]) -> None:
    assert answer(verdict, decode_review(review()))["response"] == {"uid": "u", **response}


def test_a_patch_travels_as_base64_of_its_operations() -> None:
    operations = [{"op": "replace", "path": "/spec/schedulerName", "value": "hami-scheduler"}]
    response = answer(patched(operations, warnings=["w"]), decode_review(review()))["response"]
    assert response["patchType"] == "JSONPatch"
    assert msgspec.json.decode(base64.b64decode(response["patch"], validate=True)) == operations
    assert (response["allowed"], response["status"], response["warnings"]) == (True, {"code": 200}, ["w"])


def test_a_request_that_could_not_be_read_is_answered_in_the_newest_version() -> None:
    assert answer(errored(400, "bad")) == {
        "apiVersion": V1,
        "kind": "AdmissionReview",
        "response": {"uid": "", "allowed": False, "status": {"code": 400, "message": "bad"}},
    }


@pytest.mark.parametrize("content_type", ["", "text/plain", "application/json; charset=utf-8", "Application/JSON"])
def test_only_plain_json_is_read(content_type: str) -> None:
    message = f"contentType={content_type}, expected application/json"
    assert content_refusal(content_type) == errored(400, message)


def test_plain_json_of_bearable_size_is_read() -> None:
    assert content_refusal("application/json") is None
    assert size_refusal(b"x") is None
    assert size_refusal(b"x" * MAX_BODY) is None
    assert size_refusal(b"," * MAX_VALUES) is None


def test_nothing_and_too_much_are_not_read() -> None:
    assert size_refusal(b"") == errored(400, "request body is empty")
    assert size_refusal(b"x" * 7340033) == errored(413, "request entity is too large; limit is 7340032 bytes")


@pytest.mark.parametrize("value", [b"1,", b"{},", b"[],"])
def test_a_body_of_bearable_size_with_too_many_values_is_not_read(value: bytes) -> None:
    assert size_refusal(value * (MAX_VALUES + 1)) == errored(413, "request entity is too large; limit is 250000 values")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "not a valid AdmissionReview"),
        (b"[]", "not a valid AdmissionReview"),
        (b"\xff", "not a valid AdmissionReview"),
        (b"[" * 100_000, "not a valid AdmissionReview"),
        (b'{"request":{"object":' + b"[" * 100_000, "not a valid AdmissionReview"),
        (b"{}", "found '' of ''"),
        (b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v2","request":{}}', "of 'admission.k8s.io/v2'"),
        (b'{"kind":"Pod","apiVersion":"admission.k8s.io/v1","request":{}}', "found 'Pod' of 'admission.k8s.io/v1'"),
        (b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1"}', "the AdmissionReview has no request"),
        (review(uid=5), "not a valid AdmissionReview: .*uid"),
    ],
)
def test_a_request_that_cannot_be_read_says_why(body: bytes, said: str) -> None:
    with pytest.raises(WireError, match=said):
        decode_review(body)
