from __future__ import annotations

import pytest

from tessera.kube.errors import BadName, KubeError
from tessera.kube.resources import EVENTS, LEASES, MUTATING_WEBHOOKS, NODES, PODS, Resource


@pytest.mark.parametrize(
    ("resource", "where", "path"),
    [
        (PODS, (), "/api/v1/pods"),
        (PODS, ("team",), "/api/v1/namespaces/team/pods"),
        (PODS, ("team", "train-0"), "/api/v1/namespaces/team/pods/train-0"),
        (PODS, ("team", "train-0", "binding"), "/api/v1/namespaces/team/pods/train-0/binding"),
        (NODES, (), "/api/v1/nodes"),
        (NODES, (None, "n1"), "/api/v1/nodes/n1"),
        (NODES, (None, "n1", "status"), "/api/v1/nodes/n1/status"),
        (LEASES, ("kube-system", "x"), "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/x"),
        (MUTATING_WEBHOOKS, (None, "hook"), "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/hook"),
        (EVENTS, ("team", "a b/c%d?e#é"), "/api/v1/namespaces/team/events/a%20b%2Fc%25d%3Fe%23%C3%A9"),
    ],
)
def test_a_resource_has_a_path(resource: Resource, where: tuple[str, ...], path: str) -> None:
    assert resource.path(*where) == path


@pytest.mark.parametrize(
    ("resource", "where", "message"),
    [
        (PODS, ("team", ""), "'' is not a name"),
        (PODS, ("team", ".."), "'..' is not a name"),
        (PODS, (".", "x"), "'.' is not a namespace"),
        (PODS, ("", "x"), "'' is not a namespace"),
        (PODS, (None, "x"), "needs a namespace"),
        (PODS, ("team", "\ud800"), "is not a name"),
        (PODS, ("team", None, "binding"), "pods/binding needs a name"),
        (PODS, ("team", "x", ""), "'' is not a subresource"),
        (NODES, ("team", "x"), "nodes have no namespace"),
    ],
)
def test_a_path_about_one_object_never_becomes_one_about_others(
    resource: Resource, where: tuple[str, ...], message: str
) -> None:
    with pytest.raises(BadName, match=message) as caught:
        resource.path(*where)
    assert isinstance(caught.value, KubeError)


def test_the_version_of_a_resource_names_its_group() -> None:
    assert (PODS.api_version, LEASES.api_version) == ("v1", "coordination.k8s.io/v1")
