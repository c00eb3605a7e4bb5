"""The image that is built without a container engine: its parts. All of them together run in the end-to-end tests."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import tessera
from tests.unit.chart.test_image import DOCKERFILE, pins
from tools.image import debian, oci, sbom, wheels
from tools.image.builder import CONFIG, HOME, Source, read_source
from tools.image.debian import Package
from tools.image.wheels import Dist

Json = dict[str, Any]


def folder(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def members(layer: oci.Layer) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(layer.content))) as archive:
        return {member.name: member for member in archive}


# -- layers and archives


def test_the_same_files_give_the_same_layer_whatever_their_times_and_owners(tmp_path: Path) -> None:
    first = folder(tmp_path / "a", bin__program="x", etc__file="y")
    second = folder(tmp_path / "b", etc__file="y", bin__program="x")
    os.utime(second / "bin/program", (1, 1))
    assert oci.layer(first) == oci.layer(second)
    assert oci.layer(folder(first, etc__file="z")) != oci.layer(second)


def test_files_of_a_layer_belong_to_root_and_only_tmp_is_open_to_others(tmp_path: Path) -> None:
    root = folder(tmp_path, bin__program="x", tmp__kept="")
    (root / "bin/program").chmod(0o6777)
    (root / "bin/link").symlink_to("/bin/program")
    (root / "bin/twin").hardlink_to(root / "bin/program")
    found = members(oci.layer(root))
    assert {(each.uid, each.gid, each.mtime) for each in found.values()} == {(0, 0, oci.MODIFIED_S)}
    assert found["tmp"].mode == 0o1777
    assert found["bin/program"].mode == 0o755
    assert found["bin/link"].linkname == "/bin/program"
    assert found["bin/program"].isreg()
    assert found["bin/twin"].isreg()


def test_an_archive_is_an_oci_layout_whose_digests_are_right(tmp_path: Path) -> None:
    layers = [oci.layer(folder(tmp_path / name, file=name), name) for name in ("a", "b")]
    config = {**CONFIG, "Labels": {"org.opencontainers.image.version": "1"}}
    path = tmp_path / "out" / "image.tar"
    digest = oci.write(path, "example.com/tessera:1", layers, architecture="amd64", config=config)
    with tarfile.open(path) as archive:
        files = {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]
    blobs = {name.removeprefix("blobs/").replace("/", ":"): content for name, content in files.items() if "/" in name}
    assert all(oci.digest(content) == name for name, content in blobs.items())
    assert json.loads(files["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    (entry,) = json.loads(files["index.json"])["manifests"]
    assert entry["digest"] == digest
    assert entry["annotations"]["io.containerd.image.name"] == "example.com/tessera:1"
    manifest = json.loads(blobs[digest])
    image = json.loads(blobs[manifest["config"]["digest"]])
    assert image["rootfs"]["diff_ids"] == [layer.diff_id for layer in layers]
    assert [each["digest"] for each in manifest["layers"]] == [layer.digest for layer in layers]
    assert oci.digest(gzip.decompress(blobs[layers[0].digest])) == layers[0].diff_id
    assert image["config"]["Labels"] == {"org.opencontainers.image.version": "1"}


# -- what is in it


def test_both_images_start_the_same_program_as_the_same_user() -> None:
    last = DOCKERFILE.rpartition("FROM ")[2]
    assert f"\nUSER {CONFIG['User']}\n" in last
    assert f"\nENTRYPOINT {json.dumps(CONFIG['Entrypoint'])}\n" in last
    assert f"\nCMD {json.dumps(CONFIG['Cmd'])}\n" in last
    assert f"ENV PATH=/{HOME}/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1\n" in last
    assert [each.partition("=")[0] for each in CONFIG["Env"]] == ["PATH", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"]


def test_the_labels_of_both_images_name_version_revision_and_source() -> None:
    labels = Source("1.2.3", "abc", "2026-01-01T00:00:00Z", "https://example.com/tessera").labels()
    found = {name.removeprefix("org.opencontainers.image."): value for name, value in labels.items()}
    assert found.items() >= {"version": "1.2.3", "revision": "abc", "source": "https://example.com/tessera"}.items()
    assert {f"{name}=" for name in labels if "created" not in name} == {*re.findall(r"org[.]\S+?=", DOCKERFILE)}
    assert f"\nARG VERSION={tessera.__version__}\n" in DOCKERFILE


def test_the_version_is_that_of_the_sources() -> None:
    source = read_source({"IMAGE_SOURCE": "https://example.com"})
    assert (source.version, source.url) == (tessera.__version__, "https://example.com")


def packed(*members: tarfile.TarInfo) -> tarfile.TarFile:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for member in members:
            archive.addfile(member)
    buffer.seek(0)
    return tarfile.open(fileobj=buffer)


def entry(name: str, type_: bytes = tarfile.REGTYPE, linkname: str = "") -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.type, found.linkname = type_, linkname
    return found


def test_packages_are_unpacked_into_a_merged_usr_without_manuals() -> None:
    archive = packed(
        entry("./", tarfile.DIRTYPE),
        entry("./lib/", tarfile.DIRTYPE),
        entry("./lib/x86_64-linux-gnu/libc.so.6"),
        entry("./bin/twin", tarfile.LNKTYPE, "./bin/busybox"),
        entry("./lib64/ld.so", tarfile.SYMTYPE, "/lib/ld.so"),
        entry("./usr/share/man/man1/x.1.gz"),
        entry("./usr/share/doc/libc6/", tarfile.DIRTYPE),
        entry("./usr/share/doc/libc6/changelog.gz"),
        entry("./usr/share/doc/libc6/copyright"),
        entry("./usr/lib/python3.11/idlelib/x.py"),
        entry("./usr/lib/python3.11/json/x.py"),
    )
    with archive:
        found = {member.name: member.linkname for member in debian.chosen_members(archive)}
    assert found == {
        "usr/lib": "",
        "usr/lib/x86_64-linux-gnu/libc.so.6": "",
        "usr/bin/twin": "usr/bin/busybox",
        "usr/lib64/ld.so": "/lib/ld.so",
        "usr/share/doc/libc6/copyright": "",
        "usr/lib/python3.11/json/x.py": "",
    }


def test_wheels_are_unpacked_without_scripts_and_are_known_afterwards(tmp_path: Path) -> None:
    wheel = tmp_path / "some_thing-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("thing/__init__.py", "")
        archive.writestr("some_thing-1.0.data/platlib/thing/fast.so", "")
        archive.writestr("some_thing-1.0.data/scripts/thing", "")
        head = "Metadata-Version: 2.4\nName: Some-Thing\nVersion: 1.0\nLicense-Expression: MIT\n\nText: no header\n"
        archive.writestr("some_thing-1.0.dist-info/METADATA", head)
    wheels.unpack(wheel, tmp_path / "to")
    found = {str(path.relative_to(tmp_path / "to")) for path in (tmp_path / "to").rglob("*") if path.is_file()}
    assert found == {"thing/__init__.py", "thing/fast.so", "some_thing-1.0.dist-info/METADATA"}
    assert wheels.installed(tmp_path / "to") == [Dist("Some-Thing", "1.0", "MIT")]


def test_the_bill_of_materials_names_every_package_by_its_url() -> None:
    dists = [Dist(name, version) for name, version in pins("runtime.txt").items()]
    package = Package("libstdc++6", "1:12.2.0-14+deb12u1", "amd64", Path("x.deb"))
    product = Dist("tessera-gpu", "1.0", "Apache-2.0")
    found = sbom.document(product, dists=dists, packages=[package], distribution="debian")
    assert found == sbom.document(product, dists=reversed(dists), packages=[package], distribution="debian")
    urls = [each["purl"] for each in found["components"]]
    assert urls[0] == "pkg:deb/debian/libstdc%2B%2B6@1%3A12.2.0-14+deb12u1?arch=amd64"
    assert {f"pkg:pypi/{name}@{version}" for name, version in pins("runtime.txt").items()} == {*urls[1:]}
    assert found["metadata"]["component"]["licenses"] == [{"expression": "Apache-2.0"}]
