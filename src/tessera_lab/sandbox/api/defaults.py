"""What kube-apiserver adds to an object: defaults on every write, and identity and first status on creation.

Defaults are idempotent: they are set before webhooks see the object and again after they have patched it. Quantities
are rewritten in the one form that kube-apiserver stores: `3000` becomes `3k`, `0.1` `100m`, `1024Mi` `1Gi`. On creation
`run_builtin_admission` comes before the webhooks, `assign_identity` after them.
"""

from __future__ import annotations

import base64
import binascii
import random
import re
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any

from tessera.wire.quantity import NotAQuantity, read
from tessera_lab.sandbox.api.errors import bad_request, forbidden
from tessera_lab.sandbox.api.kinds import JOBS, NAMESPACES, PODS, SERVICE_ACCOUNTS, WORKLOADS, Json, ResourceKind
from tessera_lab.sandbox.api.store import Store

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


def _job(content: Json) -> None:
    spec = content.setdefault("spec", {})
    if "completions" not in spec and "parallelism" not in spec:
        spec["completions"] = 1
    _workload(content, {"parallelism": 1, "backoffLimit": 6})


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


SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
"""letters of generated names: without vowels, so that they form no words"""
MAX_GENERATED = 63 - 5
"""characters kept of a generateName"""

EVICTED_AFTER_S = 300
"""seconds that a pod stays on a node that is not ready, by default"""
PRIORITIES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}


class IdentitySource:
    """Makes uids and name suffixes; with a seed, the same ones every time."""

    def __init__(self, *, now: Callable[[], float], seed: int | None = None) -> None:
        self._random = random.Random(seed)
        self._now = now

    def uid(self) -> str:
        return str(uuid.UUID(int=self._random.getrandbits(128), version=4))

    def suffix(self) -> str:
        return "".join(self._random.choices(SUFFIX_LETTERS, k=5))

    def timestamp(self, *, after_s: float = 0) -> str:
        return datetime.fromtimestamp(self._now() + after_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def run_builtin_admission(kind: ResourceKind, content: Json, *, store: Store) -> None:
    """The built-in admission of a pod: service account, tolerations, priority. No token is mounted."""
    if kind is not PODS:
        return
    content["status"] = {}
    spec = content["spec"]
    _use_service_account(content, store)
    add_default_tolerations(spec)
    spec.setdefault("priority", PRIORITIES.get(spec.get("priorityClassName", ""), 0))
    spec.setdefault("preemptionPolicy", "PreemptLowerPriority")


def assign_identity(kind: ResourceKind, content: Json, *, identities: IdentitySource) -> None:
    """Sets uid, times and first status. The caller makes the name from generateName, and retries if it exists."""
    metadata = content["metadata"]
    for key in ("deletionTimestamp", "deletionGracePeriodSeconds"):
        metadata.pop(key, None)
    metadata["uid"] = identities.uid()
    metadata["creationTimestamp"] = identities.timestamp()
    if kind.counts_generations:
        metadata["generation"] = 1
    if kind is PODS:
        content["status"] = {"phase": "Pending", "qosClass": quality_of_service(content["spec"])}
    elif kind is NAMESPACES:
        content["spec"] = {"finalizers": ["kubernetes"]}
        content["status"] = {"phase": "Active"}
    elif kind.kind == "ResourceQuota" or kind in WORKLOADS:
        content["status"] = {}


def generate_job_selector(content: Json) -> None:
    """Labels the pods of a Job with its uid and name, and selects by the uid, unless the user selects."""
    spec, metadata = content["spec"], content["metadata"]
    if spec.get("manualSelector"):
        return
    labels = spec["template"]["metadata"].setdefault("labels", {})
    for key, value in (("job-name", metadata["name"]), ("controller-uid", metadata["uid"])):
        labels.setdefault(key, value)
        labels.setdefault(f"{JOBS.group}.kubernetes.io/{key}", value)
    selected = spec.setdefault("selector", {}).setdefault("matchLabels", {})
    selected.setdefault(f"{JOBS.group}.kubernetes.io/controller-uid", metadata["uid"])


def generate_name(prefix: str, identities: IdentitySource) -> str:
    return prefix[:MAX_GENERATED] + identities.suffix()


def quality_of_service(spec: Json) -> str:
    """The pod's QoS class, from cpu and memory of all containers."""
    guaranteed, any_amount = True, False
    for container in containers(spec):
        resources = container.get("resources", {})
        limits, requests = resources.get("limits", {}), resources.get("requests", {})
        for name in ("cpu", "memory"):
            limit, request = _amount(limits, name), _amount(requests, name)
            any_amount = any_amount or bool(limit or request)
            guaranteed = guaranteed and bool(limit) and limit == request
    if not any_amount:
        return "BestEffort"
    return "Guaranteed" if guaranteed else "Burstable"


def _amount(amounts: Json, name: str) -> Fraction:
    found = read(amounts.get(name, "0"))
    return Fraction(0) if isinstance(found, NotAQuantity) else Fraction(found.value)


def _use_service_account(content: Json, store: Store) -> None:
    spec, namespace = content["spec"], content["metadata"]["namespace"]
    account = spec.setdefault("serviceAccountName", "default")
    spec["serviceAccount"] = account
    held = store.get(SERVICE_ACCOUNTS, namespace, account)
    if held is None:
        why = f'error looking up service account {namespace}/{account}: serviceaccount "{account}" not found'
        raise forbidden(PODS, content["metadata"].get("name", ""), why)


def add_default_tolerations(spec: Json) -> None:
    """Adds the default tolerations unless others cover them, on every write of a pod."""
    held = spec.setdefault("tolerations", [])
    for taint in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"):
        covered = any(
            each.get("key") in (taint, None, "") and each.get("effect") in ("NoExecute", None, "") for each in held
        )
        if not covered:
            toleration = {"key": taint, "operator": "Exists", "effect": "NoExecute"}
            held.append(toleration | {"tolerationSeconds": EVICTED_AFTER_S})
