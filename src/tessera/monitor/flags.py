"""Every flag of `tessera monitor`: its names, its variables, where `--help` shows it and what it says there.

Only words, so that `--help` needs none of the service. What a flag means is decided in `options`.
"""

from __future__ import annotations

from enum import Enum

from tessera.services.flags import Flag, switch


class Group(Enum):
    """Headings of `--help`, in their order."""

    CLUSTER = "Cluster and node"
    FOLDERS = "Folders of the node"
    OPERATION = "Operation"


FLAGS: tuple[Flag, ...] = (
    Flag(
        "kubeconfig",
        Group.CLUSTER,
        "How to reach the apiserver. Default: KUBECONFIG, in-cluster, ~/.kube/config.",
        "FILE",
    ),
    Flag("context", Group.CLUSTER, "Context of the kubeconfig.", "NAME"),
    Flag("node-name", Group.CLUSTER, "The node that this monitor watches. Needed.", "NAME", env=("NODE_NAME",)),
    Flag(
        "hook-path",
        Group.FOLDERS,
        "The folder that holds `containers`, as a rule /usr/local/vgpu. Needed.",
        "DIR",
        env=("HOOK_PATH",),
    ),
    Flag(
        "driver-root-ctr-path",
        Group.FOLDERS,
        "Where this process sees the driver's root. Default: /driver-root.",
        "DIR",
        env=("DRIVER_ROOT_CTR_PATH",),
    ),
    Flag(
        "resync-interval",
        Group.FOLDERS,
        "How long the folder of an unknown pod stays. Default: 5m.",
        "DURATION",
        env=("HAMI_RESYNC_INTERVAL",),
    ),
    Flag("metrics-bind-address", Group.OPERATION, "Metrics, /healthz and /readyz. Default: :9394.", "ADDRESS"),
    switch("legacy-metrics", Group.OPERATION, "Show the names of HAMi up to v2.8 as well. Default: false."),
    Flag("log-format", Group.OPERATION, "Default: console on a terminal, json elsewhere.", "json|console"),
    Flag("log-level", Group.OPERATION, "Default: info.", "debug|info|warning|error"),
    Flag("v", Group.OPERATION, "HAMi's verbosity: 5 and above is --log-level debug.", "NUMBER", short="v"),
)
