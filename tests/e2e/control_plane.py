"""A real control plane on this machine: etcd, kube-apiserver with RBAC, kube-controller-manager.

Everything listens on loopback ports of its own and keeps its files in one folder, so that several may run at once.
kube-scheduler is not here: it belongs to the cluster of a test, with its extender.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import ssl
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trustme
import yaml

from tests.e2e.processes import FEWER_COLLECTIONS, NotStarted, Program
from tests.support.fork_server import ForkServer
from tests.support.network import free_ports

Json = dict[str, Any]

READY_S = 240.0
"""for a program of the control plane, on a busy machine"""
ANSWER_S = 30.0
"""for one answer of the apiserver"""
CREATED = 201
ATTEMPTS = 3
"""starts of the whole; another program may take a port just before ours does"""
RBAC = Path(__file__).with_name("rbac.yaml")
ACCOUNTS = "tessera-system"
"""namespace of the scheduler's accounts in rbac.yaml"""

USERS = {
    "admin": ("admin", "system:masters"),
    "controller-manager": ("system:kube-controller-manager", ""),
    "kube-scheduler": ("system:kube-scheduler", ""),
    "tenant": ("tenant", ""),
    "editor": ("editor", ""),
}
"""users with a static token: name and group"""

AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata", "userGroups": [f"system:serviceaccounts:{ACCOUNTS}"]}, {"level": "None"}],
}


@dataclass(frozen=True)
class Audited:
    """A request of the scheduler in the apiserver's audit log."""

    verb: str
    resource: str
    """with its subresource: pods/binding"""
    namespace: str
    name: str
    agent: str
    status: int
    allowed: bool

    @property
    def writes(self) -> bool:
        return self.verb not in ("get", "list", "watch")


class ControlPlane:
    """Use as `with ControlPlane(...) as plane`, or call `stop` at the end."""

    certificate_names: tuple[str, ...] = ("127.0.0.1", "localhost")
    fixed_port = 0
    """of the apiserver; 0: any that is free"""

    def __init__(
        self,
        folder: Path,
        tools: Mapping[str, Path],
        *,
        environ: Mapping[str, str] | None = None,
        apiserver_flags: Sequence[str] = (),
        without: Sequence[str] = (),
    ) -> None:
        """`folder` must be empty; logs are in `folder/logs`. `environ` is for the programs of the control plane;
        `without` names controllers that do not run."""
        self.folder = folder
        self.etcd_url = ""
        self.logs = folder / "logs"
        self.authority = trustme.CA()
        self.fork_server = ForkServer()
        """of the schedulers that use this control plane"""
        self._tools = tools
        self._own_environ = dict(environ or {})
        self._own_apiserver_flags = tuple(apiserver_flags)
        self._without = tuple(without)
        self._port = 0
        self._programs: list[Program] = []
        self._audited: list[Audited] = []
        self._audit_offset = 0

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self._port}"

    @property
    def programs(self) -> dict[str, Program]:
        """All programs, by name."""
        return {program.name: program for program in self._programs}

    def start(self) -> None:
        """Starts everything, and waits until it serves."""
        self.logs.mkdir()
        for attempt in range(ATTEMPTS):
            try:
                self._start_once()
                break
            except NotStarted:
                self.stop()
                if attempt == ATTEMPTS - 1 or "address already in use" not in self._said():
                    raise
                shutil.rmtree(self.folder / "etcd")
        self.kubectl("apply", "-f", str(RBAC))

    def stop(self) -> None:
        self.fork_server.stop()
        for program in reversed(self._programs):
            program.stop()

    # -- restarts of the apiserver and of etcd

    @property
    def etcd(self) -> Program:
        """Keeps its address and its data when it is killed and started again."""
        return self._etcd

    def kill_apiserver(self) -> None:
        self._apiserver.kill()

    def start_apiserver(self) -> None:
        """Starts it with the same address and data."""
        self._apiserver.start()

    def wait_until_ready(self) -> None:
        self._apiserver.ready(self._is_ready, within_s=READY_S)

    # -- how to reach it

    def kubeconfig(self, user: str = "admin") -> Path:
        """The kubeconfig of one of `USERS`."""
        return self._write_kubeconfig(user, f"{user}-secret")

    def kubeconfig_of_account(self, name: str) -> Path:
        """The kubeconfig of a ServiceAccount of rbac.yaml, with a token from the apiserver."""
        path = f"/api/v1/namespaces/{ACCOUNTS}/serviceaccounts/{name}/token"
        status, answer = self._request("POST", path, {"spec": {"expirationSeconds": 7200}})
        assert status == CREATED, answer
        return self._write_kubeconfig(name, json.loads(answer)["status"]["token"])

    def kubectl(self, *arguments: str, user: str = "admin") -> str:
        """The output of one command, which must succeed."""
        done = self.try_kubectl(*arguments, user=user)
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def try_kubectl(self, *arguments: str, user: str = "admin") -> subprocess.CompletedProcess[str]:
        command = [str(self._tools["kubectl"]), f"--kubeconfig={self.kubeconfig(user)}", *arguments]
        environ = {"PATH": os.defpath, "HOME": str(self.folder)}
        return subprocess.run(
            command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )

    def program(
        self, name: str, tool: str, *arguments: str, host: str = "", environ: Mapping[str, str] | None = None
    ) -> Program:
        """Another program of Kubernetes, not started; `host` is the host name that it sees."""
        command = [str(self._tools[tool]), *arguments]
        return Program(
            name,
            [*(renamed(host) if host else ()), *command],
            folder=self.logs,
            environ=self._environ() | dict(environ or {}),
        )

    def audited(self) -> Sequence[Audited]:
        """The requests of the scheduler's accounts so far, oldest first."""
        path = self.folder / "audit.log"
        if path.exists():
            with path.open("rb") as log:
                log.seek(self._audit_offset)
                # The last line may still be on its way.
                written = log.read().rpartition(b"\n")
            self._audit_offset += len(written[0] + written[1])
            self._audited += filter(None, map(_audited, written[0].splitlines()))
        return tuple(self._audited)

    # -- setup

    def _start_once(self) -> None:
        port, client, peer = free_ports(3)
        self._port = self.fixed_port or port
        self._write_files()
        etcd = self.etcd_url = f"http://127.0.0.1:{client}"
        folder = self.folder
        self._etcd = self._plain(
            "etcd",
            f"--data-dir={folder / 'etcd'}",
            f"--listen-client-urls={etcd}",
            f"--advertise-client-urls={etcd}",
            f"--listen-peer-urls=http://127.0.0.1:{peer}",
            f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}",
            f"--initial-cluster=default=http://127.0.0.1:{peer}",
            # Nothing here needs to survive the machine.
            "--unsafe-no-fsync",
        )
        self._apiserver = self.apiserver("kube-apiserver", port=self._port, etcd_url=etcd)
        manager = self._plain(
            "kube-controller-manager",
            f"--kubeconfig={self.kubeconfig('controller-manager')}",
            "--use-service-account-credentials=true",
            f"--service-account-private-key-file={folder / 'server.key'}",
            f"--root-ca-file={folder / 'ca.crt'}",
            "--secure-port=0",
            "--leader-elect=false",
            f"--controllers={','.join(['*', *(f'-{name}' for name in self._without)])}",
            # Simulated nodes report when something changes, and stay Ready.
            "--node-monitor-grace-period=24h",
            "--kube-api-qps=200",
            "--kube-api-burst=400",
        )
        self._programs = [self._etcd, self._apiserver, manager]
        # The apiserver waits for etcd by itself. The controller manager waits for the apiserver too, but ends if it has
        # no rights within ten seconds, and roles come last.
        self._etcd.start()
        self._apiserver.start()
        self._apiserver.ready(self._is_ready, within_s=READY_S)
        manager.start()
        manager.ready(self._has_default_account, within_s=READY_S)

    def apiserver(self, name: str, *, port: int, etcd_url: str) -> Program:
        """A kube-apiserver of this control plane, not started; several may serve the same etcd."""
        folder = self.folder
        return self.program(
            name,
            "kube-apiserver",
            f"--etcd-servers={etcd_url}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            "--endpoint-reconciler-type=none",
            f"--secure-port={port}",
            f"--tls-cert-file={folder / 'server.crt'}",
            f"--tls-private-key-file={folder / 'server.key'}",
            f"--cert-dir={folder}",
            f"--token-auth-file={folder / 'tokens.csv'}",
            "--authorization-mode=Node,RBAC",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={folder / 'server.key'}",
            f"--service-account-signing-key-file={folder / 'server.key'}",
            "--service-cluster-ip-range=10.0.0.0/24",
            f"--audit-policy-file={folder / 'audit-policy.yaml'}",
            f"--audit-log-path={folder / ('audit.log' if port == self._port else f'audit-{port}.log')}",
            # A restart must not wait for watches to end by themselves.
            "--shutdown-delay-duration=0s",
            *self._own_apiserver_flags,
            environ=self._own_environ,
        )

    def _plain(self, tool: str, *arguments: str) -> Program:
        return self.program(tool, tool, *arguments, environ=self._own_environ)

    def _environ(self) -> dict[str, str]:
        return {"PATH": os.defpath, "HOME": str(self.folder), **FEWER_COLLECTIONS}

    def _write_files(self) -> None:
        certificate = self.authority.issue_cert(*self.certificate_names)
        tokens = [f'{user}-secret,{name},{name},"{group}"' for user, (name, group) in USERS.items()]
        files = {
            "ca.crt": self.authority.cert_pem.bytes(),
            "server.crt": certificate.cert_chain_pems[0].bytes(),
            "server.key": certificate.private_key_pem.bytes(),
            "tokens.csv": "\n".join(tokens).encode(),
            "audit-policy.yaml": yaml.safe_dump(AUDIT_POLICY).encode(),
        }
        for name, content in files.items():
            (self.folder / name).write_bytes(content)

    def _write_kubeconfig(self, name: str, token: str) -> Path:
        cluster = {"server": self.url, "certificate-authority": str(self.folder / "ca.crt")}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "e2e",
            "contexts": [{"name": "e2e", "context": {"cluster": "e2e", "user": name}}],
            "clusters": [{"name": "e2e", "cluster": cluster}],
            "users": [{"name": name, "user": {"token": token}}],
        }
        path = self.folder / f"{name}.kubeconfig"
        path.write_text(yaml.safe_dump(document))
        path.chmod(0o600)
        return path

    def _is_ready(self) -> bool:
        return self._status("/readyz") == 200

    def _has_default_account(self) -> bool:
        """The controller manager works: it has created the account that every pod needs."""
        return self._status("/api/v1/namespaces/default/serviceaccounts/default") == 200

    def _status(self, path: str) -> int:
        """0 where there is no answer."""
        try:
            return self._request("GET", path)[0]
        except (OSError, http.client.HTTPException):
            return 0

    def _request(self, verb: str, path: str, body: Json | None = None) -> tuple[int, bytes]:
        """Status and body of the answer to an administrator."""
        trust = ssl.create_default_context(cadata=self.authority.cert_pem.bytes().decode())
        connection = http.client.HTTPSConnection("127.0.0.1", self._port, context=trust, timeout=ANSWER_S)
        headers = {"Authorization": "Bearer admin-secret", "Content-Type": "application/json"}
        try:
            connection.request(verb, path, body=json.dumps(body) if body is not None else None, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def _said(self) -> str:
        return "\n".join(program.words() for program in self._programs)


def _audited(line: bytes) -> Audited | None:
    """What one line of the audit log says; None for half of a request."""
    entry = json.loads(line)
    # The end of a watch may never come; of everything else only the end is logged.
    if (entry["verb"] == "watch") != (entry["stage"] == "ResponseStarted"):
        return None
    about = entry.get("objectRef", {})
    return Audited(
        verb=entry["verb"],
        resource="/".join(filter(None, (about.get("resource", ""), about.get("subresource", "")))),
        namespace=about.get("namespace", ""),
        name=about.get("name", ""),
        agent=entry.get("userAgent", ""),
        status=entry.get("responseStatus", {}).get("code", 0),
        allowed=entry.get("annotations", {}).get("authorization.k8s.io/decision") == "allow",
    )


def renamed(host: str) -> list[str]:
    """A command prefix that sets the host name that the command sees. Needs root."""
    return ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', host]
