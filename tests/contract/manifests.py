"""Bodies for the contract suite: the smallest pod that asks for a slice, its binding, and workloads of such pods."""

from __future__ import annotations

from typing import Any

from tests.contract.client import Json


def pod(name: str = "p", **metadata: Any) -> Json:
    limits = {"cpu": "0.1", "memory": "1024Mi", "nvidia.com/gpu": 1, "nvidia.com/gpumem": "3000"}
    container = {"name": "c", "image": "busybox:1", "resources": {"limits": limits}}
    return {"metadata": {"name": name} | metadata, "spec": {"containers": [container]}}


def binding(node: str, name: str = "p", **metadata: Any) -> Json:
    return {"metadata": {"name": name} | metadata, "target": {"kind": "Node", "name": node}}


def deployment(name: str = "d", **spec: Any) -> Json:
    """Of every workload with replicas."""
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": pod()["spec"]}
    return {"metadata": {"name": name}, "spec": {"selector": {"matchLabels": labels}, "template": template} | spec}


def job(name: str = "j", **spec: Any) -> Json:
    template = {"spec": pod()["spec"] | {"restartPolicy": "Never"}}
    return {"metadata": {"name": name}, "spec": {"template": template} | spec}
