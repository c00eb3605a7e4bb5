"""Folders of containers over time: given, kept, let go."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Collection, Sequence
from pathlib import Path

import pytest
import structlog

from tessera.host.writable_dirs import WritableDirs, ids_dir_name
from tessera.node.handover.assignments import Assignment
from tessera.node.modes import hami_core
from tessera.node.modes.base import AllocationRefused
from tessera.node.modes.hami_core import GRACE_S, LOOK_EVERY_S, ContainerDirs, DirRetention
from tests.support.sharing_modes import claim

ONE = claim(uid="uid-1")
TWO = claim(uid="uid-2")
HELD_BY_NOBODY: Collection[Collection[str]] = ()


class World:
    """A node's folders, its clock, and what kubelet says about who holds what."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.time = 1000.0
        self.held: Collection[Collection[str]] | None = ()
        self.folders = ContainerDirs(WritableDirs(base), held=self._held, now=lambda: self.time)

    async def _held(self) -> Collection[Collection[str]] | None:
        return self.held

    async def give(self, name: str, *ids: str) -> Path:
        path, _ = await self.folders.give(name, ids or ("a-0",), after=lambda: None)
        return path

    async def pass_time(self, seconds: float, live: Sequence[Assignment] = ()) -> None:
        """As the agent does: a look every minute."""
        end = self.time + seconds
        while self.time < end:
            self.time += LOOK_EVERY_S
            await self.folders.remove_unused(live)

    @property
    def there(self) -> list[str]:
        return sorted(os.listdir(self.base / "containers"))


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = World(tmp_path / "vgpu")
    yield made
    await made.folders.stop()


async def test_a_folder_lives_as_long_as_its_container_and_a_grace_period(world: World) -> None:
    await world.give("uid-1_main")
    await world.pass_time(10 * GRACE_S, live=[claim(uid="uid-1")])
    assert world.there == ["uid-1_main"]
    await world.pass_time(GRACE_S)
    assert world.there == ["uid-1_main"]
    await world.pass_time(LOOK_EVERY_S)
    assert world.there == []
    assert os.listdir(world.base / "discarded") == []


async def test_folders_of_a_name_that_is_not_ours_are_never_touched(world: World) -> None:
    (world.base / "containers" / "lost+found").mkdir(parents=True)
    (world.base / "containers" / "uid-7_link").symlink_to("/")
    await world.pass_time(3 * GRACE_S)
    assert world.there == ["lost+found", "uid-7_link"]


async def test_a_folder_of_ids_stays_while_its_init_container_counts_in_it(world: World) -> None:
    path = await world.give(ids_dir_name(["a-0"]))
    (path / "uid-1_init.cache").touch()
    alive = claim(uid="uid-1", container="init")
    await world.pass_time(3 * GRACE_S, live=[alive])
    assert world.there == [path.name]
    await world.pass_time(2 * GRACE_S, live=[claim(uid="uid-2")])
    assert world.there == []


async def test_a_folder_that_is_given_again_is_a_new_one(world: World) -> None:
    old = await world.give("uid-1_main")
    (old / "x.cache").touch()
    assert os.listdir(await world.give("uid-1_main")) == []
    await world.folders.remove_unused([])
    assert os.listdir(world.base / "discarded") == []


async def test_a_folder_given_while_the_old_one_is_let_go_survives(world: World) -> None:
    await world.give("uid-1_main")
    await world.pass_time(GRACE_S)
    world.time += LOOK_EVERY_S
    (path, _), _ = await asyncio.gather(
        world.folders.give("uid-1_main", ["a-0"], after=lambda: None), world.folders.remove_unused([])
    )
    assert path.is_dir()
    await world.give("uid-2_main", "b-0")
    await world.pass_time(GRACE_S)
    world.time += LOOK_EVERY_S
    _, path = await asyncio.gather(world.folders.remove_unused([]), world.give("uid-2_main", "b-0"))
    assert path.is_dir()


async def test_what_has_to_succeed_first_decides_whether_there_is_a_folder(world: World) -> None:
    def fail() -> None:
        raise AllocationRefused("not now")

    with pytest.raises(AllocationRefused, match="not now"):
        await world.folders.give("uid-1_main", ["a-0"], after=fail)
    assert not (world.base / "containers").exists()
    assert await world.folders.give("uid-1_main", ["a-0"], after=lambda: 7) == (
        world.base / "containers" / "uid-1_main",
        7,
    )


async def test_a_disk_that_cannot_be_written_refuses_the_container(tmp_path: Path) -> None:
    (tmp_path / "vgpu").write_text("a file where the folder should be")
    world = World(tmp_path / "vgpu")
    with pytest.raises(AllocationRefused, match="cannot be made"):
        await world.give("uid-1_main")
    with structlog.testing.capture_logs() as logs:
        await world.pass_time(5 * LOOK_EVERY_S)
    assert len(logs) == 1, "the same complaint once"
    await world.folders.stop()


async def test_a_link_in_the_place_of_all_folders_is_a_complaint(world: World) -> None:
    world.base.mkdir(parents=True)
    (world.base / "containers").symlink_to("/")
    with structlog.testing.capture_logs() as logs:
        await world.pass_time(5 * LOOK_EVERY_S)
    assert len(logs) == 1
    assert "is a link" in logs[0]["problem"]


async def test_a_disk_that_hangs_refuses_the_container_and_delays_nobody_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hami_core, "DEADLINE_S", 0.01)
    released = threading.Event()

    class Hanging(WritableDirs):
        def recreate(self, name: str) -> Path:
            released.wait()
            return super().recreate(name)

    folders = ContainerDirs(Hanging(tmp_path / "vgpu"))
    try:
        for _ in range(3):
            with pytest.raises(AllocationRefused, match="no answer within"):
                await folders.give("uid-1_main", ["a-0"], after=lambda: None)
    finally:
        released.set()
        await folders.stop()


async def test_without_kubelets_word_folders_stay_while_pods_live(tmp_path: Path) -> None:
    world = World(tmp_path / "vgpu")
    world.folders = ContainerDirs(WritableDirs(world.base), now=lambda: world.time)
    await world.give("uid-1_main")
    await world.pass_time(3 * GRACE_S, live=[claim(uid="uid-2")])
    assert world.there == ["uid-1_main"]
    await world.pass_time(2 * GRACE_S)
    assert world.there == []
    await world.folders.stop()


async def test_looking_is_not_done_more_often_than_needed(world: World) -> None:
    asked = 0

    async def held() -> Collection[Collection[str]]:
        nonlocal asked
        asked += 1
        return ()

    folders = ContainerDirs(WritableDirs(world.base), held=held, now=lambda: world.time)
    for _ in range(100):
        world.time += 1.0
        await folders.remove_unused([])
    assert asked == 2
    await folders.stop()


# -- which folders may go, and which stay because somebody may be using them


def goes(
    keeping: DirRetention, name: str, *, live: Sequence[Assignment] = (), held: Collection[Collection[str]] | None = ()
) -> bool:
    """Whether a folder that is looked at for the whole grace period goes at its end, and not before."""
    assert keeping.take_unused([name], live=live, held=held, now=0.0) == []
    assert keeping.take_unused([name], live=live, held=held, now=GRACE_S - 1) == []
    return keeping.take_unused([name], live=live, held=held, now=GRACE_S) == [name]


def test_a_folder_whose_container_is_gone_goes_after_the_grace_period() -> None:
    keeping = DirRetention()
    keeping.on_handed_over("uid-1_main", ["a-0"])
    assert goes(keeping, "uid-1_main")


@pytest.mark.parametrize(
    ("live", "stays"),
    [([ONE], True), ([TWO], False), ([claim(uid="uid-1", container="other")], False), ([], False)],
)
def test_a_folder_stays_while_its_container_lives(live: list[Assignment], stays: bool) -> None:
    keeping = DirRetention()
    keeping.on_handed_over("uid-1_main", ["a-0"])
    assert goes(keeping, "uid-1_main", live=live) is not stays


def test_a_folder_stays_while_the_container_lives_that_swapped_with_its_own() -> None:
    keeping = DirRetention()
    keeping.on_handed_over("uid-1_main", ["a-0"])
    assert not goes(keeping, "uid-1_main", live=[TWO], held=[("a-0",)])


def test_ids_that_were_given_again_hold_the_new_folder_and_not_the_old_one() -> None:
    keeping = DirRetention()
    keeping.on_handed_over("uid-1_main", ["a-0"])
    keeping.on_handed_over("uid-2_main", ["a-0"])
    assert goes(keeping, "uid-1_main", live=[TWO], held=[("a-0",)])


@pytest.mark.parametrize(("held", "stays"), [([("b-1", "a-0")], True), ([("a-0",)], False), ([], False)])
def test_a_folder_of_ids_stays_while_a_container_holds_exactly_them(held: list[tuple[str, ...]], stays: bool) -> None:
    assert goes(DirRetention(), ids_dir_name(["a-0", "b-1"]), live=[ONE], held=held) is not stays


def test_where_nobody_can_tell_everything_stays_while_any_pod_lives() -> None:
    keeping = DirRetention()
    keeping.on_handed_over("uid-1_main", ["a-0"])
    assert not goes(keeping, "uid-1_main", live=[TWO], held=None)
    assert not goes(keeping, ids_dir_name(["a-0"]), live=[TWO], held=None)
    assert goes(keeping, "uid-1_main", live=[], held=None)


def test_a_folder_of_an_earlier_process_stays_until_the_pods_of_that_time_are_gone() -> None:
    keeping = DirRetention()
    assert not goes(keeping, "uid-1_main", live=[TWO])
    assert goes(keeping, "uid-1_main", live=[claim(uid="uid-3")])


def test_a_reason_that_is_back_starts_the_grace_period_anew() -> None:
    keeping = DirRetention()
    name = ids_dir_name(["a-0"])
    assert keeping.take_unused([name], live=[], held=[], now=0.0) == []
    assert keeping.take_unused([name], live=[], held=[("a-0",)], now=500.0) == []
    assert keeping.take_unused([name], live=[], held=[], now=GRACE_S) == []
    assert keeping.take_unused([name], live=[], held=[], now=2 * GRACE_S) == [name]


def test_a_handover_starts_the_grace_period_anew() -> None:
    keeping = DirRetention()
    assert keeping.take_unused(["uid-1_main"], live=[], held=[], now=0.0) == []
    keeping.on_handed_over("uid-1_main", ["a-0"])
    assert keeping.take_unused(["uid-1_main"], live=[], held=[], now=GRACE_S) == []


def test_not_knowing_for_a_while_starts_the_grace_period_anew() -> None:
    keeping = DirRetention()
    keeping.on_handed_over("uid-1_main", ["a-0"])
    assert keeping.take_unused(["uid-1_main"], live=[TWO], held=[], now=0.0) == []
    assert keeping.take_unused(["uid-1_main"], live=[TWO], held=None, now=500.0) == []
    assert keeping.take_unused(["uid-1_main"], live=[TWO], held=[], now=GRACE_S) == []


def test_a_folder_that_somebody_else_removed_is_forgotten() -> None:
    keeping = DirRetention()
    assert keeping.take_unused(["uid-1_main"], live=[], held=[], now=0.0) == []
    assert keeping.take_unused([], live=[], held=[], now=1.0) == []
    assert keeping.take_unused(["uid-1_main"], live=[], held=[], now=GRACE_S) == []


def test_what_was_made_for_whom_is_forgotten_with_the_folder() -> None:
    keeping = DirRetention()
    keeping.on_handed_over("uid-1_main", ["a-0"])
    for _ in range(2):
        keeping.take_unused([], live=[TWO], held=[], now=0.0)
    # Known to nobody by now, so it may be a folder of an earlier process.
    assert not goes(keeping, "uid-1_main", live=[TWO])
