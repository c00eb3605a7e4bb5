"""One replica of the scheduler: `tessera scheduler` and the stock kube-scheduler that calls it.

Both are real programs on loopback ports that they keep over restarts. Tessera has the token of a ServiceAccount with
the rights in rbac.yaml.
"""

from __future__ import annotations

import asyncio
import base64
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import aiohttp
import trustme
import yaml

from tessera_lab.sandbox.api.kinds import Json
from tests.e2e.cluster_check import Scrape
from tests.e2e.control_plane import ACCOUNTS, ControlPlane
from tests.e2e.processes import LOOK_S, ForkedProgram, Program
from tests.support.network import free_ports

WAIT_S = 240.0
"""for something that takes a second on a quiet machine; it ends what hangs, and measures nothing"""
LEASE = "hami-scheduler"
SERVICE = "tessera-scheduler"
SECRET = "tessera-scheduler-tls"
MANAGED = ("nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpumem-percentage", "nvidia.com/gpucores")

T = TypeVar("T")


async def until(look: Callable[[], Awaitable[T]], *, what: str, within_s: float = WAIT_S) -> T:
    """Polls until `look` returns a true value, and returns that."""
    try:
        async with asyncio.timeout(within_s):
            while not (answer := await look()):
                await asyncio.sleep(LOOK_S)
            return answer
    except TimeoutError as error:
        raise TimeoutError(f"waited {within_s:g} s for {what}") from error


# -- certificates


@dataclass
class FromFiles:
    """The webhook's certificate comes from a file that another program renews."""

    path: Path
    authority: trustme.CA = field(default_factory=trustme.CA)
    account: str = "tessera-scheduler"

    def __post_init__(self) -> None:
        self.renew()

    def renew(self) -> bytes:
        """A fresh certificate with its key, put in place atomically, as kubelet does; returns the certificate."""
        issued = self.authority.issue_cert("127.0.0.1", "localhost")
        fresh = self.path.with_suffix(".new")
        fresh.write_bytes(issued.private_key_and_cert_chain_pem.bytes())
        fresh.replace(self.path)
        return issued.cert_chain_pems[0].bytes()

    def flags(self) -> list[str]:
        return [f"--cert_file={self.path}", f"--key_file={self.path}"]

    def client_config(self, port: int) -> Json:
        bundle = base64.b64encode(self.authority.cert_pem.bytes()).decode()
        return {"url": f"https://127.0.0.1:{port}/webhook", "caBundle": bundle}


@dataclass
class SelfMade:
    """The scheduler creates its certificates itself, for a Service that leads to this machine."""

    configuration: str = "tessera-webhook"
    account: str = "tessera-scheduler-certificates"

    def flags(self) -> list[str]:
        return [
            f"--tls-secret={ACCOUNTS}/{SECRET}",
            f"--webhook-service={SERVICE}",
            f"--webhook-configuration={self.configuration}",
        ]

    def client_config(self, port: int) -> Json:
        return {"service": {"namespace": ACCOUNTS, "name": SERVICE, "path": "/webhook", "port": port}}


Certificates = FromFiles | SelfMade


# -- programs


class Replica:
    """`host` is the host name that it sees; with one, it leads only while its kube-scheduler has the lease."""

    def __init__(
        self,
        plane: ControlPlane,
        *flags: str,
        label: str,
        certificates: Certificates,
        host: str = "",
        environ: Mapping[str, str] | None = None,
        lease_s: int = 12,
    ) -> None:
        """`environ` is for Tessera alone, which is then executed: the loader may read it. A leader that cannot renew
        its lease in time ends, and on a busy machine `lease_s` seconds are not many."""
        extender, self.webhook_port, metrics = free_ports(3)
        self.extender_url, self.metrics_url = f"http://127.0.0.1:{extender}", f"http://127.0.0.1:{metrics}"
        lead = (f"--leader-elect-resource-name={LEASE}", f"--leader-elect-resource-namespace={ACCOUNTS}")
        command = [
            *("scheduler", "--log-format=json"),
            f"--kubeconfig={plane.kubeconfig_of_account(certificates.account)}",
            f"--extender-bind=127.0.0.1:{extender}",
            f"--webhook-bind=127.0.0.1:{self.webhook_port}",
            f"--metrics-bind-address=127.0.0.1:{metrics}",
            *certificates.flags(),
            *(("--leader-elect", *lead) if host else ()),
            *flags,
        ]
        name, own = f"tessera-{label}", {"PATH": os.defpath} | ({"HOSTNAME": host} if host else {})
        self.tessera = (
            Program(name, [sys.executable, "-m", "tessera", *command], folder=plane.logs, environ=own | dict(environ))
            if environ
            else ForkedProgram(name, command, folder=plane.logs, environ=own, server=plane.fork_server)
        )
        self._elects = bool(host)
        self.configuration = self._configuration(plane, lease_s=lease_s if host else 0)
        """of kube-scheduler"""
        if "--dra" in flags:
            allocate_claims(self.configuration)
        file = self._file = plane.folder / f"kube-scheduler-{label}.yaml"
        file.write_text(yaml.safe_dump(self.configuration))
        self.kube_scheduler = plane.program(
            f"kube-scheduler-{label}", "kube-scheduler", f"--config={file}", "--secure-port=0", "--v=2", host=host
        )

    def kill(self) -> None:
        self.tessera.kill()
        self.kube_scheduler.kill()

    def route(self, *, kubeconfig: Path, extender_url: str) -> None:
        """Makes kube-scheduler, when it starts, reach the apiserver and its extender by another way."""
        self.configuration["clientConnection"]["kubeconfig"] = str(kubeconfig)
        self.configuration["extenders"][0]["urlPrefix"] = extender_url
        self._file.write_text(yaml.safe_dump(self.configuration))

    async def ready(self) -> None:
        """Waits until Tessera has synced, and decides if no lease decides about that."""
        await until(self._is_ready, what=f"{self.tessera.name} to be ready")

    async def scrape(self) -> Scrape:
        async with aiohttp.ClientSession() as session, session.get(f"{self.metrics_url}/metrics") as answer:
            return Scrape(await answer.text())

    async def stop_tessera(self) -> int:
        """Stops it cleanly while the simulated nodes keep running; returns the exit code."""
        return await asyncio.to_thread(self.tessera.stop)

    async def restart_tessera(self) -> None:
        """As after SIGKILL."""
        self.tessera.kill()
        self.tessera.start()
        await self.ready()

    async def _is_ready(self) -> bool:
        assert self.tessera.is_running, f"{self.tessera.name} ended:\n{self.tessera.words()}"
        try:
            if not self._elects and (await self.scrape()).value("tessera_leader") != 1:
                return False
            async with aiohttp.ClientSession() as session, session.get(f"{self.metrics_url}/readyz") as answer:
                return answer.status == 200
        except aiohttp.ClientError:
            return False

    def _configuration(self, plane: ControlPlane, *, lease_s: int) -> Json:
        """The configuration of a stock kube-scheduler, for device pods and all others."""
        extender = {
            "urlPrefix": self.extender_url,
            "filterVerb": "filter",
            "bindVerb": "bind",
            "preemptVerb": "preempt",
            "nodeCacheCapable": True,
            "weight": 1,
            "httpTimeout": "30s",
            "managedResources": [{"name": resource, "ignoredByScheduler": True} for resource in MANAGED],
        }
        lease = {"resourceNamespace": ACCOUNTS, "resourceName": LEASE}
        times = {"leaseDuration": f"{lease_s}s", "renewDeadline": f"{lease_s - 1}s", "retryPeriod": "500ms"}
        return {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": {"kubeconfig": str(plane.kubeconfig("kube-scheduler")), "qps": 1000, "burst": 1000},
            "leaderElection": {"leaderElect": bool(lease_s), **(lease | times if lease_s else {})},
            # Otherwise kube-scheduler sends a sample of the nodes, and a pod may stay pending although a node fits.
            "percentageOfNodesToScore": 100,
            "profiles": [{"schedulerName": "default-scheduler"}, {"schedulerName": "hami-scheduler"}],
            "extenders": [extender],
        }


STOCK = "stock-scheduler"
"""a profile that allocates claims itself; the webhook takes pods of the default one for Tessera"""


def allocate_claims(configuration: Json) -> None:
    """Leave the claims of Tessera's profile to Tessera, and ask it about pods that have nothing else."""
    del configuration["extenders"][0]["managedResources"]
    fit = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "NodeResourcesFitArgs",
        "ignoredResources": [*MANAGED],
    }
    ours = next(each for each in configuration["profiles"] if each["schedulerName"] == "hami-scheduler")
    ours["plugins"] = {"multiPoint": {"disabled": [{"name": "DynamicResources"}]}}
    ours["pluginConfig"] = [{"name": "NodeResourcesFit", "args": fit}]
    configuration["profiles"].append({"schedulerName": STOCK})
