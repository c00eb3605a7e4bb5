"""The form of a response, whichever the Accept header names first: JSON, or the table of `kubectl get`.

Cells of tables depend only on the object and the time; kinds without their own columns show name and age.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tessera_lab.sandbox.api.errors import StatusError
from tessera_lab.sandbox.api.kinds import Json, ResourceKind
from tessera_lab.sandbox.api.lists_and_watches import StoredPage
from tessera_lab.sandbox.api.store import ENCODE, Stored

NONE = "<none>"
_NUMBERS = ("Count", "Up-to-date", "Available", "Desired", "Current")
"""columns of whole numbers"""

Cells = Callable[[Json, float], list[Any]]


@dataclass(frozen=True, slots=True)
class TableLayout:
    """The columns of one kind; those in `wide` appear only with `-o wide`."""

    columns: tuple[str, ...]
    cells: Cells
    wide: frozenset[str] = frozenset()


def table(
    kind: ResourceKind,
    items: Iterable[Stored],
    *,
    now: float,
    metadata: Json,
    include: str,
) -> Json:
    """A `metav1.Table` of the items."""
    layout = LAYOUTS.get(kind.kind, _PLAIN)
    rows = []
    for each in items:
        row: Json = {"cells": layout.cells(each.object, now)}
        if include == "Object":
            row["object"] = each.object
        elif include != "None":
            heading = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"}
            row["object"] = heading | {"metadata": each.object["metadata"]}
        rows.append(row)
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": [_definition(name, layout) for name in layout.columns],
        "rows": rows,
    }


def _definition(name: str, layout: TableLayout) -> Json:
    kind = "integer" if name in _NUMBERS else "string"
    shown = "name" if name == "Name" else ""
    return {"name": name, "type": kind, "format": shown, "description": "", "priority": int(name in layout.wide)}


def _since(content: Json, now: float) -> str:
    return format_age(content["metadata"].get("creationTimestamp"), now)


def _plain(content: Json, now: float) -> list[Any]:
    return [content["metadata"]["name"], _since(content, now)]


def _pod(content: Json, now: float) -> list[Any]:
    spec, status = content["spec"], content.get("status", {})
    statuses = status.get("containerStatuses", [])
    ready = sum(bool(each.get("ready")) for each in statuses)
    restarts = sum(each.get("restartCount", 0) for each in statuses)
    return [
        content["metadata"]["name"],
        f"{ready}/{len(spec['containers'])}",
        pod_state(content),
        str(restarts),
        _since(content, now),
        status.get("podIP") or NONE,
        spec.get("nodeName") or NONE,
        status.get("nominatedNodeName") or NONE,
        NONE,
    ]


def pod_state(content: Json) -> str:
    """The pod's status in one word: the reason of a failing container, if there is one."""
    status, metadata = content.get("status", {}), content["metadata"]
    word: str = status.get("reason") or status.get("phase") or UNKNOWN
    if content["spec"].get("schedulingGates") and word == "Pending":
        word = "SchedulingGated"
    running = False
    for each in status.get("containerStatuses", ()):
        state = each.get("state", {})
        reason = state.get("waiting", {}).get("reason") or state.get("terminated", {}).get("reason")
        if reason:
            word = reason
        elif "terminated" in state:
            word = f"ExitCode:{state['terminated'].get('exitCode', 0)}"
        running = running or (bool(each.get("ready")) and "running" in state)
    if word == "Completed" and running:
        word = "Running"
    if "deletionTimestamp" in metadata:
        return "Unknown" if status.get("reason") == "NodeLost" else "Terminating"
    return word


def _node(content: Json, now: float) -> list[Any]:
    status, metadata = content.get("status", {}), content["metadata"]
    ready: Json = next((each for each in status.get("conditions", ()) if each.get("type") == "Ready"), {})
    words = [
        {"True": "Ready", "False": "NotReady"}.get(ready.get("status", ""), "Unknown" if not ready else "NotReady")
    ]
    if content.get("spec", {}).get("unschedulable"):
        words.append("SchedulingDisabled")
    prefix = "node-role.kubernetes.io/"
    roles = sorted(key.removeprefix(prefix) for key in metadata.get("labels", {}) if key.startswith(prefix))
    addresses = {each.get("type"): each.get("address") for each in status.get("addresses", ())}
    info = status.get("nodeInfo", {})
    return [
        metadata["name"],
        ",".join(words),
        ",".join(role for role in roles if role) or NONE,
        _since(content, now),
        info.get("kubeletVersion", ""),
        addresses.get("InternalIP") or NONE,
        addresses.get("ExternalIP") or NONE,
        info.get("osImage") or UNKNOWN,
        info.get("kernelVersion") or UNKNOWN,
        info.get("containerRuntimeVersion") or UNKNOWN,
    ]


def _event(content: Json, now: float) -> list[Any]:
    about, series, source = (content.get(key, {}) for key in ("involvedObject", "series", "source"))
    first = content.get("firstTimestamp") or content.get("eventTime") or content["metadata"].get("creationTimestamp")
    last = series.get("lastObservedTime") or content.get("lastTimestamp") or first
    count = series.get("count") or content.get("count") or 1
    component = source.get("component") or content.get("reportingComponent", "")
    host = source.get("host", "")
    return [
        format_age(last, now),
        content.get("type", ""),
        content.get("reason", ""),
        f"{about.get('kind', '').lower()}/{about.get('name', '')}",
        about.get("fieldPath", ""),
        f"{component}, {host}" if host else component,
        content.get("message", "").strip(),
        format_age(first, now),
        count,
        content["metadata"]["name"],
    ]


def _template_cells(content: Json) -> list[Any]:
    """Containers, images and selector, for `-o wide`."""
    spec = content["spec"]
    containers = spec["template"]["spec"].get("containers", ())
    selected = spec.get("selector", {}).get("matchLabels", {})
    return [
        ",".join(each["name"] for each in containers),
        ",".join(each.get("image", "") for each in containers),
        ",".join(f"{key}={value}" for key, value in sorted(selected.items())) or NONE,
    ]


def _deployment(content: Json, now: float) -> list[Any]:
    status = content.get("status", {})
    return [
        content["metadata"]["name"],
        f"{status.get('readyReplicas', 0)}/{content['spec']['replicas']}",
        status.get("updatedReplicas", 0),
        status.get("availableReplicas", 0),
        _since(content, now),
        *_template_cells(content),
    ]


def _replica_set(content: Json, now: float) -> list[Any]:
    status = content.get("status", {})
    return [
        content["metadata"]["name"],
        content["spec"]["replicas"],
        status.get("replicas", 0),
        status.get("readyReplicas", 0),
        _since(content, now),
        *_template_cells(content),
    ]


def _job(content: Json, now: float) -> list[Any]:
    spec, status = content["spec"], content.get("status", {})
    done, parallelism = status.get("succeeded", 0), spec["parallelism"]
    open_end = f"{done}/1 of {parallelism}" if parallelism > 1 else f"{done}/1"
    duration = ""
    if status.get("startTime"):
        ended = status.get("completionTime")
        until = datetime.fromisoformat(ended).timestamp() if ended else now
        duration = format_age(status["startTime"], until)
    return [
        content["metadata"]["name"],
        job_state(content),
        f"{done}/{spec['completions']}" if "completions" in spec else open_end,
        duration,
        _since(content, now),
        *_template_cells(content),
    ]


def job_state(content: Json) -> str:
    """The job's status in one word."""
    true = {each["type"] for each in content.get("status", {}).get("conditions", ()) if each.get("status") == "True"}
    for kind in ("Complete", "Failed"):
        if kind in true:
            return kind
    if "deletionTimestamp" in content["metadata"]:
        return "Terminating"
    return "Running"


_TEMPLATE = ("Containers", "Images", "Selector")
_PLAIN = TableLayout(("Name", "Age"), _plain)

LAYOUTS: dict[str, TableLayout] = {
    "Pod": TableLayout(
        ("Name", "Ready", "Status", "Restarts", "Age", "IP", "Node", "Nominated Node", "Readiness Gates"),
        _pod,
        frozenset({"IP", "Node", "Nominated Node", "Readiness Gates"}),
    ),
    "Node": TableLayout(
        (
            *("Name", "Status", "Roles", "Age", "Version"),
            *("Internal-IP", "External-IP", "OS-Image", "Kernel-Version", "Container-Runtime"),
        ),
        _node,
        frozenset({"Internal-IP", "External-IP", "OS-Image", "Kernel-Version", "Container-Runtime"}),
    ),
    "Event": TableLayout(
        (
            *("Last Seen", "Type", "Reason", "Object", "Subobject", "Source"),
            *("Message", "First Seen", "Count", "Name"),
        ),
        _event,
        frozenset({"Subobject", "Source", "First Seen", "Count", "Name"}),
    ),
    "Deployment": TableLayout(
        ("Name", "Ready", "Up-to-date", "Available", "Age", *_TEMPLATE), _deployment, frozenset(_TEMPLATE)
    ),
    "ReplicaSet": TableLayout(
        ("Name", "Desired", "Current", "Ready", "Age", *_TEMPLATE), _replica_set, frozenset(_TEMPLATE)
    ),
    "Job": TableLayout(("Name", "Status", "Completions", "Duration", "Age", *_TEMPLATE), _job, frozenset(_TEMPLATE)),
}


UNKNOWN = "<unknown>"


def format_age(timestamp: str | None, now: float) -> str:
    """The time since an RFC 3339 timestamp."""
    if not timestamp:
        return UNKNOWN
    try:
        then = datetime.fromisoformat(timestamp)
    except ValueError:
        return "<invalid>"
    return format_duration(now - then.replace(tzinfo=then.tzinfo or UTC).timestamp())


def format_duration(seconds: float) -> str:
    """Nearly as kubectl prints durations: in the largest unit of which there are two."""
    whole = int(seconds)
    if whole < -1:
        return "<invalid>"
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if whole >= 2 * size:
            return f"{whole // size}{unit}"
    return f"{max(whole, 0)}s"


@dataclass(frozen=True, slots=True)
class ResponseForm:
    """One form of objects."""

    now: Callable[[], float]
    is_table: bool = False
    include: str = "Metadata"

    def one(self, stored: Stored) -> bytes:
        if self.is_table:
            metadata = {"resourceVersion": str(stored.version)}
            return ENCODE(table(stored.kind, [stored], now=self.now(), metadata=metadata, include=self.include))
        return stored.whole

    def many(self, kind: ResourceKind, page: StoredPage) -> bytes:
        metadata: Json = {"resourceVersion": str(page.version)}
        if page.token:
            metadata["continue"] = page.token
        if page.remaining is not None:
            metadata["remainingItemCount"] = page.remaining
        if self.is_table:
            return ENCODE(table(kind, page.items, now=self.now(), metadata=metadata, include=self.include))
        heading = {"kind": f"{kind.kind}List", "apiVersion": kind.api_version, "metadata": metadata}
        return ENCODE(heading)[:-1] + b',"items":[' + b",".join(each.bare for each in page.items) + b"]}"


def choose_form(accept: str, query: Mapping[str, str], now: Callable[[], float]) -> ResponseForm:
    """The first form in `accept` that this server knows."""
    for part in accept.split(",") if accept else ("*/*",):
        media, *rest = (piece.strip() for piece in part.split(";"))
        if media not in ("application/json", "application/*", "*/*"):
            continue
        parameters = dict(piece.split("=", 1) for piece in rest if "=" in piece)
        shape = parameters.get("as", "")
        if not shape:
            return ResponseForm(now)
        is_ours = parameters.get("g") == "meta.k8s.io" and parameters.get("v") in ("v1", "v1beta1")
        if is_ours and shape == "Table":
            return ResponseForm(now, is_table=True, include=query.get("includeObject", "Metadata"))
    message = "only the following media types are accepted: application/json"
    raise StatusError(406, "NotAcceptable", message)
