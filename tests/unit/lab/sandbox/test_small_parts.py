from __future__ import annotations

from typing import Any

import pytest

from tessera.wire.quantity import NotAQuantity
from tessera_lab.sandbox.api.defaults import canonical_quantity, quality_of_service
from tessera_lab.sandbox.api.errors import StatusError, status_error
from tessera_lab.sandbox.api.kinds import EVENTS, NODES, PODS, Json
from tessera_lab.sandbox.api.requests import (
    MAX_DEPTH,
    decode_json,
    decode_yaml,
    field_text,
    parse_fields,
    parse_labels,
    read_object,
)
from tessera_lab.sandbox.api.responses import format_age, format_duration
from tessera_lab.sandbox.api.store import History
from tessera_lab.sandbox.api.validation import is_extended_resource


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("3000", "3k"),
        (3000, "3k"),
        ("3001", "3001"),
        ("0.1", "100m"),
        ("1000m", "1"),
        ("1500m", "1500m"),
        ("1024Mi", "1Gi"),
        ("1536Ki", "1536Ki"),
        ("0.5Ki", "512"),
        ("1Ki", "1Ki"),
        ("1.5Gi", "1536Mi"),
        ("0.0001Ki", "103m"),
        ("1e3", "1e3"),
        ("12E2", "1200"),
        ("1E", "1E"),
        ("0", "0"),
        ("-0.5", "-500m"),
        ("-3000", "-3k"),
        ("0.1n", "1m"),
        ("-1500u", "-2m"),
        (2.5, "2500m"),
        ("1000000000000000000000", "1000E"),
    ],
)
def test_a_quantity_has_one_spelling(text: str | int | float, written: str) -> None:
    assert canonical_quantity(text) == written
    assert canonical_quantity(written) == written


def test_what_is_no_quantity_has_no_spelling() -> None:
    assert isinstance(canonical_quantity("lots"), NotAQuantity)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "<invalid>"),
        (-0.5, "0s"),
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (600, "10m"),
        (3 * 3600, "3h"),
        (49 * 3600, "2d"),
        (8 * 3600, "8h"),
        (48 * 3600, "2d"),
        (8 * 86_400, "8d"),
    ],
)
def test_an_age_is_short(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("timestamp", "text"),
    [(None, "<unknown>"), ("soon", "<invalid>"), ("1970-01-01T00:00:10Z", "90s"), ("1970-01-01T00:00:10", "90s")],
)
def test_an_age_needs_a_time(timestamp: str | None, text: str) -> None:
    assert format_age(timestamp, 100.0) == text


@pytest.mark.parametrize(
    ("selector", "labels", "matches"),
    [
        ("", {}, True),
        (" a = b , c ", {"a": "b", "c": ""}, True),
        ("a=", {"a": ""}, True),
        ("a in (b,)", {"a": ""}, True),
        ("a notin (b)", {}, True),
        ("a!=b", {}, True),
        ("x.y/a-b_c=1", {"x.y/a-b_c": "1"}, True),
        ("a>5", {"a": "6"}, True),
        ("a>5", {"a": "5"}, False),
        ("a<5", {"a": "4"}, True),
        ("a<5", {"a": "x"}, False),
        ("a<5", {}, False),
        ("! a", {"a": "1"}, False),
        ("in in (in)", {"in": "in"}, True),
    ],
)
def test_label_selectors(selector: str, labels: dict[str, str], matches: bool) -> None:
    assert all(term.matches(labels) for term in parse_labels(selector)) is matches


@pytest.mark.parametrize("selector", ["a=b=c", "a in b", "a in (b", "=b", ",", "a b", "a,,b", "!"])
def test_a_malformed_label_selector_is_refused(selector: str) -> None:
    with pytest.raises(StatusError) as refusal:
        parse_labels(selector)
    assert refusal.value.code == 400


@pytest.mark.parametrize(
    ("selector", "matches"),
    [
        ("metadata.name=a\\,b\\=c", True),
        ("metadata.name==x", False),
        ("spec.unschedulable=false", True),
        ("spec.unschedulable!=true", True),
    ],
)
def test_field_selectors(selector: str, matches: bool) -> None:
    content: Json = {"metadata": {"name": "a,b=c"}, "spec": {}}
    assert all(term.matches(content) for term in parse_fields(NODES, selector)) is matches


@pytest.mark.parametrize("selector", ["metadata.name", "status.phase=x"])
def test_an_unknown_field_is_refused(selector: str) -> None:
    with pytest.raises(StatusError):
        parse_fields(NODES, selector)


def test_the_source_of_an_event_is_its_component() -> None:
    assert field_text({"source": {"component": "a"}}, "source") == "a"
    assert field_text({"reportingComponent": "b"}, "source") == "b"
    assert field_text({"spec": {"unschedulable": True}}, "spec.unschedulable") == "true"
    assert parse_fields(EVENTS, "source=a")


def test_a_history_says_when_it_has_forgotten() -> None:
    history: History[str] = History(2)
    for version, entry in ((1, "a"), (5, "b"), (7, "c")):
        history.append(version, entry)
    assert history.since(0) is None
    assert list(history.since(1) or ()) == ["b", "c"]
    assert list(history.since(6) or ()) == ["c"]
    assert list(history.since(7) or ()) == []
    history.forget(9)
    assert history.since(8) is None
    assert list(history.since(9) or ()) == []


@pytest.mark.parametrize(
    ("containers", "quality"),
    [
        ([{}], "BestEffort"),
        ([{"limits": {"nvidia.com/gpu": "1"}}], "BestEffort"),
        ([{"requests": {"cpu": "1"}}], "Burstable"),
        ([{"limits": {"cpu": "1", "memory": "1"}, "requests": {"cpu": "1", "memory": "1"}}], "Guaranteed"),
        ([{"limits": {"cpu": "1", "memory": "1"}, "requests": {"cpu": "1", "memory": "1"}}, {}], "Burstable"),
        ([{"limits": {"cpu": "x", "memory": "1"}, "requests": {"cpu": "1", "memory": "1"}}], "Burstable"),
    ],
)
def test_quality_of_service_follows_cpu_and_memory(containers: list[Json], quality: str) -> None:
    assert quality_of_service({"containers": [{"resources": each} for each in containers]}) == quality


@pytest.mark.parametrize(
    ("name", "extended"),
    [("cpu", False), ("nvidia.com/gpu", True), ("kubernetes.io/x", False), ("requests.nvidia.com/gpu", False)],
)
def test_extended_resources_have_a_domain_of_their_own(name: str, extended: bool) -> None:
    assert is_extended_resource(name) is extended


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"\xff", b'{"a":1}x', b"[" * 100_000, (b'{"a":' * (MAX_DEPTH + 2)) + b"1" + b"}" * (MAX_DEPTH + 2)],
)
def test_a_body_that_cannot_be_read_is_refused_at_once(body: bytes) -> None:
    with pytest.raises(StatusError) as refusal:
        decode_json(body)
    assert refusal.value.code == 400


@pytest.mark.parametrize("body", [b"a: [", b"\xff", b"a: &x [1]\nb: *y\n"])
def test_yaml_that_cannot_be_read_is_refused(body: bytes) -> None:
    with pytest.raises(StatusError) as refusal:
        decode_yaml(body)
    assert refusal.value.code == 400


@pytest.mark.parametrize("body", [[], "pod", {"kind": "Node"}, {"apiVersion": "v2"}, {"spec": {"containers": [7]}}])
def test_an_object_of_another_kind_is_refused(body: Any) -> None:
    with pytest.raises(StatusError) as refusal:
        read_object(PODS, body)
    assert refusal.value.code == 400


def test_null_counts_as_absent() -> None:
    body = {"metadata": {"name": "p", "creationTimestamp": None, "labels": {}}, "spec": {"containers": [{"env": None}]}}
    found = read_object(PODS, body)
    assert found["metadata"] == {"name": "p"}
    assert found["spec"] == {"containers": [{}]}


def test_a_fault_on_purpose_has_a_reason() -> None:
    assert status_error(429).reason == "TooManyRequests"
    assert status_error(418).reason == "I'maTeapot"
