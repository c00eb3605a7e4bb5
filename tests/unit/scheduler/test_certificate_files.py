from __future__ import annotations

from pathlib import Path

import pytest

from tessera.scheduler.certificates.authority import DAY, LEAF_S, BadCertificate, Pair
from tessera.scheduler.certificates.serving_context import CertificateFiles, ServingContext
from tests.support.certificates import NOW, fresh


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "tls.crt", tmp_path / "tls.key"


def write(files: tuple[Path, Path], pair: Pair) -> None:
    """As kubelet does it: new files take the place of the old ones."""
    for path, text in zip(files, (pair.certificate, pair.key), strict=True):
        other = path.with_suffix(".new")
        other.write_bytes(text)
        other.replace(path)


def follow(files: tuple[Path, Path], serving: ServingContext) -> CertificateFiles:
    return CertificateFiles(str(files[0]), str(files[1]), serving)


def test_files_are_loaded_and_followed(files: tuple[Path, Path]) -> None:
    serving = ServingContext()
    following = follow(files, serving)
    first, second = fresh().leaf, fresh(NOW + DAY).leaf
    write(files, first)
    assert following.read() == NOW + LEAF_S
    assert following.read() is None
    write(files, second)
    assert following.read() == NOW + DAY + LEAF_S
    assert serving.served == second
    write(files, second)
    assert following.read() is None
    assert following.read() is None


def test_files_may_come_later(files: tuple[Path, Path]) -> None:
    following = follow(files, ServingContext())
    for _ in range(2):
        with pytest.raises(BadCertificate, match=f"cannot read {files[0]}: No such file"):
            following.read()
    write(files, fresh().leaf)
    assert following.read() is not None


@pytest.mark.parametrize("half", [0, 1])
def test_a_half_written_pair_keeps_the_old_certificate_until_the_other_half_is_there(
    files: tuple[Path, Path], half: int
) -> None:
    serving = ServingContext()
    following = follow(files, serving)
    old, new = fresh().leaf, fresh().leaf
    write(files, old)
    following.read()
    halves = (new.certificate, new.key)
    files[half].write_bytes(halves[half])
    with pytest.raises(BadCertificate, match="does not belong"):
        following.read()
    assert serving.served == old
    files[1 - half].write_bytes(halves[1 - half])
    assert following.read() is not None
    assert serving.served == new


@pytest.mark.parametrize("text", [b"", b"nonsense"])
def test_bad_files_keep_the_old_certificate(files: tuple[Path, Path], text: bytes) -> None:
    serving = ServingContext()
    following = follow(files, serving)
    old = fresh().leaf
    write(files, old)
    following.read()
    files[0].write_bytes(text)
    for _ in range(2):
        with pytest.raises(BadCertificate, match=str(files[0])):
            following.read()
    assert serving.served == old
    write(files, old)
    assert following.read() is None
