"""What `tessera doctor` finds in an installation: webhook, workloads, kube-scheduler and permissions."""

from __future__ import annotations

import base64
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast

import pytest
import trustme

from tessera.inspect.checks import Finding, Severity
from tessera.inspect.checks.control_plane import check_agents, check_daemon_set, check_kube_scheduler, check_scheduler
from tessera.inspect.checks.ledger import check_claims
from tessera.inspect.checks.permissions import FOR_PREEMPTION, needed_by
from tessera.inspect.checks.webhook import DAY, check_registration
from tessera.inspect.installation import Installation, scheduler_arguments
from tessera.inspect.offline_cluster import OfflineCluster
from tessera.kube.client import KubeClient
from tessera.kube.errors import ApiError
from tests.support.builders import NOW, node
from tests.support.cluster_states import not_fine, state_of

CONDITIONS = [{"name": "concerns-devices", "expression": "true"}]


def webhook(**changes: Any) -> dict[str, Any]:
    rules = [{"operations": ["CREATE"], "apiVersions": ["v1"], "resources": ["pods"]}]
    bundle = base64.b64encode(trustme.CA().cert_pem.bytes()).decode()
    one = {"name": "vgpu.hami.io", "rules": rules, "clientConfig": {"caBundle": bundle}, **changes}
    return {"metadata": {"name": "tessera-webhook"}, "webhooks": [one]}


def registration(*configurations: dict[str, Any], now: float = NOW) -> list[Finding]:
    return list(check_registration(Installation(webhooks=configurations, webhooks_seen=True), now=now))


def test_a_registered_webhook_with_a_good_authority_is_fine() -> None:
    assert not not_fine(registration(webhook()))


@pytest.mark.parametrize(
    ("configurations", "severity", "words"),
    [
        ((), Severity.BROKEN, "no MutatingWebhookConfiguration"),
        ((webhook(rules=[]),), Severity.BROKEN, "no rule covers the creation of pods"),
        ((webhook(clientConfig={}),), Severity.WARNING, "caBundle is empty"),
        ((webhook(clientConfig={"caBundle": "AAAA"}),), Severity.BROKEN, "cannot be read"),
        ((webhook(), {**webhook(), "metadata": {"name": "hami-webhook"}}), Severity.WARNING, "2 configurations"),
    ],
)
def test_what_is_wrong_with_a_webhook_is_found(configurations: Any, severity: Severity, words: str) -> None:
    [found] = not_fine(registration(*configurations))
    assert found.severity is severity
    assert words in found.what
    assert found.why
    assert found.fix


def test_what_is_wrong_with_all_webhooks_of_a_configuration_is_said_once() -> None:
    one = webhook(clientConfig={})
    one["webhooks"].append({**one["webhooks"][0], "name": "exempt.vgpu.hami.io"})
    [found] = not_fine(registration(one))
    assert "caBundle is empty" in found.what


@pytest.mark.parametrize(
    ("policy", "conditions", "words"),
    [
        ("Fail", CONDITIONS, ""),
        ("Ignore", None, ""),
        ("Fail", None, "no matchConditions limit it"),
        ("Ignore", CONDITIONS, "failurePolicy is Ignore"),
    ],
)
def test_a_failure_policy_must_suit_the_pods_that_it_covers(policy: str, conditions: Any, words: str) -> None:
    one = webhook(failurePolicy=policy, matchConditions=conditions)
    one["webhooks"].append({**one["webhooks"][0], "name": "others.vgpu.hami.io", "failurePolicy": "Ignore"})
    running = Installation(webhooks=(one,), webhooks_seen=True, deployment={})
    found = not_fine(check_registration(running, now=NOW))
    assert [words in each.what for each in found] == [True] * bool(words)


def test_a_webhook_that_must_not_be_seen_is_not_called_missing() -> None:
    [found] = check_registration(Installation(), now=NOW)
    assert found.severity is Severity.UNSEEN


def test_an_authority_that_ends_soon_is_a_warning_and_one_that_has_ended_is_broken() -> None:
    end = datetime(3000, 1, 1, tzinfo=UTC).timestamp()
    [soon] = not_fine(registration(webhook(), now=end - 3 * DAY))
    [over] = not_fine(registration(webhook(), now=end + DAY))
    assert (soon.severity, over.severity) == (Severity.WARNING, Severity.BROKEN)
    assert "in 3 days" in soon.what


# -- the scheduler


def scheduler(
    ready: int | None, *, wanted: int = 2, policy: str = "Fail", seen: bool = True, reason: str = ""
) -> list[Finding]:
    containers = [{"name": "tessera", "image": "example.com/tessera:1"}, {"name": "b", "image": "example.com/other:2"}]
    template = {"spec": {"containers": containers}}
    conditions = [{"type": "ReplicaFailure", "status": "True", "message": reason}]
    status = {} if ready is None else {"readyReplicas": ready, "conditions": conditions}
    deployment = {"spec": {"replicas": wanted, "template": template}, "status": status}
    found = Installation(
        namespace="system",
        name="tessera-scheduler",
        webhooks=(webhook(failurePolicy=policy),),
        deployment=deployment if seen else None,
    )
    return list(check_scheduler(found))


@pytest.mark.parametrize(
    ("found", "severity", "words"),
    [
        (scheduler(2), Severity.FINE, "has 2 ready replica(s)"),
        (scheduler(1, wanted=1, policy="Ignore"), Severity.FINE, "has 1 ready replica(s)"),
        (scheduler(None), Severity.BROKEN, "has no ready replica, of 2"),
        (scheduler(1), Severity.WARNING, "has 1 ready replica(s), of 2"),
        (scheduler(1, wanted=1), Severity.WARNING, "has one replica, and failurePolicy is Fail"),
        (scheduler(2, seen=False), Severity.UNSEEN, "no readable Deployment"),
        (scheduler(0, wanted=0), Severity.BROKEN, "is scaled to 0"),
        (scheduler(0, reason="exceeded quota"), Severity.BROKEN, "has no ready replica, of 2 (exceeded quota)"),
    ],
)
def test_ready_replicas_are_held_against_the_failure_policy(
    found: list[Finding], severity: Severity, words: str
) -> None:
    [one] = found
    assert one.severity is severity
    assert words in one.what


def test_a_scheduler_that_does_not_start_names_the_images_that_its_nodes_must_pull() -> None:
    [refused], [bypassed] = scheduler(0), scheduler(0, policy="Ignore")
    assert refused.fix.endswith("must be able to pull example.com/tessera:1 and example.com/other:2")
    assert "is refused (failurePolicy Fail)" in refused.why
    assert "are not completed" in bypassed.why


# -- kube-scheduler

GOOD = """
percentageOfNodesToScore: 100
profiles: [{schedulerName: hami-scheduler}]
extenders:
  - filterVerb: filter
    bindVerb: bind
    preemptVerb: preempt
    nodeCacheCapable: true
    httpTimeout: 30s
    managedResources:
      - {name: nvidia.com/gpu, ignoredByScheduler: true}
      - {name: nvidia.com/gpumem, ignoredByScheduler: true}
      - {name: nvidia.com/gpumem-percentage, ignoredByScheduler: true}
      - {name: nvidia.com/gpucores, ignoredByScheduler: true}
      - {name: nvidia.com/priority, ignoredByScheduler: true}
"""


def configured(text: str) -> list[Finding]:
    config_map = {"metadata": {"namespace": "kube-system", "name": "tessera-scheduler"}, "data": {"config.yaml": text}}
    cluster = OfflineCluster(state_of([node("n1").gpus(1)]))
    installation = Installation(scheduler_config=config_map)
    return not_fine(check_kube_scheduler(installation, cluster))


async def test_the_documented_configuration_is_fine() -> None:
    assert configured(GOOD) == []


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("percentageOfNodesToScore: 100", "", "percentageOfNodesToScore is not set"),
        ("hami-scheduler", "other", "has no profile hami-scheduler (it has other)"),
        ("filterVerb: filter", "weight: 1", "lacks filterVerb: filter"),
        ("preemptVerb: preempt", "weight: 1", "lacks preemptVerb: preempt"),
        ("nodeCacheCapable: true", "weight: 1", "not nodeCacheCapable"),
        ("{name: nvidia.com/gpumem, ignoredByScheduler: true}", "{name: x}", "lacks nvidia.com/gpumem"),
        ("gpucores, ignoredByScheduler: true", "gpucores", "nvidia.com/gpucores without ignoredByScheduler"),
        ("httpTimeout: 30s", "httpTimeout: 10s", "httpTimeout is 10 s"),
        ("extenders:", "others:", "has no extender"),
    ],
)
async def test_what_kube_scheduler_must_know_is_checked(old: str, new: str, words: str) -> None:
    assert old in GOOD
    [found] = configured(GOOD.replace(old, new))
    assert words in found.what


FOR_CLAIMS = GOOD.partition("    managedResources")[0].replace(
    "schedulerName: hami-scheduler",
    "schedulerName: hami-scheduler, plugins: {multiPoint: {disabled: [{name: DynamicResources}]}}",
)


def dra_deployment(*flags: str) -> Installation:
    container = {"name": "tessera", "command": ["tessera", "scheduler", "--dra", *flags]}
    deployment = {
        "metadata": {"namespace": "n", "name": "d"},
        "spec": {"template": {"spec": {"containers": [container]}}},
    }
    return Installation(deployment=deployment)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (FOR_CLAIMS, []),
        (FOR_CLAIMS.replace("DynamicResources", "Other"), ["still has the plugin DynamicResources"]),
        (GOOD, ["still has the plugin DynamicResources", "the extender has managedResources"]),
    ],
)
async def test_a_kube_scheduler_that_allocates_claims_itself_is_found(text: str, words: list[str]) -> None:
    config_map = {"metadata": {"namespace": "kube-system", "name": "tessera-scheduler"}, "data": {"config.yaml": text}}
    installation = replace(dra_deployment(), scheduler_config=config_map)
    cluster = OfflineCluster(state_of([node("n1").gpus(1)], setup=installation.setup))
    found = not_fine(check_kube_scheduler(installation, cluster))
    assert [each.severity for each in found] == [Severity.BROKEN] * len(words)
    for each, expected in zip(found, words, strict=True):
        assert expected in each.what


def test_rights_on_claims_are_needed_with_dra_only() -> None:
    def named(installation: Installation) -> set[str]:
        return {each.text for each in needed_by(installation)}

    assert not {text for text in named(Installation()) if "resourceclaim" in text}
    assert {"update resourceclaims/status", "list resourceslices"} <= named(dra_deployment())
    assert "create resourceclaimtemplates" not in named(dra_deployment())
    assert "create resourceclaimtemplates" in named(dra_deployment("--dra-convert"))


async def test_a_scheduler_with_dra_and_no_devices_is_told() -> None:
    installation = dra_deployment()
    [found] = not_fine(check_claims(OfflineCluster(state_of([node("n1").gpus(1)], setup=installation.setup))))
    assert "no node publishes devices for claims" in found.what


async def test_a_configuration_that_cannot_be_seen_is_said_so() -> None:
    [found] = check_kube_scheduler(Installation(), OfflineCluster(state_of([])))
    assert found.severity is Severity.UNSEEN


def test_the_scheduler_is_told_from_the_kube_scheduler_beside_it() -> None:
    containers = [
        {"name": "kube-scheduler", "image": "k8s/kube-scheduler:v1", "command": ["kube-scheduler", "--v=4"]},
        {"name": "tessera", "image": "tessera", "args": ["scheduler", "--enable-ascend"]},
    ]
    deployment = {"spec": {"template": {"spec": {"containers": containers}}}}
    assert scheduler_arguments(deployment) == ["scheduler", "--enable-ascend"]


# -- the agents


def daemon_set(ready: int, wanted: int) -> dict[str, Any]:
    return {
        "metadata": {"namespace": "gpu", "name": "tessera-device-plugin"},
        "spec": {"template": {"spec": {"nodeSelector": {"gpu": "on"}}}, "selector": {"matchLabels": {"app": "x"}}},
        "status": {"desiredNumberScheduled": wanted, "numberReady": ready},
    }


@pytest.mark.parametrize(
    ("ready", "wanted", "severity", "words"),
    [
        (3, 3, Severity.FINE, "is ready on 3 node(s)"),
        (2, 3, Severity.WARNING, "is ready on 2 of 3 node(s)"),
        (0, 3, Severity.BROKEN, "is ready on 0 of 3 node(s)"),
        (0, 0, Severity.BROKEN, "runs on no node: none has the label(s) gpu=on"),
    ],
)
def test_agents_that_are_not_ready_are_found(ready: int, wanted: int, severity: Severity, words: str) -> None:
    [found] = check_daemon_set(daemon_set(ready, wanted))
    assert found.severity is severity
    assert words in found.what
    assert bool(found.fix) is (severity is not Severity.FINE)


class Cluster(KubeClient):
    """An apiserver with one DaemonSet, or with an error for every one."""

    def __init__(self, name: str, error: int = 404) -> None:
        self.name, self.error = name, error

    async def get(self, path: str, kind: type[Any]) -> Any:
        if path.endswith(f"/daemonsets/{self.name}"):
            return daemon_set(2, 3)
        raise ApiError(status=self.error)


@pytest.mark.parametrize(
    ("name", "error", "severities"),
    [
        ("mine-device-plugin", 404, [Severity.WARNING]),
        ("hami-device-plugin", 404, [Severity.WARNING]),
        ("", 404, []),
        ("", 403, [Severity.UNSEEN]),
    ],
)
async def test_the_agents_are_found_by_the_names_of_the_charts(
    name: str, error: int, severities: list[Severity]
) -> None:
    installation = Installation(namespace="gpu", name="mine-scheduler")
    found = await check_agents(cast("KubeClient", Cluster(name, error)), installation)
    assert [each.severity for each in found] == severities


# -- permissions


@pytest.mark.parametrize(
    ("flags", "preempts"), [((), True), (("--preemption=true",), True), (("--preemption=false",), False)]
)
def test_the_rights_to_preempt_are_needed_unless_preemption_is_off(flags: tuple[str, ...], preempts: bool) -> None:
    container = {"name": "tessera", "command": ["tessera", "scheduler", *flags]}
    deployment = {"spec": {"template": {"spec": {"containers": [container]}}}}
    needed = needed_by(Installation(deployment=deployment))
    assert set(FOR_PREEMPTION).issubset(needed) is preempts
