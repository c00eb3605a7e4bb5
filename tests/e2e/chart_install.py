"""The chart on a real control plane: its objects as Helm renders them, applied by kubectl as an administrator would.

Nothing runs until a test starts it. The webhook's Service leads to a port of this machine, so that no call ever leaves
it. On this control plane the tenant may do everything, so that only admission can stop it.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import yaml

from tessera_lab.sandbox.api.kinds import Json
from tests.e2e.control_plane import ACCOUNTS, ControlPlane
from tests.e2e.processes import Program
from tests.support.network import free_ports
from tools import chart
from tools.generate import CHIP_SECTIONS, chart_vendors

TRUSTED = "admin"
"""plays kubelets and plugins of simulated nodes"""
SCHEDULER, AGENT = "tessera-scheduler", "tessera-device-plugin"
ALL_VENDORS = ",".join(f"devices.{name}.enabled=true" for name in chart_vendors() if name != "nvidia")
PLAIN_VENDORS = ",".join(
    f"devices.{name}.enabled=true" for name in chart_vendors() if name not in ("nvidia", *CHIP_SECTIONS.values())
)
"""settings that switch on every vendor, and those whose resources have fixed names"""
BOTH_WORLDS = "devicePlugin.dra.enabled=true,devicePlugin.dra.allocator=tessera,scheduler.dra.enabled=true"
"""settings with which Tessera allocates claims too"""


@dataclass(frozen=True)
class ChartInstall:
    """One installation."""

    plane: ControlPlane
    objects: tuple[Json, ...]
    webhook_port: int

    def object(self, kind: str, name: str) -> Json:
        (found,) = [each for each in self.objects if (each["kind"], each["metadata"]["name"]) == (kind, name)]
        return found

    def agent_on(self, node: str) -> Path:
        """A kubeconfig as an agent on this node has it: with a token that belongs to its pod."""
        plane, name = self.plane, f"agent-on-{node}"
        spec = {"nodeName": node, "serviceAccountName": AGENT, "containers": [{"name": "agent", "image": "tessera"}]}
        metadata = {"name": name, "namespace": ACCOUNTS, "labels": {"hami.io/webhook": "ignore"}}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        apply(plane, name, [pod])
        bound = ("--bound-object-kind=Pod", f"--bound-object-name={name}")
        token = plane.kubectl("create", "token", AGENT, f"--namespace={ACCOUNTS}", *bound).strip()
        config = yaml.safe_load(plane.kubeconfig().read_text())
        config["users"][0]["user"]["token"] = token
        path = plane.folder / f"{name}.kubeconfig"
        path.write_text(yaml.safe_dump(config))
        return path

    def programs(self) -> tuple[Program, Program, dict[str, str]]:
        """Both containers of the scheduler's pod with the arguments of the chart, and where their probes look.

        Only what a pod has for itself alone is replaced: ports, files, and how to reach the apiserver."""
        plane = self.plane
        extender, metrics, secure = free_ports(3)
        account = plane.kubeconfig_of_account(SCHEDULER)
        devices = plane.folder / "device-config.yaml"
        devices.write_text(self.object("ConfigMap", "tessera-scheduler-device")["data"]["device-config.yaml"])
        config = yaml.safe_load(self.object("ConfigMap", SCHEDULER)["data"]["config.yaml"])
        config["clientConnection"]["kubeconfig"] = str(account)
        config["extenders"][0]["urlPrefix"] = f"http://127.0.0.1:{extender}"
        file = plane.folder / "kube-scheduler.yaml"
        file.write_text(yaml.safe_dump(config))
        here = {
            "--device-config-file": str(devices),
            "--extender-bind": f"127.0.0.1:{extender}",
            "--webhook-bind": f"127.0.0.1:{self.webhook_port}",
            "--metrics-bind-address": f"127.0.0.1:{metrics}",
        }
        tessera, kube_scheduler = self.object("Deployment", SCHEDULER)["spec"]["template"]["spec"]["containers"]
        command = [*tessera["command"][1:], *_replaced(tessera["args"], here), f"--kubeconfig={account}"]
        # Both use the host name as the name of their pod.
        environ = {"PATH": os.defpath, "POD_NAMESPACE": ACCOUNTS, "HOSTNAME": socket.gethostname()}
        return (
            Program("tessera", [sys.executable, "-m", "tessera", *command], folder=plane.logs, environ=environ),
            plane.program(
                *("kube-scheduler", *kube_scheduler["command"]),
                *_replaced(kube_scheduler["args"], {"--config": str(file)}),
                *("--bind-address=127.0.0.1", f"--secure-port={secure}"),
                *(f"--authentication-kubeconfig={account}", f"--authorization-kubeconfig={account}"),
            ),
            {
                f"http://127.0.0.1:{metrics}": tessera["readinessProbe"]["httpGet"]["path"],
                f"https://127.0.0.1:{secure}": kube_scheduler["livenessProbe"]["httpGet"]["path"],
            },
        )


def install(plane: ControlPlane, helm: Path, *, settings: str = "", without: str = "") -> ChartInstall:
    """Applies everything that the chart renders for this version of Kubernetes, except for objects of one kind."""
    version = json.loads(plane.kubectl("version", "--output=json"))["serverVersion"]["gitVersion"]
    (port,) = free_ports(1)
    settings = ",".join(
        filter(None, (f"scheduler.service.httpPort={port},annotationGuard.trustedUsers={{{TRUSTED}}}", settings))
    )
    objects = tuple(chart.objects(helm, kubernetes=version, settings=settings))
    apply(plane, "chart", [each for each in objects if each["kind"] != without])
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": SCHEDULER, "namespace": ACCOUNTS}}
    plane.kubectl("delete", "service", SCHEDULER, f"--namespace={ACCOUNTS}")
    apply(plane, "here", [service | {"spec": {"type": "ExternalName", "externalName": "localhost"}}])
    plane.kubectl("create", "clusterrolebinding", "tenant", "--clusterrole=cluster-admin", "--user=tenant")
    return ChartInstall(plane, objects, port)


def apply(plane: ControlPlane, name: str, objects: Iterable[Json], *options: str) -> str:
    """What kubectl says: a line for each object."""
    file = plane.folder / f"{name}.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))
    # Roles of the same names exist already; those of the chart win.
    return plane.kubectl("apply", "--server-side", "--force-conflicts", *options, "-f", str(file))


def _replaced(arguments: list[str], values: dict[str, str]) -> list[str]:
    assert values.keys() <= {each.partition("=")[0] for each in arguments}
    return [f"{flag}={values[flag]}" if (flag := each.partition("=")[0]) in values else each for each in arguments]
