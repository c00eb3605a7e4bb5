"""The chart as Helm renders it, for every version of Kubernetes and for values that people set. No cluster is asked."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

import tessera
from tessera.scheduler.configuration import chart_sections
from tessera.vendors.registry import schemas
from tessera.wire.device_config import load_device_config
from tessera.wire.keys import DRA_DRIVER
from tessera_lab.sandbox.api.kinds import Json
from tests.e2e.chart_install import ALL_VENDORS, BOTH_WORLDS, SCHEDULER
from tests.e2e.control_plane import RBAC
from tools import chart

EXAMPLES = sorted(chart.EXAMPLES.glob("*.yaml"))


@pytest.mark.parametrize("values", [[], *([path] for path in EXAMPLES)], ids=["defaults", *(p.stem for p in EXAMPLES)])
def test_the_chart_renders_for_every_version_of_kubernetes(helm: Path, values: list[Path]) -> None:
    chart.lint(helm, values)
    for version in chart.KUBERNETES:
        kinds = {each["kind"] for each in chart.objects(helm, kubernetes=version, values=values)}
        assert {"Deployment", "DaemonSet", "MutatingWebhookConfiguration"} <= kinds
        assert ("ValidatingAdmissionPolicy" in kinds) == (version >= "1.30")


def test_the_manifests_for_those_without_helm_are_up_to_date(helm: Path) -> None:
    assert chart.outdated(helm) == ""


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("scheduler.replica=2", "replica"),
        ("devicePlugin.libPath=/opt/vgpu", "global.gpuHookPath"),
        ("devicePlugin.monitor.ctrPath=/opt/vgpu/containers", "global.gpuHookPath"),
        ("scheduler.tls.existingSecret=mine", "scheduler.tls.caBundle"),
        ("scheduler.admissionWebhook.customURL.enabled=true", "needs a certificate for that host"),
        ("devicePlugin.nodeConfiguration.config=nonsense", "is no JSON"),
        ("devicePlugin.createRuntimeClass=true", "needs devicePlugin.runtimeClassName"),
        ("resourceName=gpu", "resourceName"),
        ("scheduler.extender.image.repository=projecthami/hami", "is projecthami/hami, which is HAMi's image"),
        ("devicePlugin.image.repository=mirror/hami", "devicePlugin.image.repository is mirror/hami"),
        ("devicePlugin.dra.enabled=true,devicePlugin.migStrategy=single", "leave migStrategy at none"),
        ("devicePlugin.dra.enabled=true,devicePlugin.deviceListStrategy=cdi-annotations", "write cdi-cri"),
        ("devicePlugin.dra.enabled=true,devicePlugin.dra.allocator=tessera", "scheduler.dra.enabled is false"),
        ("devicePlugin.dra.allocator=hami", "allocator"),
        ("scheduler.dra.convert=true", "needs scheduler.dra.enabled"),
        (f"{BOTH_WORLDS},scheduler.dra.convert=true,scheduler.admissionWebhook.enabled=false", "admissionWebhook"),
        ("scheduler.dra.enabled=true,scheduler.dra.convert=true", "with allocator tessera"),
        (f"{BOTH_WORLDS},scheduler.dra.convert=true,devicePlugin.dra.deviceClass=gpu", "deviceClass gpu.tessera.io"),
    ],
)
def test_values_that_cannot_be_meant_are_refused_with_a_word(helm: Path, settings: str, said: str) -> None:
    with pytest.raises(chart.ChartFault, match=said):
        chart.template(helm, settings=settings)


def test_the_device_configuration_of_all_vendors_is_the_schedulers_own(helm: Path) -> None:
    rendered = chart.objects(helm, settings=ALL_VENDORS)
    texts = [each["data"]["device-config.yaml"] for each in rendered if "-device" in name_of(each)]
    (found,) = [load_device_config(text, file="chart", schemas=schemas()) for text in texts]
    own = {name: section for name, section in chart_sections().items() if name in found}
    assert found == own
    assert chart_sections().keys() - found.keys() == {"iluvatar"}


def name_of(thing: Json) -> str:
    return str(thing["metadata"]["name"]) if thing["kind"] == "ConfigMap" and "config.json" not in thing["data"] else ""


@pytest.mark.parametrize(
    ("settings", "images"),
    [
        ("", ["tessera:{version}", "registry.k8s.io/kube-scheduler:v1.36.0", "tessera:{version}"]),
        (
            "global.imageRegistry=ours.example.com",
            [
                *("ours.example.com/tessera:{version}", "registry.k8s.io/kube-scheduler:v1.36.0"),
                "ours.example.com/tessera:{version}",
            ],
        ),
        (
            "global.imageRegistry=ours.example.com,scheduler.kubeScheduler.image.registry=mirror.example.com",
            [
                *("ours.example.com/tessera:{version}", "mirror.example.com/kube-scheduler:v1.36.0"),
                "ours.example.com/tessera:{version}",
            ],
        ),
    ],
)
def test_tesseras_image_and_kube_schedulers_come_from_registries_of_their_own(
    helm: Path, settings: str, images: list[str]
) -> None:
    rendered = chart.objects(helm, settings=settings)
    found = [
        container["image"]
        for kind in ("Deployment", "DaemonSet")
        for each in rendered
        if each["kind"] == kind
        for container in each["spec"]["template"]["spec"]["containers"]
        if container["name"] != "monitor"
    ]
    assert found == [image.format(version=tessera.__version__) for image in images]


def test_the_install_block_of_the_readme_names_the_images_that_it_pushes(helm: Path) -> None:
    block = (chart.ROOT / "README.md").read_text(encoding="utf-8").partition("## Install on a cluster")[2]
    lines = [line.removeprefix("$ ") for line in block.partition("```console")[2].partition("```")[0].splitlines()]
    (pushed,) = re.findall(r"docker push (\S+)", "\n".join(lines))
    (install,) = [line.split()[1:] for line in lines if line.startswith("helm install ")]
    newest = chart.KUBERNETES[-1]
    rendered = [*yaml.safe_load_all(chart.run(helm, "template", *install[1:], f"--kube-version={newest}"))]
    pods = [each["spec"]["template"]["spec"] for each in rendered if each["kind"] in ("Deployment", "DaemonSet")]
    images = {container["image"] for spec in pods for container in spec["containers"]}
    assert images == {pushed, f"registry.k8s.io/kube-scheduler:v{newest}"}
    namespaces = {each["metadata"]["namespace"] for each in rendered if each["kind"] == "DaemonSet"}
    assert f"kubectl create namespace {namespaces.pop()}" in lines


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ("devicePlugin.privileged=null", ["tessera-device-plugin", "tessera-mps-daemons"]),
        ("devicePlugin.mpsDaemons.enabled=false", ["tessera-device-plugin"]),
        # Agents could not find them by their process ids.
        ("devicePlugin.hostPID=false", ["tessera-device-plugin"]),
        ("devicePlugin.nodeConfiguration.config=", ["tessera-device-plugin"]),
    ],
)
def test_mps_daemons_are_in_pods_that_no_upgrade_replaces(helm: Path, settings: str, expected: list[str]) -> None:
    values = [chart.EXAMPLES / "mig-and-mps.yaml"]
    rendered = chart.objects(helm, values=values, settings=settings)
    found = {each["metadata"]["name"]: each["spec"] for each in rendered if each["kind"] == "DaemonSet"}
    assert sorted(found) == expected
    agent = found["tessera-device-plugin"]["template"]["spec"]
    own = found.get("tessera-mps-daemons")
    assert ("--external-mps-daemons" in agent["containers"][0]["args"]) is (own is not None)
    if own is not None:
        assert own["updateStrategy"] == {"type": "OnDelete"}
        assert own["template"]["spec"]["hostPID"] is agent["hostPID"] is True
        mounts = [each for each in own["template"]["spec"]["containers"][0]["volumeMounts"] if each["name"] == "mps"]
        assert mounts == [each for each in agent["containers"][0]["volumeMounts"] if each["name"] == "mps"]


def test_agents_that_serve_claims_have_what_they_need(helm: Path) -> None:
    objects = chart.objects(helm, settings="devicePlugin.dra.enabled=true")
    (device_class,) = [each for each in objects if each["kind"] == "DeviceClass"]
    assert device_class["metadata"]["name"] == DRA_DRIVER
    assert f"'{DRA_DRIVER}'" in device_class["spec"]["selectors"][0]["cel"]["expression"]
    (agent,) = [each["spec"]["template"]["spec"] for each in objects if each["kind"] == "DaemonSet"]
    container = agent["containers"][0]
    told = dict(each.removeprefix("--").split("=", 1) for each in container["args"] if "=" in each)
    assert "--dra" in container["args"]
    mounts = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
    places = {each["name"]: each["hostPath"]["path"] for each in agent["volumes"] if "hostPath" in each}
    # kubelet and the container runtime use the same paths on the host.
    for path in (told["plugin-registry-dir"], told["dra-plugin-dir"], "/var/run/cdi"):
        assert places[mounts[path]] == path
    for settings in ("devicePlugin.dra.enabled=true", "scheduler.dra.enabled=true"):
        with pytest.raises(chart.ChartFault, match=r"needs Kubernetes 1\.34"):
            chart.template(helm, kubernetes="1.33.0", settings=settings)


@pytest.mark.parametrize("convert", [False, True])
def test_a_scheduler_that_allocates_claims_is_asked_about_all_pods(helm: Path, convert: bool) -> None:
    settings = f"{BOTH_WORLDS},scheduler.dra.convert={str(convert).lower()}"
    objects = chart.objects(helm, settings=settings)

    def the(kind: str) -> Json:
        found: Json
        (found,) = [each for each in objects if each["kind"] == kind]
        return found

    (config_map,) = [each for each in objects if name_of(each) == SCHEDULER and each["kind"] == "ConfigMap"]
    config = yaml.safe_load(config_map["data"]["config.yaml"])
    assert "managedResources" not in config["extenders"][0]
    (profile,) = config["profiles"]
    assert profile["plugins"] == {"multiPoint": {"disabled": [{"name": "DynamicResources"}]}}
    assert "nvidia.com/gpumem" in profile["pluginConfig"][0]["args"]["ignoredResources"]
    arguments = the("Deployment")["spec"]["template"]["spec"]["containers"][0]["args"]
    assert ("--dra" in arguments, "--dra-convert" in arguments) == (True, convert)
    webhooks = the("MutatingWebhookConfiguration")["webhooks"]
    assert [each["failurePolicy"] for each in webhooks] == ["Fail", "Fail", "Ignore"]
    assert {each["sideEffects"] for each in webhooks} == {"NoneOnDryRun" if convert else "None"}
    (agent,) = [each["spec"]["template"]["spec"]["containers"][0] for each in objects if each["kind"] == "DaemonSet"]
    assert "--dra-allocator=tessera" in agent["args"]


def test_a_scheduler_that_moves_pods_has_the_rights_that_are_tested_and_is_told_so(helm: Path) -> None:
    objects = chart.objects(helm, values=[chart.EXAMPLES / "defragmentation.yaml"], settings=BOTH_WORLDS)
    name = "tessera-scheduler-defrag"
    [tested] = [each for each in yaml.safe_load_all(RBAC.read_text()) if each["metadata"]["name"] == name][:1]
    [role] = [
        each for each in objects if each["kind"] == "Role" and each["metadata"]["name"].endswith("scheduler-defrag")
    ]
    assert role["rules"] == tested["rules"]
    [deployment] = [
        each for each in objects if each["kind"] == "Deployment" and each["metadata"]["name"].endswith("scheduler")
    ]
    arguments = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    told = {"--defrag", "--defrag-evictions-per-hour=6", "--defrag-patience=15m", "--defrag-dry-run=false"}
    assert told <= set(arguments)
    assert not [each for each in chart.objects(helm) if each["metadata"]["name"].endswith("scheduler-defrag")]


@pytest.mark.parametrize(
    ("kubernetes", "settings", "policies"),
    [
        ("1.36.0", "", ["Fail", "Fail"]),
        ("1.36.0", "scheduler.overwriteEnv=true", ["Fail", "Fail"]),
        ("1.33.0", "scheduler.overwriteEnv=true", ["Fail", "Fail", "Ignore"]),
        ("1.36.0", "scheduler.overwriteEnv=true,annotationGuard.enabled=false", ["Fail", "Fail", "Ignore"]),
        ("1.26.0", "", ["Ignore"]),
        ("1.26.0", "scheduler.admissionWebhook.failurePolicy=Fail", ["Fail"]),
    ],
)
def test_only_a_webhook_that_is_asked_for_device_pods_alone_may_stop_pods(
    helm: Path, kubernetes: str, settings: str, policies: list[str]
) -> None:
    objects = chart.objects(helm, kubernetes=kubernetes, settings=settings)
    (configuration,) = [each for each in objects if each["kind"] == "MutatingWebhookConfiguration"]
    webhooks = configuration["webhooks"]
    assert [webhook["failurePolicy"] for webhook in webhooks] == policies
    assert {*webhooks[0]["admissionReviewVersions"]} == {"v1", "v1beta1"}
