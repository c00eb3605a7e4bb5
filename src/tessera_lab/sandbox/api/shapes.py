"""The types of the fields that this server reads. A body with other types is refused.

Deliberately partial: fields that nothing here reads are stored as they come. Where `tessera.wire` has a struct, that
struct is the base or the type itself.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tessera.kube.leases import LeaseSpec
from tessera.wire import claim_spec, objects, resource_api
from tessera.wire.objects import SELECTOR_OPERATORS, Metadata, Partial, QuantityText
from tessera_lab.sandbox.api.kinds import Json

Maps = list[Json]


class LabelSelector(objects.LabelSelector, frozen=True):
    def __post_init__(self) -> None:
        """The scheduler reads operators that it does not know; kube-apiserver lets none in."""
        for each in self.match_expressions or ():
            if each.operator not in SELECTOR_OPERATORS:
                raise ValueError(f"{each.operator!r} is not a valid label selector operator")


class VolumeMount(Partial, frozen=True):
    name: str = ""
    mount_path: str = ""


class Container(objects.Container, frozen=True):
    image: str = ""
    image_pull_policy: str = ""
    command: list[str] | None = None
    args: list[str] | None = None
    ports: Maps | None = None
    volume_mounts: list[VolumeMount] | None = None


class Volume(Partial, frozen=True):
    name: str = ""
    secret: Json | None = None
    config_map: Json | None = None
    projected: Json | None = None
    downward_api: Json | None = msgspec.field(default=None, name="downwardAPI")


class PodSpec(Partial, frozen=True):
    containers: list[Container] | None = None
    init_containers: list[Container] | None = None
    volumes: list[Volume] | None = None
    tolerations: Maps | None = None
    scheduling_gates: Maps | None = None
    node_selector: dict[str, str] | None = None
    node_name: str = ""
    scheduler_name: str = ""
    service_account_name: str = ""
    service_account: str = ""
    restart_policy: str = ""
    priority_class_name: str = ""
    preemption_policy: str = ""
    priority: int = 0
    host_network: bool = False
    automount_service_account_token: bool = True
    termination_grace_period_seconds: int = 0
    active_deadline_seconds: int = 0


class Condition(Partial, frozen=True):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class ContainerStatus(Partial, frozen=True):
    name: str = ""
    ready: bool = False
    restart_count: int = 0
    state: dict[str, Json] | None = None


class PodStatus(Partial, frozen=True):
    phase: str = ""
    reason: str = ""
    conditions: list[Condition] | None = None
    container_statuses: list[ContainerStatus] | None = None
    init_container_statuses: list[ContainerStatus] | None = None


class Pod(Partial, frozen=True):
    metadata: Metadata = Metadata()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class NodeSpec(Partial, frozen=True):
    unschedulable: bool = False
    taints: Maps | None = None


class NodeStatus(objects.NodeStatus, frozen=True):
    conditions: list[Condition] | None = None
    addresses: list[dict[str, str]] | None = None
    node_info: Json | None = None


class Node(Partial, frozen=True):
    metadata: Metadata = Metadata()
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class NamespaceStatus(Partial, frozen=True):
    phase: str = ""


class NamespaceSpec(Partial, frozen=True):
    finalizers: list[str] | None = None


class Namespace(Partial, frozen=True):
    metadata: Metadata = Metadata()
    spec: NamespaceSpec = NamespaceSpec()
    status: NamespaceStatus = NamespaceStatus()


class Event(Partial, frozen=True):
    metadata: Metadata = Metadata()
    involved_object: dict[str, str] | None = None
    source: dict[str, str] | None = None
    series: Json | None = None
    type: str = ""
    reason: str = ""
    message: str = ""
    count: int = 0
    first_timestamp: str = ""
    last_timestamp: str = ""
    event_time: str = ""
    reporting_component: str = ""


class Secret(Partial, frozen=True):
    metadata: Metadata = Metadata()
    type: str = ""
    data: dict[str, str] | None = None
    string_data: dict[str, str] | None = None
    immutable: bool = False


class ConfigMap(Partial, frozen=True):
    metadata: Metadata = Metadata()
    data: dict[str, str] | None = None
    binary_data: dict[str, str] | None = None
    immutable: bool = False


class Quota(objects.ResourceQuotaSpec, frozen=True):
    used: dict[str, QuantityText] | None = None


class ResourceQuota(Partial, frozen=True):
    metadata: Metadata = Metadata()
    spec: Quota = Quota()
    status: Quota = Quota()


class ServiceAccount(Partial, frozen=True):
    metadata: Metadata = Metadata()
    secrets: Maps | None = None


class Lease(Partial, frozen=True):
    metadata: Metadata = Metadata()
    spec: LeaseSpec = LeaseSpec()


class ServiceReference(Partial, frozen=True):
    namespace: str = ""
    name: str = ""
    path: str = ""
    port: int = 443


class ClientConfig(Partial, frozen=True):
    url: str = ""
    ca_bundle: str = ""
    service: ServiceReference | None = None


class Rule(Partial, frozen=True):
    operations: tuple[str, ...] = ()
    api_groups: tuple[str, ...] = ()
    api_versions: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    scope: str = "*"


class PodDisruptionBudgetSpec(Partial, frozen=True):
    selector: LabelSelector | None = None
    min_available: int | str = 0
    max_unavailable: int | str = 0
    unhealthy_pod_eviction_policy: str = ""


class PodDisruptionBudget(Partial, frozen=True):
    metadata: Metadata = Metadata()
    spec: PodDisruptionBudgetSpec = PodDisruptionBudgetSpec()
    status: Json | None = None


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


class PodTemplate(Partial, frozen=True):
    metadata: Metadata = Metadata()
    spec: PodSpec = PodSpec()


class RollingUpdate(Partial, frozen=True):
    max_surge: int | str = 0
    max_unavailable: int | str = 0
    partition: int = 0


class UpdateStrategy(Partial, frozen=True):
    type: str = ""
    rolling_update: RollingUpdate = RollingUpdate()


class WorkloadSpec(Partial, frozen=True):
    """Of Deployments, ReplicaSets and StatefulSets."""

    replicas: int = 1
    selector: LabelSelector = LabelSelector()
    template: PodTemplate = PodTemplate()
    strategy: UpdateStrategy = UpdateStrategy()
    update_strategy: UpdateStrategy = UpdateStrategy()
    pod_management_policy: str = ""
    revision_history_limit: int = 0
    paused: bool = False


class Workload(Partial, frozen=True):
    metadata: Metadata = Metadata()
    spec: WorkloadSpec = WorkloadSpec()
    status: Json | None = None


class JobSpec(Partial, frozen=True):
    completions: int | None = None
    parallelism: int = 1
    backoff_limit: int = 6
    suspend: bool = False
    manual_selector: bool = False
    selector: LabelSelector = LabelSelector()
    template: PodTemplate = PodTemplate()


class Job(Partial, frozen=True):
    metadata: Metadata = Metadata()
    spec: JobSpec = JobSpec()
    status: Json | None = None


class ScaleSpec(Partial, frozen=True):
    replicas: int = 0


class Scale(Partial, frozen=True):
    metadata: Metadata = Metadata()
    spec: ScaleSpec = ScaleSpec()


class WebhookConfiguration(Partial, frozen=True):
    metadata: Metadata = Metadata()
    webhooks: tuple[Webhook, ...] = ()


class BindingTarget(Partial, frozen=True):
    kind: str = ""
    name: str = ""


class Binding(Partial, frozen=True):
    metadata: Metadata = Metadata()
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


class Eviction(Partial, frozen=True):
    metadata: Metadata = Metadata()
    delete_options: DeleteOptions = DeleteOptions()


class ResourceSliceSpec(Partial, frozen=True):
    driver: str = ""
    node_name: str = ""
    pool: resource_api.Pool | None = None
    devices: list[resource_api.SliceDevice] | None = None
    shared_counters: Maps | None = None


class ResourceSlice(Partial, frozen=True):
    metadata: Metadata = Metadata()
    spec: ResourceSliceSpec = ResourceSliceSpec()


SHAPES: dict[str, type[Any]] = {
    "Pod": Pod,
    "Node": Node,
    "Namespace": Namespace,
    "Event": Event,
    "Secret": Secret,
    "ConfigMap": ConfigMap,
    "ResourceQuota": ResourceQuota,
    "ServiceAccount": ServiceAccount,
    "PodDisruptionBudget": PodDisruptionBudget,
    "Lease": Lease,
    "MutatingWebhookConfiguration": WebhookConfiguration,
    "ValidatingWebhookConfiguration": WebhookConfiguration,
    "Deployment": Workload,
    "ReplicaSet": Workload,
    "StatefulSet": Workload,
    "Job": Job,
    "DeviceClass": claim_spec.DeviceClass,
    "ResourceClaim": resource_api.ResourceClaim,
    "ResourceClaimTemplate": claim_spec.ResourceClaimTemplate,
    "ResourceSlice": ResourceSlice,
}
