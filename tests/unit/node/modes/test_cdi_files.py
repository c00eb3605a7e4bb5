"""CDI spec files: whole, true to the cards, and nobody else's."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from tessera.node.fleet import Fleet
from tessera.node.handover.assignments import Assignment
from tessera.node.modes.base import ContainerResponse, SharingMode
from tessera.node.modes.cdi import CdiFiles
from tessera.node.modes.device_lists import DeviceSpecs
from tessera.node.settings import AgentSettings, DeviceListStrategy
from tests.support.sharing_modes import MIG, A, B, claim, fleet, instance, put_files, settings

GPU = "k8s.device-plugin.nvidia.com-gpu.json"
GDRCOPY = "k8s.device-plugin.nvidia.com-gdrcopy.json"


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


async def test_new_cards_and_instances_are_in_the_file_at_once(
    files: CdiFiles, own: AgentSettings, tmp_path: Path
) -> None:
    (tmp_path / "mig-minors").write_text("gpu0/gi1/access 12\ngpu0/gi1/ci0/access 13\n")
    for cards, instances, expected in (
        (fleet(A), (), {A, "all"}),
        (fleet(A, B), (), {A, B, "all"}),
        (fleet(A), (instance(),), {A, MIG, "all"}),
        (fleet(A), (), {A, "all"}),
    ):
        await files.refresh(cards, instances)
        assert names(own.paths.cdi / GPU) == expected
        assert all(files.offers("gpu", each) for each in expected)


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


async def test_an_unfinished_file_is_not_left_behind(files: CdiFiles, own: AgentSettings) -> None:
    (own.paths.cdi / GPU).mkdir(parents=True)
    await files.refresh(fleet(A), ())
    assert files.problem
    assert os.listdir(own.paths.cdi) == [GPU]


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
