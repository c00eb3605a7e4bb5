"""What creation adds to an object: the built-in admission, its identity, and its first status.

The order is kube-apiserver's: `run_builtin_admission` before the webhooks, `assign_identity` after them.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from fractions import Fraction

from tessera.wire.quantity import NotAQuantity, read
from tessera_lab.sandbox.api.defaults import containers
from tessera_lab.sandbox.api.errors import forbidden
from tessera_lab.sandbox.api.kinds import (
    JOBS,
    NAMESPACES,
    PODS,
    SERVICE_ACCOUNTS,
    WORKLOADS,
    Json,
    ResourceKind,
)
from tessera_lab.sandbox.api.store import Store

SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
"""letters of generated names: without vowels, so that they form no words"""
MAX_GENERATED = 63 - 5
"""characters kept of a generateName"""

TOKEN_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
TOKEN_S = 3607
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


def run_builtin_admission(kind: ResourceKind, content: Json, *, store: Store, identities: IdentitySource) -> None:
    """The built-in admission of a pod: service account, tolerations, priority."""
    if kind is not PODS:
        return
    content["status"] = {}
    spec = content["spec"]
    _use_service_account(content, store, identities)
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


def _use_service_account(content: Json, store: Store, identities: IdentitySource) -> None:
    spec, namespace = content["spec"], content["metadata"]["namespace"]
    account = spec.setdefault("serviceAccountName", "default")
    spec["serviceAccount"] = account
    held = store.get(SERVICE_ACCOUNTS, namespace, account)
    if held is None:
        why = f'error looking up service account {namespace}/{account}: serviceaccount "{account}" not found'
        raise forbidden(PODS, content["metadata"].get("name", ""), why)
    automount = held.object.get("automountServiceAccountToken", True)
    if spec.get("automountServiceAccountToken", automount):
        _mount_token(spec, identities)


def _mount_token(spec: Json, identities: IdentitySource) -> None:
    without = [
        each
        for each in containers(spec)
        if not any(mount.get("mountPath") == TOKEN_PATH for mount in each.get("volumeMounts", ()))
    ]
    if not without:
        return
    name = f"kube-api-access-{identities.suffix()}"
    namespace_file = {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}
    sources: list[Json] = [
        {"serviceAccountToken": {"expirationSeconds": TOKEN_S, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [namespace_file]}},
    ]
    spec.setdefault("volumes", []).append({"name": name, "projected": {"sources": sources, "defaultMode": 0o644}})
    for container in without:
        mount = {"name": name, "readOnly": True, "mountPath": TOKEN_PATH}
        container.setdefault("volumeMounts", []).append(mount)


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
