"""The types of the fields that this server looks into: a body that has others is refused before anything reads it.

Partial on purpose: fields that nothing here looks at are stored as they come.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from tessera.lab.sandbox.api.kinds import Json

Amounts = dict[str, str | int | float]
Maps = list[Json]


class Shape(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """Base: camelCase on the wire, everything optional unless said otherwise."""


class Metadata(Shape, frozen=True):
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


class Resources(Shape, frozen=True):
    limits: Amounts = {}
    requests: Amounts = {}


class FieldRef(Shape, frozen=True):
    field_path: str = ""


class EnvSource(Shape, frozen=True):
    field_ref: FieldRef | None = None


class Env(Shape, frozen=True):
    name: str = ""
    value: str = ""
    value_from: EnvSource | None = None


class Mount(Shape, frozen=True):
    name: str = ""
    mount_path: str = ""


class Container(Shape, frozen=True):
    name: str = ""
    image: str = ""
    image_pull_policy: str = ""
    restart_policy: str = ""
    command: list[str] = []
    args: list[str] = []
    env: list[Env] = []
    ports: Maps = []
    resources: Resources = Resources()
    volume_mounts: list[Mount] = []
    security_context: Json = {}


class Volume(Shape, frozen=True):
    name: str = ""
    secret: Json = {}
    config_map: Json = {}
    projected: Json = {}
    downward_api: Json = msgspec.field(default={}, name="downwardAPI")


class PodSpec(Shape, frozen=True):
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


class Condition(Shape, frozen=True):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class ContainerStatus(Shape, frozen=True):
    name: str = ""
    ready: bool = False
    restart_count: int = 0
    state: dict[str, Json] = {}


class PodStatus(Shape, frozen=True):
    phase: str = ""
    reason: str = ""
    conditions: list[Condition] = []
    container_statuses: list[ContainerStatus] = []
    init_container_statuses: list[ContainerStatus] = []


class Pod(Shape, frozen=True):
    metadata: Metadata = Metadata()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class NodeSpec(Shape, frozen=True):
    unschedulable: bool = False
    taints: Maps = []


class NodeStatus(Shape, frozen=True):
    capacity: Amounts = {}
    allocatable: Amounts = {}
    conditions: list[Condition] = []
    addresses: list[dict[str, str]] = []
    node_info: Json = {}


class Node(Shape, frozen=True):
    metadata: Metadata = Metadata()
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class NamespaceStatus(Shape, frozen=True):
    phase: str = ""


class NamespaceSpec(Shape, frozen=True):
    finalizers: list[str] = []


class Namespace(Shape, frozen=True):
    metadata: Metadata = Metadata()
    spec: NamespaceSpec = NamespaceSpec()
    status: NamespaceStatus = NamespaceStatus()


class Event(Shape, frozen=True):
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


class Secret(Shape, frozen=True):
    metadata: Metadata = Metadata()
    type: str = ""
    data: dict[str, str] = {}
    string_data: dict[str, str] = {}
    immutable: bool = False


class ConfigMap(Shape, frozen=True):
    metadata: Metadata = Metadata()
    data: dict[str, str] = {}
    binary_data: dict[str, str] = {}
    immutable: bool = False


class Quota(Shape, frozen=True):
    hard: Amounts = {}
    used: Amounts = {}


class ResourceQuota(Shape, frozen=True):
    metadata: Metadata = Metadata()
    spec: Quota = Quota()
    status: Quota = Quota()


class ServiceAccount(Shape, frozen=True):
    metadata: Metadata = Metadata()
    secrets: Maps = []


class LeaseSpec(Shape, frozen=True):
    holder_identity: str = ""
    lease_duration_seconds: int = 0
    lease_transitions: int = 0
    acquire_time: str = ""
    renew_time: str = ""


class Lease(Shape, frozen=True):
    metadata: Metadata = Metadata()
    spec: LeaseSpec = LeaseSpec()


class ServiceReference(Shape, frozen=True):
    namespace: str = ""
    name: str = ""
    path: str = ""
    port: int = 443


class ClientConfig(Shape, frozen=True):
    url: str = ""
    ca_bundle: str = ""
    service: ServiceReference | None = None


class Rule(Shape, frozen=True):
    operations: tuple[str, ...] = ()
    api_groups: tuple[str, ...] = ()
    api_versions: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    scope: str = "*"


class LabelRequirement(Shape, frozen=True):
    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: list[str] = []


class LabelSelector(Shape, frozen=True):
    match_labels: dict[str, str] = {}
    match_expressions: list[LabelRequirement] = []


class Webhook(Shape, frozen=True):
    name: str = ""
    client_config: ClientConfig = ClientConfig()
    rules: tuple[Rule, ...] = ()
    namespace_selector: LabelSelector = LabelSelector()
    object_selector: LabelSelector = LabelSelector()
    failure_policy: str = "Fail"
    reinvocation_policy: str = "Never"
    timeout_seconds: int = 10
    admission_review_versions: tuple[str, ...] = ()


class WebhookConfiguration(Shape, frozen=True):
    metadata: Metadata = Metadata()
    webhooks: tuple[Webhook, ...] = ()


class Target(Shape, frozen=True):
    kind: str = ""
    name: str = ""


class Binding(Shape, frozen=True):
    metadata: Metadata = Metadata()
    target: Target = Target()


class Preconditions(Shape, frozen=True):
    uid: str | None = None
    resource_version: str | None = None


class DeleteOptions(Shape, frozen=True):
    kind: str = "DeleteOptions"
    grace_period_seconds: int | None = None
    propagation_policy: str | None = None
    preconditions: Preconditions = Preconditions()
    dry_run: tuple[str, ...] = ()


class Eviction(Shape, frozen=True):
    metadata: Metadata = Metadata()
    delete_options: DeleteOptions = DeleteOptions()


SHAPES: dict[str, type[Any]] = {
    "Pod": Pod,
    "Node": Node,
    "Namespace": Namespace,
    "Event": Event,
    "Secret": Secret,
    "ConfigMap": ConfigMap,
    "ResourceQuota": ResourceQuota,
    "ServiceAccount": ServiceAccount,
    "Lease": Lease,
    "MutatingWebhookConfiguration": WebhookConfiguration,
    "ValidatingWebhookConfiguration": WebhookConfiguration,
}
