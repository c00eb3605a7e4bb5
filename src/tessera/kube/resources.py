"""The request paths of the resources that Tessera uses.

An empty name is refused, so that a request for one object cannot become a request for all of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote

from tessera.kube.errors import BadName


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource of the API."""

    group: str
    """empty for the core group"""
    version: str
    plural: str
    namespaced: bool

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """The path of one object, or of the collection if `name` is None (in all namespaces if `namespace` is None)."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        if namespace is not None:
            if not self.namespaced:
                raise BadName(f"{self.plural} have no namespace, but {namespace!r} was given")
            root = f"{root}/namespaces/{_segment(namespace, 'namespace')}"
        elif self.namespaced and name is not None:
            raise BadName(f"{self.plural} {name!r} needs a namespace")
        path = f"{root}/{self.plural}"
        if name is not None:
            path = f"{path}/{_segment(name, 'name')}"
        if subresource is not None:
            if name is None:
                raise BadName(f"{self.plural}/{subresource} needs a name")
            path = f"{path}/{_segment(subresource, 'subresource')}"
        return path


_PLAIN = re.compile(r"[a-z0-9][a-z0-9.-]*", re.ASCII)
"""almost all names; others are quoted"""


def _segment(text: str, what: str) -> str:
    if _PLAIN.fullmatch(text) is not None:
        return text
    if text in ("", ".", ".."):
        raise BadName(f"{text!r} is not a {what}")
    try:
        return quote(text, safe="")
    except UnicodeEncodeError as error:
        raise BadName(f"{text!r} is not a {what}") from error


PODS = Resource("", "v1", "pods", True)
NODES = Resource("", "v1", "nodes", False)
NAMESPACES = Resource("", "v1", "namespaces", False)
EVENTS = Resource("", "v1", "events", True)
SECRETS = Resource("", "v1", "secrets", True)
CONFIG_MAPS = Resource("", "v1", "configmaps", True)
RESOURCE_QUOTAS = Resource("", "v1", "resourcequotas", True)
SERVICE_ACCOUNTS = Resource("", "v1", "serviceaccounts", True)
SERVICES = Resource("", "v1", "services", True)
PRIORITY_CLASSES = Resource("scheduling.k8s.io", "v1", "priorityclasses", False)
POD_DISRUPTION_BUDGETS = Resource("policy", "v1", "poddisruptionbudgets", True)
LEASES = Resource("coordination.k8s.io", "v1", "leases", True)
MUTATING_WEBHOOKS = Resource("admissionregistration.k8s.io", "v1", "mutatingwebhookconfigurations", False)
VALIDATING_WEBHOOKS = Resource("admissionregistration.k8s.io", "v1", "validatingwebhookconfigurations", False)
DEPLOYMENTS = Resource("apps", "v1", "deployments", True)
DAEMON_SETS = Resource("apps", "v1", "daemonsets", True)
SELF_SUBJECT_ACCESS_REVIEWS = Resource("authorization.k8s.io", "v1", "selfsubjectaccessreviews", False)
TOKEN_REVIEWS = Resource("authentication.k8s.io", "v1", "tokenreviews", False)
SUBJECT_ACCESS_REVIEWS = Resource("authorization.k8s.io", "v1", "subjectaccessreviews", False)
RESOURCE_SLICES = Resource("resource.k8s.io", "v1", "resourceslices", False)
RESOURCE_CLAIMS = Resource("resource.k8s.io", "v1", "resourceclaims", True)
DEVICE_CLASSES = Resource("resource.k8s.io", "v1", "deviceclasses", False)
RESOURCE_CLAIM_TEMPLATES = Resource("resource.k8s.io", "v1", "resourceclaimtemplates", True)
POD_GROUPS = {
    group: Resource(group, version, "podgroups", True)
    for group, version in (
        ("scheduling.x-k8s.io", "v1alpha1"),
        ("scheduling.volcano.sh", "v1beta1"),
        ("scheduling.k8s.io", "v1alpha2"),
    )
}
"""of coscheduling, Volcano and Kubernetes itself, by API group"""
