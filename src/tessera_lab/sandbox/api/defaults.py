"""Defaults that kube-apiserver sets when it reads an object, before any webhook sees it.

Idempotent: they are set again after webhooks have patched the object. Quantities are rewritten in the one form that
kube-apiserver stores: `3000` becomes `3k`, `0.1` `100m`, `1024Mi` `1Gi`. Defaults of creation only are in `creation`.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

from tessera.wire.quantity import NotAQuantity, read
from tessera_lab.sandbox.api.errors import bad_request
from tessera_lab.sandbox.api.kinds import Json, ResourceKind

FILE_MODE = 0o644
"""of files in volumes made from secrets, config maps and the like"""


def set_defaults(kind: ResourceKind, content: Json) -> None:
    """Sets defaults for what `content` leaves out."""
    fill = _DEFAULTS.get(kind.kind)
    if fill is not None:
        fill(content)


def containers(spec: Json) -> Iterator[Json]:
    yield from spec.get("initContainers", ())
    yield from spec.get("containers", ())


def canonical_amounts(amounts: Json, where: str, *, only: tuple[str, ...] | None = None) -> None:
    """`only`: the fields that are quantities; all by default."""
    for name, amount in amounts.items():
        if only is not None and name not in only:
            continue
        written = canonical_quantity(amount)
        if isinstance(written, NotAQuantity):
            raise bad_request(f"unable to parse quantity {str(amount)[:80]!r} of {where}[{name}]: {written.reason}")
        amounts[name] = written


def _pod(content: Json) -> None:
    spec = content.setdefault("spec", {})
    _pod_spec(spec)
    for container in containers(spec):
        resources = container["resources"]
        if resources.get("limits"):
            resources["requests"] = resources["limits"] | resources.get("requests", {})


def _pod_spec(spec: Json) -> None:
    """Of a pod, and of a template of pods."""
    for key, value in (
        ("restartPolicy", "Always"),
        ("terminationGracePeriodSeconds", 30),
        ("dnsPolicy", "ClusterFirst"),
        ("schedulerName", "default-scheduler"),
        ("enableServiceLinks", True),
    ):
        spec.setdefault(key, value)
    spec.setdefault("securityContext", {})
    account = spec.get("serviceAccountName") or spec.get("serviceAccount")
    if account:
        spec["serviceAccountName"] = spec["serviceAccount"] = account
    for container in containers(spec):
        _container(container)
    for volume in spec.get("volumes", ()):
        _volume(volume)


def _container(container: Json) -> None:
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    if not container.get("imagePullPolicy"):
        container["imagePullPolicy"] = "Always" if _is_latest(container.get("image", "")) else "IfNotPresent"
    resources = container.setdefault("resources", {})
    for key in ("limits", "requests"):
        canonical_amounts(resources.get(key, {}), f"resources.{key}")
    for port in container.get("ports", ()):
        port.setdefault("protocol", "TCP")
    for env in container.get("env", ()):
        if "fieldRef" in env.get("valueFrom", ()):
            env["valueFrom"]["fieldRef"].setdefault("apiVersion", "v1")


def _is_latest(image: str) -> bool:
    name = image.rsplit("/", 1)[-1]
    return "@" not in name and (":" not in name or name.endswith(":latest"))


def _volume(volume: Json) -> None:
    if set(volume) <= {"name"}:
        volume["emptyDir"] = {}
    for source in ("secret", "configMap", "projected", "downwardAPI"):
        if source in volume:
            volume[source].setdefault("defaultMode", FILE_MODE)


def _node(content: Json) -> None:
    content.setdefault("spec", {})
    status = content.get("status", {})
    for key in ("capacity", "allocatable"):
        canonical_amounts(status.get(key, {}), f"status.{key}")
    if status.get("capacity"):
        status.setdefault("allocatable", dict(status["capacity"]))


def _namespace(content: Json) -> None:
    metadata = content["metadata"]
    if metadata.get("name"):
        metadata.setdefault("labels", {})["kubernetes.io/metadata.name"] = metadata["name"]


def _secret(content: Json) -> None:
    content.setdefault("type", "Opaque")
    written = content.pop("stringData", {})
    if written:
        content.setdefault("data", {}).update(
            {key: base64.b64encode(text.encode(errors="surrogatepass")).decode() for key, text in written.items()}
        )
    _check_base64(content.get("data", {}))


def _config_map(content: Json) -> None:
    _check_base64(content.get("binaryData", {}))


def _check_base64(data: Json) -> None:
    for key, text in data.items():
        try:
            base64.b64decode("".join(text.split()), validate=True)
        except (binascii.Error, ValueError) as error:
            raise bad_request(f"illegal base64 data in {key}: {error}") from error


def _quota(content: Json) -> None:
    for part in ("spec", "status"):
        for key in ("hard", "used"):
            canonical_amounts(content.get(part, {}).get(key, {}), f"{part}.{key}")


def _workload(content: Json, defaults: Json) -> None:
    spec = content.setdefault("spec", {})
    for key, value in defaults.items():
        spec.setdefault(key, value)
    template = spec.setdefault("template", {})
    template.setdefault("metadata", {})
    _pod_spec(template.setdefault("spec", {}))


def _deployment(content: Json) -> None:
    _workload(content, {"replicas": 1, "revisionHistoryLimit": 10, "progressDeadlineSeconds": 600})
    strategy = content["spec"].setdefault("strategy", {})
    if strategy.setdefault("type", "RollingUpdate") == "RollingUpdate":
        rolling = strategy.setdefault("rollingUpdate", {})
        rolling.setdefault("maxUnavailable", "25%")
        rolling.setdefault("maxSurge", "25%")


def _replica_set(content: Json) -> None:
    _workload(content, {"replicas": 1})


def _stateful_set(content: Json) -> None:
    _workload(content, {"replicas": 1, "podManagementPolicy": "OrderedReady", "revisionHistoryLimit": 10})
    strategy = content["spec"].setdefault("updateStrategy", {})
    if strategy.setdefault("type", "RollingUpdate") == "RollingUpdate":
        strategy.setdefault("rollingUpdate", {}).setdefault("partition", 0)


def _job(content: Json) -> None:
    spec = content.setdefault("spec", {})
    if "completions" not in spec and "parallelism" not in spec:
        spec["completions"] = 1
    _workload(content, {"parallelism": 1, "backoffLimit": 6, "completionMode": "NonIndexed", "suspend": False})


def _webhooks(content: Json) -> None:
    mutating = content.get("kind") == "MutatingWebhookConfiguration"
    for webhook in content.get("webhooks", ()):
        defaults: dict[str, Any] = {
            "failurePolicy": "Fail",
            "matchPolicy": "Equivalent",
            "namespaceSelector": {},
            "objectSelector": {},
            "timeoutSeconds": 10,
        }
        if mutating:
            defaults["reinvocationPolicy"] = "Never"
        for key, value in defaults.items():
            webhook.setdefault(key, value)
        for rule in webhook.get("rules", ()):
            rule.setdefault("scope", "*")
        if "service" in webhook.get("clientConfig", ()):
            webhook["clientConfig"]["service"].setdefault("port", 443)


def _resource_slice(content: Json) -> None:
    for device in content.get("spec", {}).get("devices", ()):
        for name, capacity in device.get("capacity", {}).items():
            canonical_amounts(capacity, f"capacity[{name}]", only=("value",))
            policy = capacity.get("requestPolicy", {})
            canonical_amounts(policy, "requestPolicy", only=("default",))
            canonical_amounts(policy.get("validRange", {}), "validRange")


def _resource_claim(content: Json) -> None:
    for request in content.get("spec", {}).get("devices", {}).get("requests", ()):
        for asked in (*filter(None, [request.get("exactly")]), *request.get("firstAvailable", ())):
            if asked.setdefault("allocationMode", "ExactCount") == "ExactCount":
                asked.setdefault("count", 1)
            canonical_amounts(asked.get("capacity", {}).get("requests", {}), "capacity.requests")
    allocation = content.get("status", {}).get("allocation", {})
    for result in allocation.get("devices", {}).get("results", ()):
        canonical_amounts(result.get("consumedCapacity", {}), "consumedCapacity")


_DEFAULTS: dict[str, Callable[[Json], None]] = {
    "Pod": _pod,
    "Node": _node,
    "Namespace": _namespace,
    "Secret": _secret,
    "ConfigMap": _config_map,
    "ResourceQuota": _quota,
    "MutatingWebhookConfiguration": _webhooks,
    "ValidatingWebhookConfiguration": _webhooks,
    "Deployment": _deployment,
    "ReplicaSet": _replica_set,
    "StatefulSet": _stateful_set,
    "Job": _job,
    "ResourceSlice": _resource_slice,
    "ResourceClaim": _resource_claim,
}


_DECIMAL = {-3: "m", 0: "", 3: "k", 6: "M", 9: "G", 12: "T", 15: "P", 18: "E"}
_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_EXPONENT = re.compile(r"[0-9.][eE][+-]?[0-9]")


def canonical_quantity(text: str | int | float) -> str | NotAQuantity:
    """A quantity as the API server writes it: rounded away from zero to thousandths."""
    found = read(text)
    if isinstance(found, NotAQuantity):
        return found
    value = _to_thousandths(Fraction(found.value))
    spelled = str(text)
    if spelled.endswith("i") and abs(value) >= 1024 and value.denominator == 1:
        return _binary(value.numerator)
    return _decimal(value, exponent=bool(_EXPONENT.search(spelled)))


def _to_thousandths(value: Fraction) -> Fraction:
    rounded = -(-abs(value.numerator) * 1000 // value.denominator)
    return Fraction(rounded if value > 0 else -rounded, 1000)


def _binary(value: int) -> str:
    steps = 0
    while steps < len(_BINARY) - 1 and value % 1024 == 0:
        value //= 1024
        steps += 1
    return f"{value}{_BINARY[steps]}"


def _decimal(value: Fraction, *, exponent: bool) -> str:
    parts = int(value * 1000)
    power = -3
    while parts and power < 18 and parts % 1000 == 0:
        parts //= 1000
        power += 3
    if not parts:
        return "0"
    if exponent:
        return f"{parts}e{power}" if power else str(parts)
    return f"{parts}{_DECIMAL[power]}"
