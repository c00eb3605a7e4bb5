"""The types of the fields that this server reads. A body with other types is refused.

Objects are those of `tessera.wire`; here is only what the product does not read: webhooks, workloads and the bodies of
subresources. Fields that nothing here reads are stored as they come.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tessera.kube.leases import LeaseSpec
from tessera.wire import objects, resource_api
from tessera.wire.objects import SELECTOR_OPERATORS, Metadata, Partial
from tessera_lab.sandbox.api.kinds import Json


class LabelSelector(objects.LabelSelector, frozen=True):
    def __post_init__(self) -> None:
        """The scheduler reads operators that it does not know; kube-apiserver lets none in."""
        for each in self.match_expressions or ():
            if each.operator not in SELECTOR_OPERATORS:
                raise ValueError(f"{each.operator!r} is not a valid label selector operator")


class Thing(Partial, frozen=True):
    """Any object."""

    metadata: Metadata = Metadata()


class Lease(Thing, frozen=True):
    spec: LeaseSpec = LeaseSpec()


class PodDisruptionBudgetSpec(Partial, frozen=True):
    selector: LabelSelector | None = None
    min_available: int | str = 0
    max_unavailable: int | str = 0
    unhealthy_pod_eviction_policy: str = ""


class PodDisruptionBudget(Thing, frozen=True):
    spec: PodDisruptionBudgetSpec = PodDisruptionBudgetSpec()


class ClientConfig(Partial, frozen=True):
    url: str = ""
    ca_bundle: str = ""
    service: Json | None = None


class Rule(Partial, frozen=True):
    operations: tuple[str, ...] = ()
    api_groups: tuple[str, ...] = ()
    api_versions: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    scope: str = "*"


class Webhook(Partial, frozen=True):
    name: str = ""
    client_config: ClientConfig = ClientConfig()
    rules: tuple[Rule, ...] = ()
    namespace_selector: LabelSelector = LabelSelector()
    object_selector: LabelSelector = LabelSelector()
    failure_policy: str = "Fail"
    reinvocation_policy: str = "Never"
    timeout_seconds: int = 10
    admission_review_versions: tuple[str, ...] = ()


class WebhookConfiguration(Thing, frozen=True):
    webhooks: tuple[Webhook, ...] = ()


class PodTemplate(Thing, frozen=True):
    spec: objects.PodSpec = objects.PodSpec()


class WorkloadSpec(Partial, frozen=True):
    """Of Deployments and ReplicaSets."""

    replicas: int = 1
    selector: LabelSelector = LabelSelector()
    template: PodTemplate = PodTemplate()


class Workload(Thing, frozen=True):
    spec: WorkloadSpec = WorkloadSpec()


class JobSpec(Partial, frozen=True):
    completions: int | None = None
    parallelism: int = 1
    backoff_limit: int = 6
    selector: LabelSelector = LabelSelector()
    template: PodTemplate = PodTemplate()


class Job(Thing, frozen=True):
    spec: JobSpec = JobSpec()


class ScaleSpec(Partial, frozen=True):
    replicas: int = 0


class Scale(Thing, frozen=True):
    spec: ScaleSpec = ScaleSpec()


class BindingTarget(Partial, frozen=True):
    kind: str = ""
    name: str = ""


class Binding(Thing, frozen=True):
    target: BindingTarget = BindingTarget()


class Preconditions(Partial, frozen=True):
    uid: str | None = None
    resource_version: str | None = None


class DeleteOptions(Partial, frozen=True):
    kind: str = "DeleteOptions"
    grace_period_seconds: int | None = None
    propagation_policy: str | None = None
    preconditions: Preconditions = Preconditions()
    dry_run: tuple[str, ...] = ()


class Eviction(Thing, frozen=True):
    delete_options: DeleteOptions = DeleteOptions()


SHAPES: Mapping[str, type[Any]] = MappingProxyType(
    {
        "Pod": objects.Pod,
        "Node": objects.Node,
        "ResourceQuota": objects.ResourceQuota,
        "PodDisruptionBudget": PodDisruptionBudget,
        "Lease": Lease,
        "MutatingWebhookConfiguration": WebhookConfiguration,
        "ValidatingWebhookConfiguration": WebhookConfiguration,
        "Deployment": Workload,
        "ReplicaSet": Workload,
        "Job": Job,
        "DeviceClass": resource_api.DeviceClass,
        "ResourceClaim": resource_api.ResourceClaim,
        "ResourceClaimTemplate": resource_api.ResourceClaimTemplate,
    }
)
"""by kind; of the others only the metadata is read"""
