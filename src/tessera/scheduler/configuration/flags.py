"""Every flag of `tessera scheduler`: its names, where `--help` shows it and what it says there.

Only words, so that `--help` needs none of the service. What a flag means is decided in `options`; HAMi's names are the
first names where HAMi has the flag. Names that override the device configuration are in `legacy_flags`.
"""

from __future__ import annotations

from enum import Enum

from tessera.scheduler.configuration.legacy_flags import OVERRIDES, Override, Value
from tessera.services.flags import Flag, Kind, switch


class Group(Enum):
    """Headings of `--help`, in their order."""

    CLUSTER = "Cluster"
    LISTENERS = "Listeners"
    CERTIFICATES = "Certificates"
    ADMISSION = "Admission"
    PLACEMENT = "Placement and binding"
    DEVICES = "Devices"
    LEADER = "Leader election"
    OPERATION = "Operation"
    OVERRIDES = "Flags of HAMi v2.4 and vendor resource names (override the device configuration)"
    IGNORED = "Accepted for HAMi's sake, without effect"


_OWN = (
    Flag(
        "kubeconfig",
        Group.CLUSTER,
        "How to reach the apiserver. Default: KUBECONFIG, in-cluster, ~/.kube/config.",
        "FILE",
    ),
    Flag("context", Group.CLUSTER, "Context of the kubeconfig.", "NAME"),
    Flag("kube-qps", Group.CLUSTER, "Requests a second to the apiserver. Default: no limit.", "NUMBER"),
    Flag("kube-burst", Group.CLUSTER, "Requests above that at once. Default: 10.", "NUMBER"),
    Flag("kube-timeout", Group.CLUSTER, "Seconds for one request. Default: 30.", "SECONDS"),
    Flag(
        "extender-bind",
        Group.LISTENERS,
        "Filter and bind, for the kube-scheduler on this machine. Default: 127.0.0.1:8080.",
        "ADDRESS",
    ),
    Flag(
        "webhook-bind",
        Group.LISTENERS,
        "The admission webhook, over TLS. Default: :9443 where there is a certificate.",
        "ADDRESS",
    ),
    Flag(
        "metrics-bind-address",
        Group.LISTENERS,
        "Metrics, /healthz and /readyz. Default: :9395. Like the others, 'none' switches it off.",
        "ADDRESS",
        aliases=("metrics-bind",),
    ),
    Flag(
        "http_bind",
        Group.LISTENERS,
        "HAMi's one listener for webhook, filter and bind, instead of the first two; TLS with a certificate.",
        "ADDRESS",
        aliases=("http-bind",),
    ),
    switch("extender-tls", Group.LISTENERS, "Serve filter and bind over TLS."),
    Flag(
        "client-ca-file",
        Group.LISTENERS,
        "Authority whose client certificates let other machines call filter and bind. Default: nobody.",
        "FILE",
    ),
    Flag(
        "cert_file",
        Group.CERTIFICATES,
        "Serving certificate, read again when it changes.",
        "FILE",
        aliases=("cert-file",),
    ),
    Flag("key_file", Group.CERTIFICATES, "Its private key.", "FILE", aliases=("key-file",)),
    Flag(
        "tls-secret",
        Group.CERTIFICATES,
        "Make and renew own certificates, kept in this Secret. Default where POD_NAMESPACE is set and neither files "
        "nor --http_bind are given: tessera-scheduler-tls.",
        "NAMESPACE/NAME",
    ),
    Flag(
        "webhook-service",
        Group.CERTIFICATES,
        "Service in the Secret's namespace that own certificates are for. Default: tessera-scheduler.",
        "NAME",
    ),
    Flag(
        "webhook-configuration",
        Group.CERTIFICATES,
        "MutatingWebhookConfiguration whose caBundle is kept right. Default: tessera-webhook.",
        "NAME",
    ),
    Flag("scheduler-name", Group.ADMISSION, "schedulerName of device pods. Default: hami-scheduler.", "NAME"),
    switch(
        "force-overwrite-default-scheduler",
        Group.ADMISSION,
        "Take device pods that name the default-scheduler. Default: true.",
    ),
    Flag("privileged", Group.ADMISSION, "Privileged containers that ask for devices. Default: ignore.", "ignore|deny"),
    switch(
        "inject-identity",
        Group.ADMISSION,
        "Let slices travel with their pods; false while another extender still binds them. Default: true.",
    ),
    Flag(
        "hook-path", Group.ADMISSION, "Where node agents put files into containers. Default: /usr/local.", "DIRECTORY"
    ),
    switch(
        "allow-disable-control",
        Group.ADMISSION,
        "Let tenants switch enforcement inside their containers off. Default: false.",
    ),
    Flag(
        "trusted-user",
        Group.ADMISSION,
        "User whose pods may carry reserved annotations; may be repeated.",
        "USER",
        kind=Kind.REPEATED,
    ),
    Flag(
        "node-scheduler-policy",
        Group.PLACEMENT,
        "Which node, where the pod does not say. Default: binpack.",
        "POLICY",
    ),
    Flag(
        "gpu-scheduler-policy",
        Group.PLACEMENT,
        "Which device of it, where the pod does not say. Default: spread.",
        "POLICY",
    ),
    Flag(
        "node-label-selector",
        Group.PLACEMENT,
        "Only nodes with these labels. Default: all.",
        "KEY=VALUE,...",
        kind=Kind.REPEATED,
    ),
    Flag("reservation-timeout", Group.PLACEMENT, "How long a decision waits for its bind. Default: 5m.", "DURATION"),
    Flag(
        "turn-timeout",
        Group.PLACEMENT,
        "Longest wait inside bind; below the extender's httpTimeout. Default: 20s.",
        "DURATION",
    ),
    Flag(
        "node-lock",
        Group.PLACEMENT,
        "Use of the node-lock annotation; auto: on nodes whose plugin needs it. Default: auto.",
        "auto|always|never",
    ),
    Flag(
        "node-lock-timeout",
        Group.PLACEMENT,
        "Age at which another pod's lock counts as forgotten. Default: HAMI_NODELOCK_EXPIRE, 5m.",
        "DURATION",
    ),
    Flag(
        "device-config-file",
        Group.DEVICES,
        "device-config.yaml with one section a vendor. Default: the chart's values.",
        "FILE",
    ),
    switch("enable-ascend", Group.DEVICES, "Serve Ascend NPUs. Default: false, or true with an --ascend... flag."),
    switch("enable-iluvatar", Group.DEVICES, "Serve Iluvatar chips of section iluvatars. Default: false."),
    switch(
        "leader-elect",
        Group.LEADER,
        "Decide only while the kube-scheduler beside this process holds its Lease. Default: false.",
    ),
    Flag("leader-elect-resource-name", Group.LEADER, "That Lease.", "NAME"),
    Flag("leader-elect-resource-namespace", Group.LEADER, "Its namespace. Default: POD_NAMESPACE.", "NAME"),
    Flag("log-format", Group.OPERATION, "Default: console on a terminal, json elsewhere.", "json|console"),
    Flag("log-level", Group.OPERATION, "Default: info.", "debug|info|warning|error"),
    Flag("v", Group.OPERATION, "HAMi's verbosity: 5 and above is --log-level debug.", "NUMBER", short="v"),
    switch("legacy-metrics", Group.OPERATION, "Publish HAMi's metrics under their old names too. Default: false."),
    Flag("grace-period", Group.OPERATION, "For running binds and events after SIGTERM. Default: 20s.", "DURATION"),
    switch("print-config", Group.OPERATION, "Print the effective configuration as YAML and exit."),
)

IGNORED_DURATION = "node-lock-retry-timeout"

_IGNORED = (
    switch("debug", Group.IGNORED, "No effect, as in HAMi."),
    switch("profiling", Group.IGNORED, "No effect: there are no Go profiles here."),
    Flag(IGNORED_DURATION, Group.IGNORED, "No effect: bind waits for its turn (--turn-timeout).", "DURATION"),
    Flag("vmodule", Group.IGNORED, "No effect, nor have klog's other flags (--logtostderr, ...): logs go to stderr."),
)

_KLOG_TEXTS = (
    "log_backtrace_at",
    "log_dir",
    "log_file",
    "log_file_max_size",
    "stderrthreshold",
    "alsologtostderrthreshold",
)
_KLOG_SWITCHES = (
    "logtostderr",
    "alsologtostderr",
    "add_dir_header",
    "one_output",
    "skip_headers",
    "skip_log_headers",
    "legacy_stderr_threshold_behavior",
)


def _klog(name: str, kind: Kind) -> Flag:
    dashed = name.replace("_", "-")
    aliases = (dashed,) if dashed != name else ()
    metavar = "[BOOL]" if kind is Kind.SWITCH else "TEXT"
    return Flag(name, Group.IGNORED, "No effect: logs go to stderr.", metavar, kind=kind, aliases=aliases, hidden=True)


def _override(override: Override) -> Flag:
    kind = Kind.SWITCH if override.value is Value.SWITCH else Kind.TEXT
    metavar = {Value.RESOURCE: "RESOURCE", Value.AMOUNT: "NUMBER", Value.SWITCH: "[BOOL]"}[override.value]
    return Flag(override.flag, Group.OVERRIDES, f"Overrides {override.target}.", metavar, kind=kind)


FLAGS: tuple[Flag, ...] = (
    *_OWN,
    *(_override(override) for override in OVERRIDES),
    *_IGNORED,
    *(_klog(name, Kind.TEXT) for name in _KLOG_TEXTS),
    *(_klog(name, Kind.SWITCH) for name in _KLOG_SWITCHES),
)
