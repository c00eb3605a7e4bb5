from __future__ import annotations

from pathlib import Path

import pytest

from tessera.scheduler.certificates.authority import DAY, LEAF_SECONDS, Pair
from tessera.scheduler.certificates.certificate_files import Bad, CertificateFiles, Loaded, Unchanged
from tessera.scheduler.certificates.serving_context import ServingContext
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


def test_files_are_loaded_and_followed(files: tuple[Path, Path]) -> None:
    serving = ServingContext()
    following = CertificateFiles(*files, serving)
    first, second = fresh().leaf, fresh(NOW + DAY).leaf
    write(files, first)
    assert following.look() == Loaded(NOW + LEAF_SECONDS)
    assert following.look() == Unchanged()
    write(files, second)
    assert following.look() == Loaded(NOW + DAY + LEAF_SECONDS)
    assert serving.served == second
    write(files, second)
    assert following.look() == Unchanged()
    assert following.look() == Unchanged()


def test_missing_files_are_reported_once(files: tuple[Path, Path]) -> None:
    following = CertificateFiles(str(files[0]), str(files[1]), ServingContext())
    first, second = following.look(), following.look()
    assert isinstance(first, Bad)
    assert isinstance(second, Bad)
    assert (first.is_news, second.is_news) == (True, False)
    assert str(files[0]) in first.text
    write(files, fresh().leaf)
    assert isinstance(following.look(), Loaded)


@pytest.mark.parametrize("half", [0, 1])
def test_a_half_written_pair_keeps_the_old_certificate_until_the_other_half_is_there(
    files: tuple[Path, Path], half: int
) -> None:
    serving = ServingContext()
    following = CertificateFiles(*files, serving)
    old, new = fresh().leaf, fresh().leaf
    write(files, old)
    following.look()
    halves = (new.certificate, new.key)
    files[half].write_bytes(halves[half])
    answer = following.look()
    assert isinstance(answer, Bad)
    assert "does not belong" in answer.text
    assert serving.served == old
    files[1 - half].write_bytes(halves[1 - half])
    assert isinstance(following.look(), Loaded)
    assert serving.served == new


@pytest.mark.parametrize("text", [b"", b"nonsense"])
def test_bad_files_keep_the_old_certificate_and_good_ones_end_the_complaint(
    files: tuple[Path, Path], text: bytes
) -> None:
    serving = ServingContext()
    following = CertificateFiles(*files, serving)
    old = fresh().leaf
    write(files, old)
    following.look()
    files[0].write_bytes(text)
    assert isinstance(following.look(), Bad)
    assert serving.served == old
    write(files, old)
    assert following.look() == Unchanged()
    files[0].write_bytes(text)
    answer = following.look()
    assert isinstance(answer, Bad)
    assert answer.is_news
