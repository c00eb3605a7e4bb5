"""CDI documents against the published rules of the format, and what they say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tessera.node.fleet import Fleet
from tessera.node.modes.base import HostMount
from tessera.node.modes.cdi import DriverFiles, device_names, feature_document, gpu_document
from tessera.node.modes.device_lists import DeviceSpecs
from tests.support.sharing_modes import MIG, OTHER_MIG, A, B, card, fleet, instance, paths_below, put_files

Document = dict[str, Any]

VERSIONS = ("0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0")
LABEL = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
KIND = re.compile(rf"{LABEL}(?:\.{LABEL})*/[a-zA-Z](?:[a-zA-Z0-9_-]{{0,61}}[a-zA-Z0-9])?")
NAME = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9_.:-]*[a-zA-Z0-9])?")
HOOKS = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")
KEYS = {
    "document": {"cdiVersion", "kind", "devices", "containerEdits"},
    "device": {"name", "containerEdits"},
    "edits": {"env", "deviceNodes", "mounts", "hooks"},
    "node": {"path", "hostPath", "permissions", "type", "major", "minor", "fileMode", "uid", "gid"},
    "mount": {"hostPath", "containerPath", "options"},
    "hook": {"hookName", "path", "args", "env", "timeout"},
}
DRIVER = DriverFiles(
    mounts=(HostMount("/usr/lib64/libcuda.so.580.65.06", "/run/nvidia/usr/lib64/libcuda.so.580.65.06"),),
    library_folders=("/usr/lib64", "/usr/lib/other"),
    hook="/usr/bin/nvidia-ctk",
)


def check(document: Document) -> None:
    """As a container runtime would: it refuses the whole file for any of these."""
    assert document.keys() <= KEYS["document"]
    assert document["cdiVersion"] in VERSIONS
    assert KIND.fullmatch(document["kind"])
    assert len(document["kind"].split("/")[0]) <= 253
    names = [device["name"] for device in document["devices"]]
    assert names
    assert len(names) == len(set(names))
    for device in document["devices"]:
        assert device.keys() == KEYS["device"]
        assert NAME.fullmatch(device["name"])
        assert device["containerEdits"], "a device must change something"
        check_edits(device["containerEdits"])
    check_edits(document.get("containerEdits", {}))


def check_edits(edits: Document) -> None:
    assert edits.keys() <= KEYS["edits"]
    assert all(re.fullmatch(r"[A-Z_]+=.*", each) for each in edits.get("env", ()))
    for node in edits.get("deviceNodes", ()):
        assert node.keys() <= KEYS["node"]
        assert node["path"].startswith("/")
        assert node["hostPath"].startswith("/")
        assert set(node["permissions"]) <= set("rwm")
    for mount in edits.get("mounts", ()):
        assert mount.keys() <= KEYS["mount"]
        assert mount["hostPath"].startswith("/")
        assert mount["containerPath"].startswith("/")
    for hook in edits.get("hooks", ()):
        assert hook.keys() <= KEYS["hook"]
        assert hook["hookName"] in HOOKS
        assert hook["path"].startswith("/")


def specs(root: Path) -> DeviceSpecs:
    return DeviceSpecs(paths_below(root, dev_root=Path("/host")), here=root)


def nodes_of(document: Document) -> dict[str, list[str]]:
    return {
        device["name"]: [node["path"] for node in device["containerEdits"]["deviceNodes"]]
        for device in document["devices"]
    }


def test_every_card_is_a_device_and_so_are_all_of_them(tmp_path: Path) -> None:
    document = gpu_document(fleet(A, B), [], specs=specs(tmp_path), driver=DriverFiles())
    assert document is not None
    check(document)
    assert nodes_of(document) == {
        A: ["/dev/nvidia0"],
        B: ["/dev/nvidia1"],
        "all": ["/dev/nvidia0", "/dev/nvidia1"],
    }
    assert document["kind"] == "k8s.device-plugin.nvidia.com/gpu"
    assert document["devices"][0]["containerEdits"]["deviceNodes"][0]["hostPath"] == "/host/dev/nvidia0"
    assert device_names(document) == {A, B, "all"}


def test_every_container_with_a_card_gets_the_control_nodes_the_driver_and_its_loader_told(tmp_path: Path) -> None:
    put_files(tmp_path, ["/dev/nvidiactl", "/dev/nvidia-uvm"])
    document = gpu_document(fleet(A), [], specs=specs(tmp_path), driver=DRIVER)
    assert document is not None
    check(document)
    common = document["containerEdits"]
    assert [node["path"] for node in common["deviceNodes"]] == ["/dev/nvidiactl", "/dev/nvidia-uvm"]
    assert common["mounts"] == [
        {
            "hostPath": "/run/nvidia/usr/lib64/libcuda.so.580.65.06",
            "containerPath": "/usr/lib64/libcuda.so.580.65.06",
            "options": ["ro", "nosuid", "nodev", "bind"],
        }
    ]
    folders = ["--folder", "/usr/lib64", "--folder", "/usr/lib/other"]
    assert common["hooks"] == [
        {
            "hookName": "createContainer",
            "path": "/usr/bin/nvidia-ctk",
            "args": ["nvidia-ctk", "hook", "update-ldcache", *folders],
        }
    ]


def test_the_image_cannot_ask_for_more_cards_by_its_own_variable(tmp_path: Path) -> None:
    document = gpu_document(fleet(A), [], specs=specs(tmp_path), driver=DriverFiles())
    assert document is not None
    assert document["containerEdits"]["env"] == ["NVIDIA_VISIBLE_DEVICES=void"]


@pytest.mark.parametrize(
    ("driver", "args"),
    [
        (DriverFiles(library_folders=("/lib",), hook="/opt/nvidia-cdi-hook"), ["nvidia-cdi-hook", "update-ldcache"]),
        (DriverFiles(library_folders=("/lib",)), None),
        (DriverFiles(hook="/usr/bin/nvidia-ctk"), None),
    ],
    ids=["a program of its own", "no program", "no libraries"],
)
def test_a_hook_is_there_where_it_can_do_something(tmp_path: Path, driver: DriverFiles, args: list[str] | None) -> None:
    document = gpu_document(fleet(A), [], specs=specs(tmp_path), driver=driver)
    assert document is not None
    check(document)
    hooks = document["containerEdits"].get("hooks", [])
    assert [hook["args"][:2] for hook in hooks] == ([] if args is None else [args])


def test_instances_have_their_cards_node_and_their_capabilities(tmp_path: Path) -> None:
    (tmp_path / "mig-minors").write_text("gpu0/gi1/access 12\ngpu0/gi1/ci0/access 13\n")
    made = [instance(A, mig_uuid=MIG, gpu=1), instance(A, mig_uuid=OTHER_MIG, gpu=9), instance(B, mig_uuid=None)]
    gone = instance("GPU-gone", mig_uuid="MIG-gone")
    document = gpu_document(fleet(A), [*made, gone], specs=specs(tmp_path), driver=DriverFiles())
    assert document is not None
    check(document)
    caps = ["/dev/nvidia-caps/nvidia-cap12", "/dev/nvidia-caps/nvidia-cap13"]
    assert nodes_of(document) == {
        A: ["/dev/nvidia0"],
        MIG: ["/dev/nvidia0", *caps],
        "all": ["/dev/nvidia0", *caps],
    }


def test_cards_without_a_device_node_are_left_out(tmp_path: Path) -> None:
    document = gpu_document(
        Fleet((card(A, 0, minor=None), card(B, 1, problem="XID 79"))), [], specs=specs(tmp_path), driver=DriverFiles()
    )
    assert document is not None
    assert device_names(document) == {B, "all"}


@pytest.mark.parametrize("cards", [Fleet(), fleet(A, minor=None)], ids=["no cards", "no nodes"])
def test_a_node_that_offers_nothing_has_no_document(tmp_path: Path, cards: Fleet) -> None:
    assert gpu_document(cards, [], specs=specs(tmp_path), driver=DRIVER) is None


@pytest.mark.parametrize(
    ("feature", "present", "nodes", "mounts"),
    [
        ("gdrcopy", ["/dev/gdrdrv"], ["/dev/gdrdrv"], []),
        ("gds", ["/dev/nvidia-fs1", "/dev/nvidia-fs0"], ["/dev/nvidia-fs0", "/dev/nvidia-fs1"], []),
        ("gds", ["/dev/nvidia-fs0", "/etc/cufile.json"], ["/dev/nvidia-fs0"], ["/etc/cufile.json"]),
        (
            "mofed",
            ["/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs0", "/dev/infiniband/other"],
            ["/dev/infiniband/uverbs0", "/dev/infiniband/rdma_cm"],
            [],
        ),
    ],
)
def test_a_feature_has_the_nodes_that_are_here(
    tmp_path: Path, feature: str, present: list[str], nodes: list[str], mounts: list[str]
) -> None:
    put_files(tmp_path, present)
    document = feature_document(feature, specs=specs(tmp_path))
    assert document is not None
    check(document)
    assert document["kind"] == f"k8s.device-plugin.nvidia.com/{feature}"
    assert nodes_of(document) == {"all": nodes}
    assert [each["hostPath"] for each in document["devices"][0]["containerEdits"].get("mounts", [])] == mounts


@pytest.mark.parametrize("feature", ["gdrcopy", "gds", "mofed"])
def test_a_feature_that_the_node_does_not_have_has_no_document(tmp_path: Path, feature: str) -> None:
    put_files(tmp_path, ["/run/udev", "/etc/cufile.json", "/dev/nvidiactl"])
    assert feature_document(feature, specs=specs(tmp_path)) is None
