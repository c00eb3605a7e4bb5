"""The rules about content that matter here: names, labels, sizes, amounts and immutable fields.

They return a list of problems, empty if there are none. kube-apiserver has far more rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from tessera.wire.objects import LabelSelector
from tessera.wire.quantity import NotAQuantity, NotWhole, read
from tessera_lab.sandbox.api.errors import FieldProblem
from tessera_lab.sandbox.api.kinds import (
    EVENTS,
    JOBS,
    POD_DISRUPTION_BUDGETS,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    SCALED,
    STATUS,
    WORKLOADS,
    Json,
    ResourceKind,
)
from tessera_lab.sandbox.api.store import ENCODE

MAX_ANNOTATIONS = 256 * 1024
"""bytes of all keys and values of an object"""
SHOWN = 80
"""characters of a bad value that a message quotes"""

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.ASCII)
_QUALIFIED = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", re.ASCII)
_LABEL_TEXT = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with "
    "an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
_SUBDOMAIN_TEXT = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_PERCENTAGE = re.compile(r"[0-9]{1,3}%", re.ASCII)
_MUTABLE = ("activeDeadlineSeconds", "terminationGracePeriodSeconds", "tolerations", "schedulingGates")
_MUTABLE_TEXT = (
    "Forbidden: pod updates may not change fields other than `spec.containers[*].image`,"
    "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing "
    "tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)
_PERCENT = re.compile(r"[0-9]{1,9}%", re.ASCII)
_STRATEGIES = ("RollingUpdate", "Recreate")


def find_problems(kind: ResourceKind, content: Json) -> list[FieldProblem]:
    """What is wrong with an object."""
    found = [*_metadata(kind, content["metadata"])]
    if kind is PODS:
        found += _pod(content["spec"], "spec")
    elif kind in WORKLOADS:
        found += _workload(kind, content["spec"])
    elif kind is EVENTS:
        found += _event(content)
    elif kind is POD_DISRUPTION_BUDGETS:
        found += _budget(content.get("spec", {}))
    elif kind is RESOURCE_SLICES:
        found += _resource_slice(content.get("spec", {}))
    return found


def find_change_problems(kind: ResourceKind, old: Json, new: Json, *, subresource: str) -> list[FieldProblem]:
    """What is wrong with a change, besides the object itself."""
    if kind is PODS and subresource != STATUS:
        return [*_pod_change(old["spec"], new["spec"])]
    if kind in WORKLOADS and subresource != STATUS:
        return [*_workload_change(kind, old["spec"], new["spec"])]
    if kind is RESOURCE_SLICES:
        return [*_resource_slice_change(old["spec"], new["spec"])]
    if kind is RESOURCE_CLAIMS and old.get("spec") != new.get("spec"):
        return [FieldProblem("spec", f"Invalid value: {_shown(new.get('spec'))}: field is immutable")]
    return []


def _resource_slice(spec: Json) -> Iterator[FieldProblem]:
    for name in ("driver", "pool"):
        if not spec.get(name):
            yield FieldProblem(f"spec.{name}", "Required value", "FieldValueRequired")
    if spec.get("devices") and spec.get("sharedCounters"):
        yield FieldProblem("spec", 'Invalid value: "": only one of `sharedCounters` or `devices` is allowed')


def _resource_slice_change(old: Json, new: Json) -> Iterator[FieldProblem]:
    for path in ("pool.name", "driver", "nodeName"):
        before, after = old, new
        for part in path.split("."):
            before, after = (each.get(part, {}) for each in (before, after))
        if before != after:
            yield FieldProblem(f"spec.{path}", f"Invalid value: {_shown(after)}: field is immutable")


def _budget(spec: Json) -> Iterator[FieldProblem]:
    for name in ("minAvailable", "maxUnavailable"):
        amount = spec.get(name, 0)
        if isinstance(amount, str) and not _PERCENTAGE.fullmatch(amount):
            yield FieldProblem(f"spec.{name}", f"Invalid value: {_shown(amount)}: a valid percent string is e.g. '25%'")


def is_name(kind: ResourceKind, name: str) -> bool:
    if kind.label_name:
        return _LABEL.fullmatch(name) is not None
    return len(name) <= 253 and _SUBDOMAIN.fullmatch(name) is not None


def _metadata(kind: ResourceKind, metadata: Json) -> Iterator[FieldProblem]:
    name = metadata.get("name", "")
    if not is_name(kind, name):
        why = _LABEL_TEXT if kind.label_name else _SUBDOMAIN_TEXT
        yield FieldProblem("metadata.name", f"Invalid value: {_shown(name)}: {why}")
    for key, value in metadata.get("labels", {}).items():
        if not _is_qualified(key):
            yield FieldProblem("metadata.labels", f"Invalid value: {_shown(key)}: not a qualified name")
        if value and not _QUALIFIED.fullmatch(value):
            why = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.'"
            yield FieldProblem("metadata.labels", f"Invalid value: {_shown(value)}: {why}")
    size = 0
    for key, value in metadata.get("annotations", {}).items():
        size += len(key.encode(errors="replace")) + len(value.encode(errors="replace"))
        if not _is_qualified(key.lower()):
            yield FieldProblem("metadata.annotations", f"Invalid value: {_shown(key)}: not a qualified name")
    if size > MAX_ANNOTATIONS:
        text = f"Too long: may not be more than {MAX_ANNOTATIONS} bytes"
        yield FieldProblem("metadata.annotations", text, "FieldValueTooLong")


def _is_qualified(key: str) -> bool:
    prefix, slash, name = key.rpartition("/")
    if slash and (len(prefix) > 253 or not _SUBDOMAIN.fullmatch(prefix)):
        return False
    return _QUALIFIED.fullmatch(name) is not None


def _pod(spec: Json, path: str) -> Iterator[FieldProblem]:
    if not spec.get("containers"):
        yield FieldProblem(f"{path}.containers", "Required value", "FieldValueRequired")
    seen: set[str] = set()
    for group in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(group, ())):
            where = f"{path}.{group}[{index}]"
            name = container.get("name", "")
            if not name:
                yield FieldProblem(f"{where}.name", "Required value", "FieldValueRequired")
            elif not _LABEL.fullmatch(name):
                yield FieldProblem(f"{where}.name", f"Invalid value: {_shown(name)}: {_LABEL_TEXT}")
            elif name in seen:
                yield FieldProblem(f"{where}.name", f"Duplicate value: {_shown(name)}", "FieldValueDuplicate")
            seen.add(name)
            if not container.get("image"):
                yield FieldProblem(f"{where}.image", "Required value", "FieldValueRequired")
            yield from _resources(container.get("resources", {}), f"{where}.resources")


def _resources(resources: Json, where: str) -> Iterator[FieldProblem]:
    limits, requests = resources.get("limits", {}), resources.get("requests", {})
    for key, amounts in (("limits", limits), ("requests", requests)):
        for name, text in amounts.items():
            if not _is_qualified(name):
                yield FieldProblem(
                    f"{where}.{key}[{name[:SHOWN]}]", f"Invalid value: {_shown(name)}: not a resource name"
                )
            amount = read(text)
            if not isinstance(amount, NotAQuantity) and amount.value < 0:
                why = "must be greater than or equal to 0"
                yield FieldProblem(f"{where}.{key}[{name}]", f"Invalid value: {_shown(text)}: {why}")
            elif is_extended_resource(name) and isinstance(amount, NotWhole):
                yield FieldProblem(f"{where}.{key}[{name}]", f"Invalid value: {_shown(text)}: must be an integer")
    for name, text in requests.items():
        yield from _request(name, text, limits, f"{where}.requests")


def _request(name: str, text: str, limits: Json, where: str) -> Iterator[FieldProblem]:
    request = read(text)
    limit = read(limits[name]) if name in limits else None
    if isinstance(request, NotAQuantity) or isinstance(limit, NotAQuantity):
        return
    if limit is None:
        if is_extended_resource(name):
            text = "Required value: Limit must be set for non overcommitable resources"
            yield FieldProblem(where.replace("requests", "limits"), text, "FieldValueRequired")
    elif is_extended_resource(name) and request.value != limit.value:
        yield FieldProblem(where, f"Invalid value: {_shown(text)}: must be equal to {name} limit of {limits[name]}")
    elif request.value > limit.value:
        yield FieldProblem(
            where, f"Invalid value: {_shown(text)}: must be less than or equal to {name} limit of {limits[name]}"
        )


def is_extended_resource(name: str) -> bool:
    """Whether the resource is an extended one, such as device plugins offer."""
    prefix, slash, _ = name.rpartition("/")
    return bool(slash) and not prefix.endswith("kubernetes.io") and not name.startswith("requests.")


def _pod_change(old: Json, new: Json) -> Iterator[FieldProblem]:
    if _fixed_part(old) != _fixed_part(new):
        yield FieldProblem("spec", _MUTABLE_TEXT, "FieldValueForbidden")


def _fixed_part(spec: Json) -> Json:
    fixed = {key: value for key, value in spec.items() if key not in _MUTABLE}
    for group in ("initContainers", "containers"):
        fixed[group] = [{k: v for k, v in each.items() if k != "image"} for each in spec.get(group, ())]
    return fixed


def _workload(kind: ResourceKind, spec: Json) -> Iterator[FieldProblem]:
    for key in ("replicas", "completions", "parallelism", "backoffLimit"):
        if spec.get(key, 0) < 0:
            text = f"Invalid value: {spec[key]}: must be greater than or equal to 0"
            yield FieldProblem(f"spec.{key}", text)
    yield from _strategy(spec.get("strategy", {}), "spec.strategy")
    template = spec["template"]
    selector = spec.get("selector", {})
    if not (selector.get("matchLabels") or selector.get("matchExpressions")):
        yield FieldProblem("spec.selector", "Required value", "FieldValueRequired")
    else:
        labels = template["metadata"].get("labels") or {}
        if not msgspec.convert(selector, LabelSelector).matches(labels):
            text = f"Invalid value: {ENCODE(labels).decode()}: `selector` does not match template `labels`"
            yield FieldProblem("spec.template.metadata.labels", text)
    restart = template["spec"]["restartPolicy"]
    allowed = ("OnFailure", "Never") if kind is JOBS else ("Always",)
    if restart not in allowed:
        valid = ", ".join(f'"{each}"' for each in allowed)
        text = f"Unsupported value: {_shown(restart)}: supported values: {valid}"
        yield FieldProblem("spec.template.spec.restartPolicy", text, "FieldValueNotSupported")
    yield from _pod(template["spec"], "spec.template.spec")


def _strategy(strategy: Json, where: str) -> Iterator[FieldProblem]:
    if strategy.get("type", _STRATEGIES[0]) not in _STRATEGIES:
        valid = ", ".join(f'"{each}"' for each in _STRATEGIES)
        text = f"Unsupported value: {_shown(strategy['type'])}: supported values: {valid}"
        yield FieldProblem(where, text, "FieldValueNotSupported")
    for key, value in strategy.get("rollingUpdate", {}).items():
        path = f"{where}.rollingUpdate.{key}"
        if isinstance(value, str) and not _PERCENT.fullmatch(value):
            why = "a valid percent string must be a numeric string followed by an ending '%'"
            yield FieldProblem(path, f"Invalid value: {_shown(value)}: {why}")
        elif isinstance(value, int) and value < 0:
            yield FieldProblem(path, f"Invalid value: {value}: must be greater than or equal to 0")


def _workload_change(kind: ResourceKind, old: Json, new: Json) -> Iterator[FieldProblem]:
    for key in ("selector",) if kind in SCALED else ("selector", "completions", "template"):
        if old.get(key) != new.get(key):
            value = ENCODE(new.get(key)).decode()
            yield FieldProblem(f"spec.{key}", f"Invalid value: {value}: field is immutable")


def _event(content: Json) -> Iterator[FieldProblem]:
    about = content.get("involvedObject", {}).get("namespace", "")
    namespace = content["metadata"].get("namespace", "")
    if namespace != (about or "default"):
        why = "does not match event.namespace"
        yield FieldProblem("involvedObject.namespace", f"Invalid value: {_shown(about)}: {why}")


def _shown(value: object) -> str:
    text = str(value)
    return f'"{text[:SHOWN]}{"..." if len(text) > SHOWN else ""}"'
