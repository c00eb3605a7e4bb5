"""CDI specs go with their strategy: the agent's own, and only while they are as the agent wrote them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tessera.node.modes.cdi import FILE, CdiFiles, CdiRecord
from tessera.node.settings import DeviceListStrategy
from tests.support.logs import captured
from tests.support.sharing_modes import fleet, put_files, settings

GPU = "k8s.device-plugin.nvidia.com-gpu.json"


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
