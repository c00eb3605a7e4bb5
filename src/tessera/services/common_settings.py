"""Settings that several services have, declared once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from tessera.services.settings_table import Group, Setting, Sources, rows_of, setting
from tessera.services.value_types import (
    COUNT,
    DIRECTORY,
    DNS_NAME,
    FILE,
    NAME,
    SWITCH,
    ValueType,
    choice,
    optional,
    parse_whole,
)

DEBUG_VERBOSITY = 5
"""HAMi's chart runs at 4, which must not mean debug"""


class LogFormat(Enum):
    JSON = "json"
    CONSOLE = "console"


class LogLevel(Enum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"

    @property
    def number(self) -> int:
        """The level of the standard library."""
        return {"debug": 10, "info": 20, "warning": 30, "error": 40}[self.value]


# fmt: off


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterAccess:
    """How a service reaches the apiserver."""

    kubeconfig: str | None = setting(Group.CLUSTER, "kubeconfig", optional(FILE), None,
        "How to reach the apiserver.", default_text="KUBECONFIG, in-cluster, ~/.kube/config", expands_home=True)
    context: str | None = setting(Group.CLUSTER, "context", optional(NAME), None, "Context of the kubeconfig.")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeServiceSettings:
    """Rows that agent and monitor take by `shared`."""

    node_name: str = setting(Group.CLUSTER, "node-name", DNS_NAME, "",
        "The node that is served.", env=("NODE_NAME", "NodeName"),
        needed="a DaemonSet sets NODE_NAME from spec.nodeName")
    driver_root_here: Path = setting(Group.FOLDERS, "driver-root-ctr-path", DIRECTORY, Path("/driver-root"),
        "Where this process sees the host's driver root.", aliases=("container-driver-root",),
        env=("DRIVER_ROOT_CTR_PATH", "CONTAINER_DRIVER_ROOT"))


@dataclass(frozen=True, slots=True)
class ListenerLimits:
    """Open connections per listener. Peers that may call filter and bind do not count."""

    connections: int = setting(Group.LISTENERS, "max-connections", COUNT, 512,
        "Open connections per listener; above, the address with most of them loses one.")
    connections_per_peer: int = setting(Group.LISTENERS, "max-connections-per-peer", COUNT, 256,
        "Of them from one address; above the apiserver's --max-mutating-requests-inflight, which is 200.")


PRINT_CONFIG = Setting("print-config", SWITCH, False, Group.OPERATION,
    "Print the effective configuration as YAML and exit.")


@dataclass(frozen=True, slots=True)
class LogOptions:
    format: LogFormat | None = setting(Group.OPERATION, "log-format", choice(LogFormat), None,
        "Form of log lines.", default_text="console on a terminal, json elsewhere")
    level: LogLevel = setting(Group.OPERATION, "log-level", choice(LogLevel), LogLevel.INFO,
        "Least important level that is logged.")


VERBOSITY = Setting("v", ValueType("NUMBER", lambda text: parse_whole(text.removeprefix("="))), None, Group.OPERATION,
    "HAMi's verbosity: 5 and above is --log-level debug.", short="v")
LOG_SETTINGS = (*rows_of(LogOptions), VERBOSITY)

# fmt: on


def read_log_options(sources: Sources) -> LogOptions:
    options = sources.load(LogOptions)
    is_verbose = (sources.read(VERBOSITY) or 0) >= DEBUG_VERBOSITY
    return replace(options, level=LogLevel.DEBUG) if is_verbose and "log-level" not in sources else options
