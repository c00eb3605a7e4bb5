"""What the chart renders with its defaults, as deploy/ has it: does it agree with the programs that it starts?

That deploy/ is what the chart renders is seen in the end-to-end tests, which have Helm.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from tessera.cli import main
from tessera.maintenance.cordon import HOW_TO_OPERATE
from tessera.monitor.settings import build_settings
from tessera.scheduler.admission.pod_admission import RESERVED_PREFIX, WISHES, reserved_keys
from tessera.scheduler.configuration import chart_sections
from tessera.vendors.base import Switches, Vendor
from tessera.vendors.registry import build_vendors, schemas
from tessera.wire import keys
from tessera.wire.device_config import load_device_config
from tessera.wire.pod_groups import GANG, GANG_MIN, GANG_SIZE, GANG_TOPOLOGY

ROOT = Path(__file__).parents[3]
SYSTEM = "tessera-system"
INSTALLED = ("nvidia",)
"""sections of the vendors that are on by default"""

EVICTION = frozenset({"pods/eviction", "poddisruptionbudgets"})
"""resources that preemption and moves need"""
PREEMPTION = frozenset({"pods/status"})
"""resources that only preemption needs"""
CLAIMS = frozenset({"resourceslices", "resourceclaims"})
"""resources that only agents with --dra need, which is off by default"""
ALLOCATION = CLAIMS | {"deviceclasses", "resourceclaims/status", "resourceclaims/binding", "resourceclaimtemplates"}
"""resources that only schedulers with --dra need"""
CREATED = frozenset({"create", "patch", "delete"})
"""what a scheduler with --dra-convert does with templates"""

Json = dict[str, Any]


def documents(path: str) -> list[Json]:
    return [each for each in yaml.safe_load_all((ROOT / path).read_text(encoding="utf-8")) if each]


OBJECTS = documents("deploy/tessera.yaml")


def the(kind: str, name: str) -> Json:
    (found,) = [each for each in OBJECTS if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


def containers(kind: str, name: str) -> dict[str, Json]:
    return {each["name"]: each for each in the(kind, name)["spec"]["template"]["spec"]["containers"]}


def rules(objects: list[Json], name: str) -> dict[str, Any]:
    """Of the roles of that name, by kind."""
    found = [each for each in objects if each["metadata"]["name"] == name and "rules" in each]
    return {each["kind"]: each["rules"] for each in found}


# -- rights


@pytest.mark.parametrize(
    ("tested", "name", "installed"),
    [
        ("tests/e2e/rbac.yaml", "tessera-scheduler", "tessera-scheduler"),
        ("tests/e2e/rbac.yaml", "tessera-scheduler-leader", "tessera-scheduler-leader"),
        ("tests/e2e/rbac.yaml", "tessera-scheduler-certificates", "tessera-scheduler-certificates"),
        ("tests/e2e/rbac.yaml", "kube-scheduler-leader", "tessera-scheduler-kube-scheduler-leader"),
        ("tests/e2e/node/rbac.yaml", "tessera-device-plugin", "tessera-device-plugin"),
    ],
)
def test_the_rights_that_are_installed_are_those_that_are_tested(tested: str, name: str, installed: str) -> None:
    by_default = {
        kind: [rule for rule in found if not ALLOCATION.issuperset(rule["resources"])]
        for kind, found in rules(documents(tested), name).items()
    }
    assert by_default == rules(OBJECTS, installed) != {}


@pytest.mark.parametrize(
    ("tested", "name", "template", "switch", "resources"),
    [
        (
            "tests/e2e/rbac.yaml",
            "tessera-scheduler",
            "scheduler/rbac.yaml",
            "or .Values.scheduler.preemption.enabled .Values.scheduler.defrag.enabled",
            EVICTION,
        ),
        (
            "tests/e2e/rbac.yaml",
            "tessera-scheduler",
            "scheduler/rbac.yaml",
            ".Values.scheduler.preemption.enabled",
            PREEMPTION,
        ),
        (
            "tests/e2e/rbac.yaml",
            "tessera-scheduler",
            "scheduler/rbac.yaml",
            ".Values.scheduler.dra.enabled",
            ALLOCATION,
        ),
        (
            "tests/e2e/node/rbac.yaml",
            "tessera-device-plugin",
            "device-plugin/rbac.yaml",
            ".Values.devicePlugin.dra.enabled",
            CLAIMS,
        ),
    ],
    ids=["eviction", "preemption", "allocation", "claims"],
)
def test_rights_of_a_feature_are_tested_and_installed_with_it_alone(
    tested: str, name: str, template: str, switch: str, resources: frozenset[str]
) -> None:
    (rules_tested,) = rules(documents(tested), name).values()
    wanted = [
        rule for rule in rules_tested if resources.issuperset(rule["resources"]) and frozenset(rule["verbs"]) != CREATED
    ]
    assert {resource for rule in wanted for resource in rule["resources"]} == resources
    text = (ROOT / "charts/tessera/templates" / template).read_text(encoding="utf-8")
    _, _, rest = text.partition(f"{{{{- if {switch} }}}}")
    block, _, _ = rest.partition("{{- end }}")
    assert yaml.safe_load(block) == wanted


def test_no_other_account_gets_any_right() -> None:
    given = {
        (each["roleRef"]["name"], subject["name"], subject["namespace"])
        for each in OBJECTS
        if each["kind"].endswith("RoleBinding")
        for subject in each["subjects"]
    }
    assert {name for _, name, _ in given} == {"tessera-scheduler", "tessera-device-plugin"}
    assert {namespace for *_, namespace in given} == {SYSTEM}
    assert {role for role, name, _ in given if name == "tessera-device-plugin"} == {"tessera-device-plugin"}


@pytest.mark.parametrize("name", ["tessera", "kube-scheduler"])
def test_the_scheduler_has_no_rights_on_its_machine(name: str) -> None:
    pod = the("Deployment", "tessera-scheduler")["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not any("hostPath" in volume for volume in pod["volumes"])
    assert containers("Deployment", "tessera-scheduler")[name]["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_an_agent_is_not_privileged_unless_its_node_needs_it() -> None:
    pod = the("DaemonSet", "tessera-device-plugin")["spec"]["template"]["spec"]
    assert not {"hostPID", "hostNetwork", "hostIPC"} & pod.keys()
    for each in pod["containers"]:
        assert each["securityContext"]["privileged"] is False
        assert each["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["DAC_OVERRIDE", "FOWNER"]}
    paths = {volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}
    assert paths == {
        "/var/lib/kubelet/device-plugins",
        "/var/lib/kubelet/pod-resources",
        "/usr/local/vgpu",
        "/tmp/vgpulock",
        "/var/lib/tessera",
    }


# -- settings


def installed_sections() -> Json:
    return {name: section for name, section in chart_sections().items() if name in INSTALLED}


def installed_vendors() -> list[Vendor]:
    return list(build_vendors(installed_sections(), Switches()).values())


def test_the_device_configuration_is_the_schedulers_own() -> None:
    text = the("ConfigMap", "tessera-scheduler-device")["data"]["device-config.yaml"]
    found = load_device_config(text, file="deploy/tessera.yaml", schemas=schemas())
    assert found == installed_sections()


def test_kube_scheduler_leaves_every_resource_of_nvidia_to_tessera_and_no_other() -> None:
    config = yaml.safe_load(the("ConfigMap", "tessera-scheduler")["data"]["config.yaml"])
    (extender,) = config["extenders"]
    names = sorted(name for vendor in installed_vendors() for name in vendor.names.all)
    assert all(name.startswith("nvidia.com/") for name in names)
    assert extender["managedResources"] == [{"name": name, "ignoredByScheduler": True} for name in names]
    assert config["percentageOfNodesToScore"] == 100
    assert config["clientConnection"] == {"qps": 1000, "burst": 1000}
    assert config["leaderElection"] == {
        "leaderElect": True,
        "resourceName": "hami-scheduler",
        "resourceNamespace": SYSTEM,
    }


@pytest.mark.parametrize(
    ("kind", "name", "container", "file"),
    [
        ("Deployment", "tessera-scheduler", "tessera", "--device-config-file"),
        ("DaemonSet", "tessera-device-plugin", "device-plugin", "--config-file"),
    ],
)
def test_the_program_understands_what_the_chart_tells_it(
    tmp_path: Path, kind: str, name: str, container: str, file: str
) -> None:
    config = tmp_path / "device-config.yaml"
    config.write_text(the("ConfigMap", "tessera-scheduler-device")["data"]["device-config.yaml"])
    node = tmp_path / "config.json"
    node.write_text(the("ConfigMap", "tessera-device-plugin")["data"]["config.json"])
    found = containers(kind, name)[container]
    here = {file: config, "--node-config-file": node}
    told = [f"{flag}={here[flag]}" if (flag := each.partition("=")[0]) in here else each for each in found["args"]]
    assert any(str(config) in each for each in told)
    environ = {"POD_NAMESPACE": SYSTEM, "NODE_NAME": "node-a"}
    result = CliRunner().invoke(main, [*found["command"][1:], *told, "--print-config"], env=environ)
    assert result.exit_code == 0, result.output
    assert "Warning" not in result.stderr


def test_the_monitor_understands_what_the_chart_tells_it_and_reads_where_the_agent_writes() -> None:
    found = containers("DaemonSet", "tessera-device-plugin")
    told = dict(each.removeprefix("--").split("=") for each in found["monitor"]["args"])
    settings = build_settings(told, {"NODE_NAME": "node-a"})
    agent = next(each for each in found["device-plugin"]["args"] if each.startswith("--hook-path="))
    assert settings.base == Path(agent.partition("=")[2]) / "vgpu"
    assert {"name": "hook", "mountPath": str(settings.base)} in found["monitor"]["volumeMounts"]
    assert not settings.warnings


def test_agents_and_monitors_have_a_port_each_in_their_service() -> None:
    found = containers("DaemonSet", "tessera-device-plugin")
    named = {port["name"]: port["containerPort"] for each in found.values() for port in each["ports"]}
    ports = the("Service", "tessera-device-plugin-monitor")["spec"]["ports"]
    assert {port["port"]: named[port["targetPort"]] for port in ports} == {31992: 9394, 31994: 9395}


# -- admission


def reserved_patterns() -> set[str]:
    (policy,) = [
        each
        for each in OBJECTS
        if (each["kind"], each["metadata"]["name"]) == ("ValidatingAdmissionPolicy", "tessera-reserved-annotations")
    ]
    webhooks = the("MutatingWebhookConfiguration", "tessera-webhook")["webhooks"]
    conditions = [each for webhook in webhooks for each in webhook["matchConditions"]]
    texts = [each["expression"] for each in (*policy["spec"]["variables"], *conditions)]
    return {pattern for text in texts for pattern in re.findall(r"matches\('([^']*)'\)", text)}


def test_everything_that_the_scheduler_writes_is_guarded_and_nothing_that_tenants_write() -> None:
    (pattern,) = reserved_patterns()
    vendors = build_vendors(None, Switches(ascend=True, iluvatar=True))
    ours = {
        *reserved_keys(vendors),
        *(RESERVED_PREFIX + name for name in ("anything", "g", "gate", "ganymede", "p", "preempt", "preemptible2")),
        *(wish[:-1] for wish in WISHES),
        *(f"{wish}2" for wish in WISHES),
        keys.RETRY,
        keys.visible_devices(0),
    }
    assert {key for key in ours if not re.search(pattern, key)} == set()
    wishes = {keys.NODE_POLICY, keys.DEVICE_POLICY, keys.SCORING_WEIGHTS, keys.NUMA_BIND, "not-tessera.io/x"}
    wishes |= {GANG, GANG_SIZE, GANG_MIN, GANG_TOPOLOGY, *WISHES}
    for vendor in vendors.values():
        known = vendor.keys
        wishes |= {known.use_models, known.avoid_models, *known.use_uuids, *known.avoid_uuids, known.mode}
        wishes |= set(known.settings)
    assert {key for key in wishes if re.search(pattern, key)} == set()


def test_the_webhook_is_asked_about_every_resource_that_is_managed() -> None:
    config = yaml.safe_load(the("ConfigMap", "tessera-scheduler")["data"]["config.yaml"])
    for webhook in the("MutatingWebhookConfiguration", "tessera-webhook")["webhooks"]:
        condition = {each["name"]: each["expression"] for each in webhook["matchConditions"]}["concerns-devices"]
        for resource in config["extenders"][0]["managedResources"]:
            assert f'"{resource["name"]}"' in condition


def test_a_pod_cannot_bypass_the_webhook_by_its_label_in_a_guarded_namespace() -> None:
    for webhook in the("MutatingWebhookConfiguration", "tessera-webhook")["webhooks"]:
        exempt = {"key": "tessera.io/guard", "operator": "In", "values": ["ignore"]}
        assert ("objectSelector" in webhook) is (exempt in webhook["namespaceSelector"]["matchExpressions"])


def test_every_protected_variable_is_guarded() -> None:
    spec = the("ValidatingAdmissionPolicy", "tessera-protected-variables")["spec"]
    expressions = {each["name"]: each["expression"] for each in spec["variables"]}
    (pattern,) = {*re.findall(r"matches\('([^']*)'\)", expressions["nvidiaWrong"])}
    for vendor in installed_vendors():
        if vendor.protected is not None:
            assert all(re.search(pattern, name) for name in vendor.protected.names)
            assert vendor.names.count in expressions["nvidiaExposed"]
    references = json.loads(expressions["nvidiaReferences"])
    assert references["NVIDIA_VISIBLE_DEVICES"] == keys.visible_devices(0).partition(".io/c0.")[2]
    assert not re.search(pattern, "CUDA_VISIBLE_DEVICES")


def test_every_count_of_a_managed_vendor_must_have_passed_the_webhook() -> None:
    spec = the("ValidatingAdmissionPolicy", "tessera-completed-pods")["spec"]
    (asking,) = [each["expression"] for each in spec["variables"] if each["name"] == "asking"]
    counts = [vendor.names.count for vendor in installed_vendors() if vendor.names.count]
    assert counts
    assert all(f'"{count}"' in asking for count in counts)


def test_the_role_for_cordon_drain_and_moves_is_installed_under_the_name_that_the_commands_say() -> None:
    (found,) = [
        each for each in OBJECTS if each["kind"] == "ClusterRole" and each["metadata"]["name"] == "tessera-operator"
    ]
    rights = {(resource, verb) for rule in found["rules"] for resource in rule["resources"] for verb in rule["verbs"]}
    assert {("nodes", "get"), ("nodes", "patch"), ("pods", "list"), ("pods/eviction", "create")} <= rights
    assert "tessera-operator" in HOW_TO_OPERATE
