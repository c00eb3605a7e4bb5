"""The resources that the embedded API server serves, and how they differ.

A kind that is added here can be stored, listed, watched and discovered. Rules about its content are in `defaults`,
`validation` and `responses`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]
"""an API object, or a part of one, as plain data"""

STATUS = "status"
BINDING = "binding"
EVICTION = "eviction"
SCALE = "scale"
LOG = "log"


# Compared by identity: there is one instance per kind, and it is the key of every lookup.
@dataclass(frozen=True, slots=True, eq=False)
class ResourceKind:
    """One resource: its names and its rules."""

    kind: str
    plural: str
    group: str = ""
    version: str = "v1"
    namespaced: bool = True
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    """what a fieldSelector may name besides metadata.name and metadata.namespace"""
    unconditional_update: bool = True
    """whether a PUT without resourceVersion overwrites the object; otherwise it is refused"""
    create_on_update: bool = False
    returns_deleted: bool = False
    """whether a DELETE answers with the object instead of a Status"""
    counts_generations: bool = False
    label_name: bool = False
    """whether names are DNS labels (no dots, 63 characters)"""
    orphans_by_default: bool = False
    """whether a DELETE that does not say what happens to dependents keeps them"""

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def has_status(self) -> bool:
        return STATUS in self.subresources


PODS = ResourceKind(
    "Pod",
    "pods",
    short_names=("po",),
    categories=("all",),
    subresources=(STATUS, BINDING, EVICTION, LOG),
    fields=(
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "spec.hostNetwork",
        "status.phase",
        "status.podIP",
        "status.nominatedNodeName",
    ),
    returns_deleted=True,
    counts_generations=True,
)
NODES = ResourceKind(
    "Node", "nodes", namespaced=False, short_names=("no",), subresources=(STATUS,), fields=("spec.unschedulable",)
)
NAMESPACES = ResourceKind(
    "Namespace",
    "namespaces",
    namespaced=False,
    short_names=("ns",),
    subresources=(STATUS,),
    fields=("status.phase",),
    returns_deleted=True,
    label_name=True,
)
EVENTS = ResourceKind(
    "Event",
    "events",
    short_names=("ev",),
    fields=(
        "involvedObject.kind",
        "involvedObject.namespace",
        "involvedObject.name",
        "involvedObject.uid",
        "involvedObject.apiVersion",
        "involvedObject.resourceVersion",
        "involvedObject.fieldPath",
        "reason",
        "reportingComponent",
        "source",
        "type",
    ),
    create_on_update=True,
)
SECRETS = ResourceKind("Secret", "secrets", fields=("type",))
CONFIG_MAPS = ResourceKind("ConfigMap", "configmaps", short_names=("cm",))
RESOURCE_QUOTAS = ResourceKind(
    "ResourceQuota", "resourcequotas", short_names=("quota",), subresources=(STATUS,), returns_deleted=True
)
SERVICE_ACCOUNTS = ResourceKind("ServiceAccount", "serviceaccounts", short_names=("sa",), returns_deleted=True)
POD_DISRUPTION_BUDGETS = ResourceKind(
    "PodDisruptionBudget",
    "poddisruptionbudgets",
    group="policy",
    short_names=("pdb",),
    subresources=(STATUS,),
    unconditional_update=False,
    returns_deleted=True,
    counts_generations=True,
)
LEASES = ResourceKind("Lease", "leases", group="coordination.k8s.io", unconditional_update=False, create_on_update=True)
MUTATING_WEBHOOKS = ResourceKind(
    "MutatingWebhookConfiguration",
    "mutatingwebhookconfigurations",
    group="admissionregistration.k8s.io",
    namespaced=False,
    categories=("api-extensions",),
    unconditional_update=False,
    counts_generations=True,
)
VALIDATING_WEBHOOKS = ResourceKind(
    "ValidatingWebhookConfiguration",
    "validatingwebhookconfigurations",
    group="admissionregistration.k8s.io",
    namespaced=False,
    categories=("api-extensions",),
    unconditional_update=False,
    counts_generations=True,
)
DEPLOYMENTS = ResourceKind(
    "Deployment",
    "deployments",
    group="apps",
    short_names=("deploy",),
    categories=("all",),
    subresources=(STATUS, SCALE),
    counts_generations=True,
)
REPLICA_SETS = ResourceKind(
    "ReplicaSet",
    "replicasets",
    group="apps",
    short_names=("rs",),
    categories=("all",),
    subresources=(STATUS, SCALE),
    fields=("status.replicas",),
    counts_generations=True,
)
JOBS = ResourceKind(
    "Job",
    "jobs",
    group="batch",
    categories=("all",),
    subresources=(STATUS,),
    fields=("status.successful",),
    counts_generations=True,
    orphans_by_default=True,
)
DEVICE_CLASSES = ResourceKind(
    "DeviceClass", "deviceclasses", group="resource.k8s.io", namespaced=False, counts_generations=True
)
RESOURCE_CLAIMS = ResourceKind(
    "ResourceClaim", "resourceclaims", group="resource.k8s.io", subresources=(STATUS,), returns_deleted=True
)
RESOURCE_CLAIM_TEMPLATES = ResourceKind(
    "ResourceClaimTemplate", "resourceclaimtemplates", group="resource.k8s.io", returns_deleted=True
)
RESOURCE_SLICES = ResourceKind(
    "ResourceSlice",
    "resourceslices",
    group="resource.k8s.io",
    namespaced=False,
    fields=("spec.nodeName", "spec.driver"),
    returns_deleted=True,
    counts_generations=True,
)

SCALED = (DEPLOYMENTS, REPLICA_SETS)
"""workloads with a number of replicas"""
WORKLOADS = (*SCALED, JOBS)
"""kinds with a pod template"""

KINDS: tuple[ResourceKind, ...] = (
    CONFIG_MAPS,
    EVENTS,
    NAMESPACES,
    NODES,
    PODS,
    RESOURCE_QUOTAS,
    SECRETS,
    SERVICE_ACCOUNTS,
    POD_DISRUPTION_BUDGETS,
    LEASES,
    MUTATING_WEBHOOKS,
    VALIDATING_WEBHOOKS,
    *WORKLOADS,
    DEVICE_CLASSES,
    RESOURCE_CLAIMS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_SLICES,
)

BY_PATH: dict[tuple[str, str, str], ResourceKind] = {(each.group, each.version, each.plural): each for each in KINDS}


@dataclass(frozen=True, slots=True)
class ReviewKind:
    """A resource that is answered and never stored."""

    kind: str
    plural: str
    group: str
    version: str = "v1"


REVIEWS: tuple[ReviewKind, ...] = (
    ReviewKind("SelfSubjectReview", "selfsubjectreviews", "authentication.k8s.io"),
    ReviewKind("TokenReview", "tokenreviews", "authentication.k8s.io"),
    ReviewKind("SelfSubjectAccessReview", "selfsubjectaccessreviews", "authorization.k8s.io"),
    ReviewKind("SubjectAccessReview", "subjectaccessreviews", "authorization.k8s.io"),
)
REVIEW_BY_PATH: dict[tuple[str, str, str], ReviewKind] = {
    (each.group, each.version, each.plural): each for each in REVIEWS
}
