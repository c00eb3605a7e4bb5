"""Requests for NVIDIA cards that become ResourceClaims at admission."""

from __future__ import annotations

from typing import Any

import pytest

from tessera.wire.cel import Selector, compile_selector
from tests.support.admission import Document, admitted, container, pod, refusal, variables, verdict

CONVERTS: dict[str, Any] = {"dra_convert": True}
MODES = "device.attributes['gpu.tessera.io'].mode in"
SHARED = f'{MODES} ["hami-core", "mps", "none"]'


def template(document: Document) -> Document:
    found = verdict(document, **CONVERTS).requires
    assert found is not None
    return dict(found)


def requests(document: Document) -> Document:
    """Of the template, by name; each without what all have."""
    devices = template(document)["spec"]["spec"]["devices"]
    for each in devices["requests"]:
        assert each["exactly"].pop("deviceClassName") == "gpu.tessera.io"
    return {each["name"]: each["exactly"] for each in devices["requests"]}


def expressions(document: Document) -> list[str]:
    (only,) = requests(document).values()
    return [each["cel"]["expression"] for each in only["selectors"]]


def references(container: Document) -> Any:
    return container["resources"].get("claims")


def test_a_pod_gets_a_claim_instead_of_its_requests() -> None:
    asking = pod(
        container("main", gpu="1", mem="4096", cores="30", limits={"cpu": "2"}, env=[{"name": "MODEL", "value": "m"}]),
        container("plain"),
    )
    stored = admitted(asking, **CONVERTS)
    name = template(asking)["metadata"]["name"]
    assert stored["spec"]["resourceClaims"] == [{"name": "tessera-gpu", "resourceClaimTemplateName": name}]
    assert stored["spec"]["schedulerName"] == "hami-scheduler"
    main, plain = stored["spec"]["containers"]
    cpu = {"cpu": "2"}
    claims = [{"name": "tessera-gpu", "request": "c0"}]
    assert main["resources"] == {"limits": cpu, "requests": cpu, "claims": claims}
    # CDI brings the slice, so no variable refers to annotations of the pod.
    assert variables(main) == {"MODEL": "m"}
    assert plain["resources"] == {}
    selectors = [{"cel": {"expression": SHARED}}]
    assert requests(asking) == {
        "c0": {"selectors": selectors, "capacity": {"requests": {"memory": "4096Mi", "cores": "30"}}}
    }


def test_pods_that_ask_for_the_same_share_a_template_whatever_they_are_called() -> None:
    one, other = pod(container(gpu="1", mem="1000")), pod(container("other", gpu="1", mem="1k"))
    other["metadata"] |= {"name": "", "generateName": "replica-"}
    assert template(one) == template(other)
    names = {template(pod(container(gpu="1", mem=str(amount))))["metadata"]["name"] for amount in (1000, 1001, 2000)}
    assert len(names) == 3
    assert all(name.startswith("tessera-") and len(name) <= 63 for name in names)


@pytest.mark.parametrize(
    ("asked", "exactly"),
    [
        ({"gpu": "1"}, {"capacity": {"requests": {"cores": "100"}}}),
        ({"gpu": "1", "mem": "1000"}, {"capacity": {"requests": {"memory": "1000Mi"}}}),
        ({"gpu": "1", "percent": "100", "cores": "0"}, {}),
        ({"gpu": "2", "mem": "1000"}, {"count": 2, "capacity": {"requests": {"memory": "1000Mi"}}}),
    ],
)
def test_amounts_are_those_that_the_pod_would_get(asked: Document, exactly: Document) -> None:
    (found,) = requests(pod(container(**asked))).values()
    found.pop("selectors")
    assert found == exactly


def test_several_cards_of_a_container_are_different_ones() -> None:
    devices = template(pod(container(gpu="2", mem="1000")))["spec"]["spec"]["devices"]
    assert devices["constraints"] == [{"requests": ["c0"], "distinctAttribute": "gpu.tessera.io/uuid"}]


def test_each_container_has_a_request_of_its_own() -> None:
    sidecar = container("sidecar", gpu="1", mem="1000") | {"restartPolicy": "Always"}
    asking = pod(container("a", gpu="1", mem="2000"), container("b", gpu="1", mem="3000"), init=(sidecar,))
    assert {name: each["capacity"]["requests"]["memory"] for name, each in requests(asking).items()} == {
        "c0": "1000Mi",
        "c1": "2000Mi",
        "c2": "3000Mi",
    }
    spec = admitted(asking, **CONVERTS)["spec"]
    used = [references(each) for each in (*spec["initContainers"], *spec["containers"])]
    assert used == [[{"name": "tessera-gpu", "request": f"c{at}"}] for at in range(3)]


def test_an_init_container_uses_what_an_app_container_needs_anyway() -> None:
    asking = pod(container("app", gpu="1", mem="2000"), init=(container("init", gpu="1", mem="2000"),))
    spec = admitted(asking, **CONVERTS)["spec"]
    assert [*requests(asking)] == ["c1"]
    for each in (*spec["initContainers"], *spec["containers"]):
        assert references(each) == [{"name": "tessera-gpu", "request": "c1"}]


@pytest.mark.parametrize(
    ("annotations", "expression"),
    [
        (
            {"nvidia.com/use-gputype": "A100,H100"},
            """device.attributes['gpu.tessera.io'].model.lowerAscii().contains("a100") || """
            """device.attributes['gpu.tessera.io'].model.lowerAscii().contains("h100")""",
        ),
        (
            {"nvidia.com/nouse-gputype": "A100"},
            """!device.attributes['gpu.tessera.io'].model.lowerAscii().contains("a100")""",
        ),
        ({"nvidia.com/use-gpuuuid": "GPU-1"}, """device.attributes['gpu.tessera.io'].uuid in ["GPU-1"]"""),
        ({"nvidia.com/nouse-gpuuuid": "GPU-1"}, """!(device.attributes['gpu.tessera.io'].uuid in ["GPU-1"])"""),
        ({"nvidia.com/vgpu-mode": "mig"}, f'{MODES} ["mig"]'),
    ],
)
def test_annotations_become_selectors_and_stay(annotations: dict[str, str], expression: str) -> None:
    asking = pod(container(gpu="1", mem="1000"), annotations=annotations)
    assert expression in expressions(asking)
    for each in expressions(asking):
        assert isinstance(compile_selector(each), Selector)
    assert admitted(asking, **CONVERTS)["metadata"]["annotations"] == annotations


@pytest.mark.parametrize(
    ("asking", "why"),
    [
        (pod(container(gpu="1", percent="50")), "in MiB, not in per cent"),
        (pod(container(gpu="1", mem="1000"), init=(container("i", gpu="1", mem="2000"),)), "init container i asks"),
        (pod(container(gpu="1", mem="1000"), container("d", limits={"hygon.com/dcunum": "1"})), "other makers"),
        (pod(container("p", gpu="1", mem="1000", privileged=True), container(gpu="1", mem="1")), "is privileged"),
        (
            pod(container(gpu="1", mem="1000"), resourceClaims=[{"name": "tessera-gpu", "resourceClaimName": "x"}]),
            "a claim named tessera-gpu",
        ),
        (
            pod(container(gpu="1", mem="1000") | {"resources": {"limits": {"nvidia.com/gpu": "1"}, "claims": [{}]}}),
            "uses a claim of its own",
        ),
    ],
)
def test_what_a_claim_cannot_say_stays_as_it_is_with_the_reason(asking: Document, why: str) -> None:
    answer = verdict(asking, **CONVERTS)
    assert answer.allowed, answer.message
    assert answer.requires is None
    assert [each for each in answer.warnings if "do not become a ResourceClaim" in each and why in each]
    assert (answer.changed or asking)["spec"].get("resourceClaims") == asking["spec"].get("resourceClaims")


def test_quotas_hold_for_what_is_converted() -> None:
    asking = pod(container(gpu="1", mem="2000"))
    assert "exceeding resource quota" in refusal(asking, quota={"nvidia.com/gpumem": 1000}, **CONVERTS)


def test_without_conversion_a_pod_needs_no_template() -> None:
    answer = verdict(pod(container(gpu="1", mem="1000")))
    assert answer.requires is None
    assert "resourceClaims" not in answer.changed["spec"]
