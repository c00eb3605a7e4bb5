"""The types of the fields that this server reads. A body with other types is refused.

Deliberately partial: fields that nothing here reads are stored as they come.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from tessera_lab.sandbox.api.kinds import Json

Amounts = dict[str, str | int | float]
Maps = list[Json]


class ApiStruct(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """Base class: camelCase on the wire, everything optional unless stated."""


class Metadata(ApiStruct, frozen=True):
    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    finalizers: list[str] = []
    owner_references: Maps = []
    creation_timestamp: str = ""
    deletion_timestamp: str = ""


class ResourceRequirements(ApiStruct, frozen=True):
    limits: Amounts = {}
    requests: Amounts = {}


class FieldRef(ApiStruct, frozen=True):
    field_path: str = ""


class EnvSource(ApiStruct, frozen=True):
    field_ref: FieldRef | None = None


class Env(ApiStruct, frozen=True):
    name: str = ""
    value: str = ""
    value_from: EnvSource | None = None


class VolumeMount(ApiStruct, frozen=True):
    name: str = ""
    mount_path: str = ""


class Container(ApiStruct, frozen=True):
    name: str = ""
    image: str = ""
    image_pull_policy: str = ""
    restart_policy: str = ""
    command: list[str] = []
    args: list[str] = []
    env: list[Env] = []
    ports: Maps = []
    resources: ResourceRequirements = ResourceRequirements()
    volume_mounts: list[VolumeMount] = []
    security_context: Json = {}


class Volume(ApiStruct, frozen=True):
    name: str = ""
    secret: Json = {}
    config_map: Json = {}
    projected: Json = {}
    downward_api: Json = msgspec.field(default={}, name="downwardAPI")


class PodSpec(ApiStruct, frozen=True):
    containers: list[Container] = []
    init_containers: list[Container] = []
    volumes: list[Volume] = []
    tolerations: Maps = []
    scheduling_gates: Maps = []
    node_selector: dict[str, str] = {}
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


class Condition(ApiStruct, frozen=True):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class ContainerStatus(ApiStruct, frozen=True):
    name: str = ""
    ready: bool = False
    restart_count: int = 0
    state: dict[str, Json] = {}


class PodStatus(ApiStruct, frozen=True):
    phase: str = ""
    reason: str = ""
    conditions: list[Condition] = []
    container_statuses: list[ContainerStatus] = []
    init_container_statuses: list[ContainerStatus] = []


class Pod(ApiStruct, frozen=True):
    metadata: Metadata = Metadata()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class NodeSpec(ApiStruct, frozen=True):
    unschedulable: bool = False
    taints: Maps = []


class NodeStatus(ApiStruct, frozen=True):
    capacity: Amounts = {}
    allocatable: Amounts = {}
    conditions: list[Condition] = []
    addresses: list[dict[str, str]] = []
    node_info: Json = {}


class Node(ApiStruct, frozen=True):
    metadata: Metadata = Metadata()
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class NamespaceStatus(ApiStruct, frozen=True):
    phase: str = ""


class NamespaceSpec(ApiStruct, frozen=True):
    finalizers: list[str] = []


class Namespace(ApiStruct, frozen=True):
    metadata: Metadata = Metadata()
    spec: NamespaceSpec = NamespaceSpec()
    status: NamespaceStatus = NamespaceStatus()


class Event(ApiStruct, frozen=True):
    metadata: Metadata = Metadata()
    involved_object: dict[str, str] = {}
    source: dict[str, str] = {}
    series: Json = {}
    type: str = ""
    reason: str = ""
    message: str = ""
    count: int = 0
    first_timestamp: str = ""
    last_timestamp: str = ""
    event_time: str = ""
    reporting_component: str = ""


class Secret(ApiStruct, frozen=True):
    metadata: Metadata = Metadata()
    type: str = ""
    data: dict[str, str] = {}
    string_data: dict[str, str] = {}
    immutable: bool = False


class ConfigMap(ApiStruct, frozen=True):
    metadata: Metadata = Metadata()
    data: dict[str, str] = {}
    binary_data: dict[str, str] = {}
    immutable: bool = False


class Quota(ApiStruct, frozen=True):
    hard: Amounts = {}
    used: Amounts = {}


class ResourceQuota(ApiStruct, frozen=True):
    metadata: Metadata = Metadata()
    spec: Quota = Quota()
    status: Quota = Quota()


class ServiceAccount(ApiStruct, frozen=True):
    metadata: Metadata = Metadata()
    secrets: Maps = []


class LeaseSpec(ApiStruct, frozen=True):
    holder_identity: str = ""
    lease_duration_seconds: int = 0
    lease_transitions: int = 0
    acquire_time: str = ""
    renew_time: str = ""


class Lease(ApiStruct, frozen=True):
    metadata: Metadata = Metadata()
    spec: LeaseSpec = LeaseSpec()


class ServiceReference(ApiStruct, frozen=True):
    namespace: str = ""
    name: str = ""
    path: str = ""
    port: int = 443


class ClientConfig(ApiStruct, frozen=True):
    url: str = ""
    ca_bundle: str = ""
    service: ServiceReference | None = None


class Rule(ApiStruct, frozen=True):
    operations: tuple[str, ...] = ()
    api_groups: tuple[str, ...] = ()
    api_versions: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    scope: str = "*"


class LabelSelectorRequirement(ApiStruct, frozen=True):
    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: list[str] = []


class LabelSelector(ApiStruct, frozen=True):
    match_labels: dict[str, str] = {}
    match_expressions: list[LabelSelectorRequirement] = []


class PodDisruptionBudgetSpec(ApiStruct, frozen=True):
    selector: LabelSelector | None = None
    min_available: int | str = 0
    max_unavailable: int | str = 0
    unhealthy_pod_eviction_policy: str = ""


class PodDisruptionBudget(ApiStruct, frozen=True):
    metadata: Metadata = Metadata()
    spec: PodDisruptionBudgetSpec = PodDisruptionBudgetSpec()
    status: Json = {}


class Webhook(ApiStruct, frozen=True):
    name: str = ""
    client_config: ClientConfig = ClientConfig()
    rules: tuple[Rule, ...] = ()
    namespace_selector: LabelSelector = LabelSelector()
    object_selector: LabelSelector = LabelSelector()
    failure_policy: str = "Fail"
    reinvocation_policy: str = "Never"
    timeout_seconds: int = 10
    admission_review_versions: tuple[str, ...] = ()


class PodTemplate(ApiStruct, frozen=True):
    metadata: Metadata = Metadata()
    spec: PodSpec = PodSpec()


class RollingUpdate(ApiStruct, frozen=True):
    max_surge: int | str = 0
    max_unavailable: int | str = 0
    partition: int = 0


class UpdateStrategy(ApiStruct, frozen=True):
    type: str = ""
    rolling_update: RollingUpdate = RollingUpdate()


class WorkloadSpec(ApiStruct, frozen=True):
    """Of Deployments, ReplicaSets and StatefulSets."""

    replicas: int = 1
    selector: LabelSelector = LabelSelector()
    template: PodTemplate = PodTemplate()
    strategy: UpdateStrategy = UpdateStrategy()
    update_strategy: UpdateStrategy = UpdateStrategy()
    pod_management_policy: str = ""
    revision_history_limit: int = 0
    paused: bool = False


class Workload(ApiStruct, frozen=True):
    metadata: Metadata = Metadata()
    spec: WorkloadSpec = WorkloadSpec()
    status: Json = {}


class JobSpec(ApiStruct, frozen=True):
    completions: int | None = None
    parallelism: int = 1
    backoff_limit: int = 6
    suspend: bool = False
    manual_selector: bool = False
    selector: LabelSelector = LabelSelector()
    template: PodTemplate = PodTemplate()


class Job(ApiStruct, frozen=True):
    metadata: Metadata = Metadata()
    spec: JobSpec = JobSpec()
    status: Json = {}


class ScaleSpec(ApiStruct, frozen=True):
    replicas: int = 0


class Scale(ApiStruct, frozen=True):
    metadata: Metadata = Metadata()
    spec: ScaleSpec = ScaleSpec()


class WebhookConfiguration(ApiStruct, frozen=True):
    metadata: Metadata = Metadata()
    webhooks: tuple[Webhook, ...] = ()


class BindingTarget(ApiStruct, frozen=True):
    kind: str = ""
    name: str = ""


class Binding(ApiStruct, frozen=True):
    metadata: Metadata = Metadata()
    target: BindingTarget = BindingTarget()


class Preconditions(ApiStruct, frozen=True):
    uid: str | None = None
    resource_version: str | None = None


class DeleteOptions(ApiStruct, frozen=True):
    kind: str = "DeleteOptions"
    grace_period_seconds: int | None = None
    propagation_policy: str | None = None
    preconditions: Preconditions = Preconditions()
    dry_run: tuple[str, ...] = ()


class Eviction(ApiStruct, frozen=True):
    metadata: Metadata = Metadata()
    delete_options: DeleteOptions = DeleteOptions()


class SliceDevice(ApiStruct, frozen=True):
    name: str = ""
    attributes: dict[str, Json] = {}
    capacity: dict[str, Json] = {}
    consumes_counters: Maps = []
    taints: Maps = []
    allow_multiple_allocations: bool | None = None


class ResourcePool(ApiStruct, frozen=True):
    name: str = ""
    generation: int = 0
    resource_slice_count: int = 0


class ResourceSliceSpec(ApiStruct, frozen=True):
    driver: str = ""
    node_name: str = ""
    pool: ResourcePool = ResourcePool()
    devices: list[SliceDevice] = []
    shared_counters: Maps = []


class ResourceSlice(ApiStruct, frozen=True):
    metadata: Metadata = Metadata()
    spec: ResourceSliceSpec = ResourceSliceSpec()


class DeviceRequest(ApiStruct, frozen=True):
    name: str = ""
    exactly: Json | None = None
    first_available: Maps = []


class DeviceClaim(ApiStruct, frozen=True):
    requests: list[DeviceRequest] = []


class ResourceClaimSpec(ApiStruct, frozen=True):
    devices: DeviceClaim = DeviceClaim()


class ResourceClaim(ApiStruct, frozen=True):
    metadata: Metadata = Metadata()
    spec: ResourceClaimSpec = ResourceClaimSpec()
    status: Json = {}


class Unread(ApiStruct, frozen=True):
    """A kind whose content nothing here reads."""

    metadata: Metadata = Metadata()
    spec: Json = {}


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
    "DeviceClass": Unread,
    "ResourceClaim": ResourceClaim,
    "ResourceClaimTemplate": Unread,
    "ResourceSlice": ResourceSlice,
}
