"""CDI documents against the published rules of the format, and what they say."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tessera.node.fleet import Fleet
from tessera.node.handover.assignments import Assignment
from tessera.node.modes.base import ContainerResponse, HostMount, SharingMode
from tessera.node.modes.cdi import (
    FILE,
    CdiFiles,
    CdiRecord,
    DriverFiles,
    device_names,
    feature_document,
    find_driver_files,
    gpu_document,
)
from tessera.node.modes.device_lists import DeviceSpecs
from tessera.node.settings import AgentSettings, DeviceListStrategy
from tests.support.logs import captured
from tests.support.sharing_modes import (
    MIG,
    OTHER_MIG,
    A,
    B,
    card,
    claim,
    fleet,
    instance,
    paths_below,
    put_files,
    settings,
)

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

LIBRARIES = "usr/lib/x86_64-linux-gnu"
INSTALLED = (
    f"{LIBRARIES}/libcuda.so.580.65.06",
    f"{LIBRARIES}/libnvidia-ml.so.580.65.06",
    f"{LIBRARIES}/libnvidia-ptxjitcompiler.so.580.65.06",
    f"{LIBRARIES}/libssl.so.1.1",
    f"{LIBRARIES}/nvidia.so.580.65.06",
    "usr/bin/nvidia-smi",
    "usr/bin/nvidia-debugdump",
    "usr/bin/python3",
)

GPU = "k8s.device-plugin.nvidia.com-gpu.json"
GDRCOPY = "k8s.device-plugin.nvidia.com-gdrcopy.json"


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


# -- what of the driver is found below its folder


def found(root: Path, **more: Path) -> DriverFiles:
    return find_driver_files(paths_below(root, **({"cdi_hook": root / "nvidia-ctk"} | more)))


def test_libraries_and_programs_of_the_drivers_version_are_mounted_where_they_are(tmp_path: Path) -> None:
    put_files(tmp_path / "driver", INSTALLED)
    files = found(tmp_path, driver_root=Path("/run/nvidia"))
    assert files.mounts == tuple(
        HostMount(f"/{path}", f"/run/nvidia/{path}")
        for path in (*INSTALLED[:3], "usr/bin/nvidia-debugdump", "usr/bin/nvidia-smi")
    )
    assert files.library_folders == (f"/{LIBRARIES}",)


def test_nothing_is_invented_where_there_is_no_driver(tmp_path: Path) -> None:
    assert found(tmp_path) == DriverFiles()
    put_files(tmp_path / "driver", ["usr/bin/nvidia-smi", f"{LIBRARIES}/libcuda.so.1.1", f"{LIBRARIES}/libssl.so.1.1"])
    assert found(tmp_path) == DriverFiles()


def test_without_cuda_the_version_is_that_of_the_management_library(tmp_path: Path) -> None:
    put_files(tmp_path / "driver", ["usr/lib64/libnvidia-ml.so.550.90.07"])
    assert found(tmp_path).mounts == (
        HostMount("/usr/lib64/libnvidia-ml.so.550.90.07", "/usr/lib64/libnvidia-ml.so.550.90.07"),
    )


def test_two_versions_at_once_tell_nothing(tmp_path: Path) -> None:
    put_files(tmp_path / "driver", [f"{LIBRARIES}/libcuda.so.{version}" for version in ("580.65.06", "550.90.07")])
    assert found(tmp_path) == DriverFiles()


def test_a_folder_that_is_another_by_a_link_is_listed_once(tmp_path: Path) -> None:
    put_files(tmp_path / "driver", ["usr/lib64/libcuda.so.580.65.06"])
    (tmp_path / "driver" / "lib64").symlink_to("usr/lib64")
    assert [each.container_path for each in found(tmp_path).mounts] == ["/usr/lib64/libcuda.so.580.65.06"]


def test_a_link_out_of_the_drivers_folder_is_not_followed(tmp_path: Path) -> None:
    put_files(tmp_path / "image", ["libcuda.so.580.65.06"])
    put_files(tmp_path / "driver", ["usr/bin/none"])
    (tmp_path / "driver" / "lib64").symlink_to(tmp_path / "image")
    assert found(tmp_path) == DriverFiles()


def test_links_to_libraries_and_programs_are_left_to_the_loader(tmp_path: Path) -> None:
    put_files(tmp_path / "driver", ["usr/lib64/libcuda.so.580.65.06", "usr/bin/real"])
    (tmp_path / "driver/usr/lib64/libcuda.so.1").symlink_to("libcuda.so.580.65.06")
    (tmp_path / "driver/usr/lib64/libodd.so.580.65.06").symlink_to("libcuda.so.580.65.06")
    (tmp_path / "driver/usr/bin/nvidia-smi").symlink_to("real")
    assert [each.container_path for each in found(tmp_path).mounts] == ["/usr/lib64/libcuda.so.580.65.06"]


@pytest.mark.parametrize("where", ["driver/usr/bin/nvidia-ctk", "own/nvidia-ctk", None])
def test_the_hook_is_named_where_it_is_seen(tmp_path: Path, where: str | None) -> None:
    hook = Path("/usr/bin/nvidia-ctk-of-this-test") if where is None else Path("/usr/bin/nvidia-ctk")
    if where == "own/nvidia-ctk":
        hook = tmp_path / where
    if where is not None:
        put_files(tmp_path, [where])
    assert found(tmp_path, cdi_hook=hook).hook == ("" if where is None else str(hook))


# -- CDI spec files: whole, true to the cards, and only those of the agent


@pytest.fixture
def own(tmp_path: Path) -> AgentSettings:
    return settings(tmp_path, DeviceListStrategy.CDI_CRI, gdrcopy=True)


@pytest.fixture
async def files(own: AgentSettings, tmp_path: Path) -> AsyncIterator[CdiFiles]:
    made = CdiFiles(own, specs=DeviceSpecs(own.paths, here=tmp_path))
    yield made
    await made.stop()


def names(path: Path) -> set[str]:
    return {device["name"] for device in json.loads(path.read_text())["devices"]}


async def test_the_file_is_written_whole_and_readable_for_everybody(files: CdiFiles, own: AgentSettings) -> None:
    before = os.umask(0o077)
    try:
        await files.refresh(fleet(A), ())
    finally:
        os.umask(before)
    assert names(own.paths.cdi / GPU) == {A, "all"}
    assert stat.S_IMODE((own.paths.cdi / GPU).stat().st_mode) == 0o644
    assert os.listdir(own.paths.cdi) == [GPU]
    assert files.offers("gpu", A)
    assert not files.offers("gpu", B)
    assert not files.offers("gdrcopy", "all")


async def test_a_file_that_is_as_it_should_be_is_not_written_again(files: CdiFiles, own: AgentSettings) -> None:
    await files.refresh(fleet(A), ())
    before = (own.paths.cdi / GPU).stat().st_ino
    await files.refresh(fleet(A), ())
    assert (own.paths.cdi / GPU).stat().st_ino == before


@pytest.mark.parametrize("harm", ["deleted", "changed"])
async def test_a_file_that_somebody_harmed_is_restored(files: CdiFiles, own: AgentSettings, harm: str) -> None:
    await files.refresh(fleet(A), ())
    path = own.paths.cdi / GPU
    path.unlink() if harm == "deleted" else path.write_text("{}")
    await files.refresh(fleet(A), ())
    assert names(path) == {A, "all"}


async def test_a_feature_has_a_file_while_the_node_has_the_feature(
    files: CdiFiles, own: AgentSettings, tmp_path: Path
) -> None:
    put_files(tmp_path, ["/dev/gdrdrv"])
    await files.refresh(fleet(A), ())
    assert names(own.paths.cdi / GDRCOPY) == {"all"}
    assert files.offers("gdrcopy", "all")
    (tmp_path / "dev" / "gdrdrv").unlink()
    await files.refresh(fleet(A), ())
    assert not (own.paths.cdi / GDRCOPY).exists()
    assert not files.offers("gdrcopy", "all")


async def test_a_node_without_cards_offers_nothing(files: CdiFiles, own: AgentSettings) -> None:
    await files.refresh(Fleet(), ())
    assert not own.paths.cdi.exists()
    await files.refresh(fleet(A), ())
    await files.refresh(Fleet(), ())
    assert os.listdir(own.paths.cdi) == []


async def test_a_folder_that_cannot_be_written_is_a_problem_until_it_can(files: CdiFiles, own: AgentSettings) -> None:
    own.paths.cdi.write_text("a file where the folder should be")
    await files.refresh(fleet(A), ())
    assert "CDI specs cannot be written" in files.problem
    assert not files.offers("gpu", A)
    await files.refresh(fleet(A), ())
    own.paths.cdi.unlink()
    await files.refresh(fleet(A), ())
    assert (files.problem, files.offers("gpu", A)) == ("", True)


async def test_a_write_that_fails_half_way_leaves_the_old_file(
    files: CdiFiles, own: AgentSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    await files.refresh(fleet(A), ())

    def full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", full)
    await files.refresh(fleet(A, B), ())
    assert "no space left" in files.problem
    assert os.listdir(own.paths.cdi) == [GPU]
    assert names(own.paths.cdi / GPU) == {A, "all"}


class Mode(SharingMode):
    async def hand_over(self, claim: Assignment, ids: Sequence[str], *, certain: bool = True) -> ContainerResponse:
        raise NotImplementedError


async def test_the_files_follow_the_cards_and_instances_of_the_sharing_mode(
    files: CdiFiles, own: AgentSettings, tmp_path: Path
) -> None:
    (tmp_path / "mig-minors").write_text("gpu0/gi1/access 12\ngpu0/gi1/ci0/access 13\n")
    mode = Mode()
    mode.cdi, mode.instances = files, lambda: (instance(),)
    await mode.start(fleet(A))
    assert names(own.paths.cdi / GPU) == {A, MIG, "all"}
    mode.instances = tuple
    await mode.refresh()
    assert names(own.paths.cdi / GPU) == {A, "all"}
    await mode.reconcile([claim()], fleet(A, B))
    assert names(own.paths.cdi / GPU) == {A, B, "all"}
    await mode.stop()
    assert (own.paths.cdi / GPU).exists(), "a container that restarts while the agent is away still finds its card"


# -- CDI specs go with their strategy: the agent's own, and only while they are as the agent wrote them


async def written(root: Path) -> Path:
    """The spec of an agent that has ended since."""
    put_files(root / "driver", ["dev/nvidiactl", "dev/nvidia0", "dev/nvidia1"])
    files = CdiFiles(settings(root, DeviceListStrategy.CDI_CRI))
    await files.refresh(fleet(), ())
    await files.stop()
    return root / "cdi" / GPU


async def test_a_spec_of_an_earlier_agent_is_removed(tmp_path: Path) -> None:
    spec = await written(tmp_path)
    assert spec.exists()
    CdiRecord(tmp_path / "state").retire()
    assert not spec.exists()
    assert not (tmp_path / "state" / FILE).exists()


async def test_a_spec_that_somebody_changed_stays_and_that_is_said(tmp_path: Path) -> None:
    spec = await written(tmp_path)
    spec.write_text("{}")
    with captured() as logs:
        CdiRecord(tmp_path / "state").retire()
    assert spec.read_text() == "{}"
    assert logs.of("a CDI spec stays: another program changed it")


async def test_a_spec_that_is_gone_already_is_no_matter(tmp_path: Path) -> None:
    spec = await written(tmp_path)
    spec.unlink()
    CdiRecord(tmp_path / "state").retire()
    assert not (tmp_path / "state" / FILE).exists()


def test_the_content_before_is_known_too_in_case_that_the_agent_ended_in_between(tmp_path: Path) -> None:
    record, spec = CdiRecord(tmp_path), tmp_path / "a.json"
    for text in (b"1", b"2", b"2", b"3"):
        record.add(spec, text)
    spec.write_bytes(b"2")
    record.retire()
    assert not spec.exists()


def test_an_older_content_is_not(tmp_path: Path) -> None:
    record, spec = CdiRecord(tmp_path), tmp_path / "a.json"
    for text in (b"1", b"2", b"3"):
        record.add(spec, text)
    spec.write_bytes(b"1")
    record.retire()
    assert spec.exists()


@pytest.mark.parametrize("text", ["{", '{"a": 1}', "\xff", "[" * 100_000])
def test_a_record_that_cannot_be_read_owns_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text, encoding="latin-1")
    with captured() as logs:
        CdiRecord(tmp_path).retire()
    assert logs.of("the record of CDI specs is unreadable")


async def test_specs_are_written_also_where_nothing_can_be_written_down(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    with captured() as logs:
        assert (await written(tmp_path)).exists()
    assert logs.of("the record of CDI specs cannot be written")
