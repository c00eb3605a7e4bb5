"""The objects of the demo's story, as a user would write them."""

from __future__ import annotations

from collections.abc import Mapping

from tessera_lab.sandbox.api.kinds import Json

IMAGE = "registry.example/app:1"
"""never pulled: the demo runs no containers"""


def pod(
    name: str, limits: Mapping[str, int], *, namespace: str = "default", annotations: Mapping[str, str] | None = None
) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "annotations": dict(annotations or {})},
        "spec": {
            "containers": [
                {
                    "name": "main",
                    "image": IMAGE,
                    "resources": {"limits": {key: str(value) for key, value in limits.items()}},
                }
            ]
        },
    }


CLAIM_TEMPLATE: Json = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaimTemplate",
    "metadata": {"name": "small-gpu", "namespace": "default"},
    "spec": {
        "spec": {
            "devices": {
                "requests": [
                    {
                        "name": "gpu",
                        "exactly": {
                            "deviceClassName": "gpu.tessera.io",
                            "selectors": [
                                {"cel": {"expression": "device.attributes['gpu.tessera.io'].model.contains('L4')"}}
                            ],
                            "capacity": {"requests": {"memory": "2000Mi", "cores": "10"}},
                        },
                    }
                ]
            }
        }
    },
}
CLAIMANT: Json = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "embed",
        "namespace": "default",
        "annotations": {"hami.io/gpu-scheduler-policy": "binpack"},
    },
    "spec": {
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "small-gpu"}],
        "containers": [{"name": "main", "image": IMAGE, "resources": {"claims": [{"name": "gpu"}]}}],
    },
}
CHATS = tuple(
    pod(
        f"chat-{number}",
        {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 5000, "nvidia.com/gpucores": 20},
        annotations={"nvidia.com/use-gputype": "L4", "hami.io/gpu-scheduler-policy": "binpack"},
    )
    for number in range(1, 5)
)
NOTEBOOK = pod(
    "notebook", {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 20000}, annotations={"nvidia.com/use-gputype": "H100"}
)
_FOUR_H100 = {"nvidia.com/gpu": 4, "nvidia.com/gpucores": 100}
_TOGETHER = {"nvidia.com/use-gputype": "H100", "hami.io/gpu-scheduler-policy": "topology-aware"}
TRAINER = pod("train-1", _FOUR_H100, annotations=_TOGETHER)
GREEDY = pod("train-2", _FOUR_H100, annotations=_TOGETHER)
ISOLATED = pod("scoring", {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 9000}, annotations={"nvidia.com/vgpu-mode": "mig"})
ASCEND = pod("ocr", {"huawei.com/Ascend910B3": 1, "huawei.com/Ascend910B3-memory": 12000})

TEAM = "students"
TEAM_NAMESPACE: Json = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TEAM}}
TEAM_LIMIT_MIB = 30000
TEAM_QUOTA: Json = {
    "apiVersion": "v1",
    "kind": "ResourceQuota",
    "metadata": {"name": "gpu-memory", "namespace": TEAM},
    "spec": {"hard": {"limits.nvidia.com/gpumem": str(TEAM_LIMIT_MIB)}},
}
HOMEWORKS = tuple(
    pod(
        f"homework-{number}",
        {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 20000},
        namespace=TEAM,
        annotations={"nvidia.com/use-gputype": "A100"},
    )
    for number in (1, 2)
)
