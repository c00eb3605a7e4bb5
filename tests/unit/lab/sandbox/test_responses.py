from __future__ import annotations

from typing import Any

import pytest

from tessera_lab.sandbox.api.kinds import KINDS, Json, ResourceKind
from tessera_lab.sandbox.api.responses import pod_state, table
from tessera_lab.sandbox.api.store import make_stored

NOW = 1_800_000_000.0
THEN = "2027-01-15T07:59:00Z"

BY_KIND: dict[str, ResourceKind] = {each.kind: each for each in KINDS}


def cells(kind: str, content: Json) -> dict[str, Any]:
    content = {"metadata": {"name": "x", "creationTimestamp": THEN} | content.pop("metadata", {})} | content
    stored = make_stored(BY_KIND[kind], content, 1)
    shown = table(BY_KIND[kind], [stored], now=NOW, metadata={}, include="None")
    (row,) = shown["rows"]
    assert "object" not in row
    return dict(zip((each["name"] for each in shown["columnDefinitions"]), row["cells"], strict=True))


@pytest.mark.parametrize(
    ("kind", "content", "shown"),
    [
        ("ServiceAccount", {}, {"Name": "x", "Age": "60s"}),
        ("Node", {}, {"Status": "Unknown", "Roles": "<none>", "OS-Image": "<unknown>"}),
        (
            "Node",
            {
                "metadata": {"labels": {"node-role.kubernetes.io/b": "", "node-role.kubernetes.io/a": ""}},
                "spec": {"unschedulable": True},
                "status": {
                    "conditions": [{"type": "Ready", "status": "True"}],
                    "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
                    "nodeInfo": {"kubeletVersion": "v1.36.3"},
                },
            },
            {"Status": "Ready,SchedulingDisabled", "Roles": "a,b", "Internal-IP": "10.0.0.1", "Version": "v1.36.3"},
        ),
        ("Node", {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}, {"Status": "NotReady"}),
        (
            "Event",
            {
                "involvedObject": {"kind": "Pod", "name": "p"},
                "source": {"component": "kubelet", "host": "n"},
                "lastTimestamp": THEN,
                "message": " text\n",
            },
            {"Last Seen": "60s", "Object": "pod/p", "Source": "kubelet, n", "Message": "text", "Count": 1},
        ),
        (
            "Event",
            {"reportingComponent": "me", "eventTime": THEN, "series": {"count": 4, "lastObservedTime": THEN}},
            {"Last Seen": "60s", "Source": "me", "Count": 4},
        ),
    ],
)
def test_a_row_says_what_kubectl_shows(kind: str, content: Json, shown: dict[str, Any]) -> None:
    found = cells(kind, content)
    assert {name: found[name] for name in shown} == shown


def container(ready: bool = False, **state: Json) -> Json:
    return {"ready": ready, "state": state, "restartCount": 2}


@pytest.mark.parametrize(
    ("pod", "state"),
    [
        ({}, "<unknown>"),
        ({"status": {"phase": "Pending"}}, "Pending"),
        ({"spec": {"schedulingGates": [{}]}, "status": {"phase": "Pending"}}, "SchedulingGated"),
        ({"status": {"phase": "Failed", "reason": "UnexpectedAdmissionError"}}, "UnexpectedAdmissionError"),
        ({"status": {"phase": "Pending", "containerStatuses": [container(waiting={"reason": "Err"})]}}, "Err"),
        ({"status": {"phase": "Failed", "containerStatuses": [container(terminated={"exitCode": 3})]}}, "ExitCode:3"),
        (
            {
                "status": {
                    "phase": "Running",
                    "containerStatuses": [
                        container(ready=True, running={}),
                        container(terminated={"reason": "Completed"}),
                    ],
                }
            },
            "Running",
        ),
        ({"metadata": {"deletionTimestamp": THEN}, "status": {"phase": "Running"}}, "Terminating"),
        ({"metadata": {"deletionTimestamp": THEN}, "status": {"reason": "NodeLost"}}, "Unknown"),
    ],
)
def test_the_state_of_a_pod_in_a_word(pod: Json, state: str) -> None:
    assert pod_state({"metadata": {}, "spec": {}} | pod) == state


def test_a_pod_counts_ready_containers_and_restarts() -> None:
    status = {"containerStatuses": [container(ready=True), container()]}
    found = cells("Pod", {"spec": {"containers": [{}, {}], "nodeName": "n"}, "status": status})
    assert (found["Ready"], found["Restarts"], found["Node"]) == ("1/2", "4", "n")


@pytest.mark.parametrize(("include", "kind"), [("Object", "Pod"), ("Metadata", "PartialObjectMetadata")])
def test_a_row_can_carry_its_object(include: str, kind: str) -> None:
    stored = make_stored(BY_KIND["Pod"], {"metadata": {"name": "x"}, "spec": {"containers": []}}, 1)
    shown = table(BY_KIND["Pod"], [stored], now=NOW, metadata={}, include=include)
    assert shown["rows"][0]["object"]["kind"] == kind
