"""Every flag of `tessera device-plugin`: its names, its variables, where `--help` shows it and what it says there.

Only words, so that `--help` needs none of the service. What a flag means is decided in `options`; HAMi's and NVIDIA's
names are the first names where they have the flag.
"""

from __future__ import annotations

from enum import Enum

from tessera.services.flags import Flag, Kind, switch


class Group(Enum):
    """Headings of `--help`, in their order."""

    CLUSTER = "Cluster and node"
    FILES = "Configuration files"
    CARDS = "Cards"
    CONTAINERS = "What containers are given"
    KUBELET = "kubelet"
    FOLDERS = "Folders of the node"
    OPERATION = "Operation"
    LOWEST = "Flags of HAMi v2.4 (both configuration files win over them)"
    IGNORED = "Accepted for HAMi's sake, without effect"


FLAGS: tuple[Flag, ...] = (
    Flag(
        "kubeconfig",
        Group.CLUSTER,
        "How to reach the apiserver. Default: KUBECONFIG, in-cluster, ~/.kube/config.",
        "FILE",
    ),
    Flag("context", Group.CLUSTER, "Context of the kubeconfig.", "NAME"),
    Flag("node-name", Group.CLUSTER, "The node that this agent serves. Needed.", "NAME", env=("NODE_NAME", "NodeName")),
    Flag(
        "config-file",
        Group.FILES,
        "device-config.yaml: sections nvidia and flags. Default: none, and the default of every setting.",
        "FILE",
        env=("CONFIG_FILE",),
    ),
    Flag(
        "node-config-file",
        Group.FILES,
        "config.json with settings of single nodes; goes over everything else. Default: /config/config.json.",
        "FILE",
    ),
    Flag(
        "inventory",
        Group.CARDS,
        "Who knows the cards; auto: NVML where its library is found, else no cards. Default: auto.",
        "auto|nvml|simulated|null",
    ),
    Flag("simulate", Group.CARDS, "Serve the cards that this file describes instead of real ones.", "FILE"),
    Flag(
        "device-discovery-strategy",
        Group.CARDS,
        "NVIDIA's name for --inventory, which wins.",
        "auto|nvml",
        env=("DEVICE_DISCOVERY_STRATEGY",),
    ),
    switch(
        "fail-on-init-error",
        Group.CARDS,
        "Not ready (/readyz) until the cards were read once; false: ready without cards. The agent never ends over it "
        "and tries again by itself. Default: true.",
        env=("FAIL_ON_INIT_ERROR",),
    ),
    Flag(
        "mig-strategy",
        Group.CARDS,
        "Hand out MIG instances that exist, as nvidia.com/gpu or as nvidia.com/mig-*. Default: none.",
        "none|single|mixed",
        env=("MIG_STRATEGY",),
    ),
    switch(
        "enable-topology-score",
        Group.CARDS,
        "Register how well pairs of cards are connected. Default: false.",
        env=("ENABLE_TOPOLOGY_SCORE",),
    ),
    switch(
        "text-registration",
        Group.CARDS,
        "Register in the form, and with the handshake, that HAMi's schedulers up to v2.7 read. Default: false.",
    ),
    Flag(
        "nvidia-driver-root",
        Group.CARDS,
        "The host's folder that holds the driver's files. Default: /.",
        "DIRECTORY",
        env=("NVIDIA_DRIVER_ROOT",),
    ),
    Flag(
        "dev-root",
        Group.CARDS,
        "The host's folder that holds dev/. Default: the driver root.",
        "DIRECTORY",
        aliases=("nvidia-dev-root",),
        env=("NVIDIA_DEV_ROOT",),
    ),
    Flag(
        "driver-root-ctr-path",
        Group.CARDS,
        "Where this process sees the driver root. Default: /driver-root.",
        "DIRECTORY",
        aliases=("container-driver-root",),
        env=("DRIVER_ROOT_CTR_PATH", "CONTAINER_DRIVER_ROOT"),
    ),
    Flag(
        "device-list-strategy",
        Group.CONTAINERS,
        "How a container is told its cards: envvar, volume-mounts, cdi-annotations, cdi-cri; a list. Default: envvar.",
        "STRATEGY,...",
        kind=Kind.REPEATED,
        env=("DEVICE_LIST_STRATEGY",),
    ),
    Flag(
        "device-id-strategy",
        Group.CONTAINERS,
        "By what name it is told them. Default: uuid.",
        "uuid|index",
        env=("DEVICE_ID_STRATEGY",),
    ),
    switch(
        "pass-device-specs",
        Group.CONTAINERS,
        "Hand out device nodes as well. Default: false.",
        env=("PASS_DEVICE_SPECS",),
    ),
    Flag(
        "cdi-annotation-prefix",
        Group.CONTAINERS,
        "Of the annotations that name CDI devices. Default: cdi.k8s.io/.",
        "PREFIX",
        env=("CDI_ANNOTATION_PREFIX",),
    ),
    Flag(
        "nvidia-cdi-hook-path",
        Group.CONTAINERS,
        "The host's nvidia-ctk, for CDI. Default: /usr/bin/nvidia-ctk.",
        "FILE",
        aliases=("nvidia-ctk-path",),
        env=("NVIDIA_CDI_HOOK_PATH", "NVIDIA_CTK_PATH"),
    ),
    switch("gdrcopy-enabled", Group.CONTAINERS, "Ask for GDRCopy. Default: false.", env=("GDRCOPY_ENABLED",)),
    switch("gds-enabled", Group.CONTAINERS, "Ask for GPUDirect Storage. Default: false.", env=("GDS_ENABLED",)),
    switch("mofed-enabled", Group.CONTAINERS, "Ask for Mellanox devices. Default: false.", env=("MOFED_ENABLED",)),
    Flag(
        "library-version",
        Group.CONTAINERS,
        "Mount libvgpu.so.VERSION where it exists. Default: libvgpu.so.",
        "VERSION",
    ),
    Flag(
        "kubelet-socket",
        Group.KUBELET,
        "Where to register; empty: nowhere. Default: kubelet.sock in --plugin-dir.",
        "FILE",
        env=("KUBELET_SOCKET",),
    ),
    Flag(
        "plugin-dir",
        Group.KUBELET,
        "kubelet's folder of plugin sockets. Default: /var/lib/kubelet/device-plugins.",
        "DIRECTORY",
    ),
    Flag(
        "pod-resources-socket",
        Group.KUBELET,
        "To verify who got which devices; empty: do not. Default: /var/lib/kubelet/pod-resources/kubelet.sock.",
        "FILE",
    ),
    Flag(
        "hook-path",
        Group.FOLDERS,
        "Everything that containers get from the host is below DIRECTORY/vgpu. Default: /usr/local.",
        "DIRECTORY",
        env=("HOOK_PATH",),
    ),
    Flag("state-dir", Group.FOLDERS, "What must outlive a restart. Default: /var/lib/tessera.", "DIRECTORY"),
    Flag("cdi-dir", Group.FOLDERS, "Where CDI specifications go. Default: /var/run/cdi.", "DIRECTORY"),
    Flag("mps-dir", Group.FOLDERS, "Pipes of MPS daemons. Default: /run/tessera/mps.", "DIRECTORY"),
    Flag("lock-dir", Group.FOLDERS, "The enforcing library's lock folder. Default: /tmp/vgpulock.", "DIRECTORY"),
    Flag(
        "metrics-bind-address",
        Group.OPERATION,
        "Metrics, /healthz and /readyz. Default: :9395; 'none' switches it off.",
        "ADDRESS",
        aliases=("metrics-bind",),
    ),
    Flag("log-format", Group.OPERATION, "Default: console on a terminal, json elsewhere.", "json|console"),
    Flag("log-level", Group.OPERATION, "Default: info.", "debug|info|warning|error"),
    Flag("v", Group.OPERATION, "HAMi's verbosity: 5 and above is --log-level debug.", "NUMBER", short="v"),
    switch("print-config", Group.OPERATION, "Print the effective configuration as YAML and exit."),
    Flag(
        "device-split-count",
        Group.LOWEST,
        "Pods that may share a card. Default: 10.",
        "NUMBER",
        env=("DEVICE_SPLIT_COUNT",),
    ),
    Flag(
        "device-memory-scaling",
        Group.LOWEST,
        "Memory registered for each that a card has. Default: 1.",
        "NUMBER",
        env=("DEVICE_MEMORY_SCALING",),
    ),
    Flag(
        "device-cores-scaling",
        Group.LOWEST,
        "The same for cores. Default: 1.",
        "NUMBER",
        env=("DEVICE_CORES_SCALING",),
    ),
    switch(
        "disable-core-limit",
        Group.LOWEST,
        "Limit memory only. Default: false.",
        env=("DISABLE_CORE_LIMIT",),
    ),
    Flag("resource-name", Group.LOWEST, "Resource that kubelet counts. Default: nvidia.com/gpu.", "RESOURCE"),
    Flag(
        "imex-channel-ids",
        Group.IGNORED,
        "No effect: channels never reach a container in HAMi either.",
        "NUMBER,...",
        kind=Kind.REPEATED,
        env=("IMEX_CHANNEL_IDS",),
    ),
    switch("imex-required", Group.IGNORED, "No effect.", env=("IMEX_REQUIRED",)),
)
