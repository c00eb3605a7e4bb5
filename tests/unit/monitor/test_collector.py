"""One round on a real folder: containers that do anything to their files, folders that go, and who waits for whom."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tessera.host.writable_dirs import opened_dir
from tessera.monitor import collector
from tessera.monitor.collector import Orders, RegionCollector, Snapshot, steer
from tessera.monitor.container_dirs import Owner
from tessera.monitor.regions import V1, Region, open_region
from tests.unit.monitor.builders import GPU_A, GPU_B, good, region

NOW = 1_700_000_000
INTERVAL = 300.0
A, B = Owner("uid-a", "main"), Owner("uid-b", "main")


class Node:
    """The folders of a node, and rounds over them."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.containers = base / "containers"
        self.containers.mkdir()
        self.rounds = RegionCollector(base, interval=INTERVAL)

    def folder(self, name: str, *, age: float = 0) -> Path:
        path = self.containers / name
        path.mkdir()
        os.utime(path, (NOW - age, NOW - age))
        return path

    def put(self, owner: Owner, data: bytes, *, age: float = 0) -> Path:
        path = self.folder(f"{owner.uid}_{owner.container}") / "x.cache"
        path.write_bytes(data)
        os.utime(path.parent, (NOW - age, NOW - age))
        return path

    def round(self, *owners: Owner) -> Snapshot:
        return self.rounds.run(dict.fromkeys(owners), [owner.uid for owner in owners], now=NOW)

    def names(self) -> list[str]:
        return sorted(os.listdir(self.containers))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def holds(path: Path, data: bytes) -> bool:
    """A function, so that a failure does not show two million bytes."""
    return path.read_bytes() == data


def orders(path: Path) -> tuple[int, int]:
    found = good(path.read_bytes())
    return found.recent_kernel, found.utilization_switch


def test_regions_are_read_and_what_steers_them_is_written(node: Node) -> None:
    high = node.put(A, region(priority=0, last_kernel_time=NOW))
    low = node.put(B, region(priority=1, last_kernel_time=NOW))
    before = low.read_bytes()
    found = node.round(A, B)
    assert set(found.regions) == {A, B}
    assert found.problems == ()
    assert (orders(high), orders(low)) == ((1, 0), (-1, 1))
    after = low.read_bytes()
    assert [at for at in range(len(before)) if before[at] != after[at]] == list(range(2008904, 2008908))


def test_bug_24_a_container_that_names_a_card_it_was_not_given_makes_nobody_wait(node: Node) -> None:
    node.put(A, region(priority=0, last_kernel_time=NOW))
    low = node.put(B, region(priority=1, last_kernel_time=NOW))
    node.rounds.run({A: frozenset({GPU_B}), B: frozenset({GPU_A})}, ["uid-a", "uid-b"], now=NOW)
    assert orders(low) == (1, 0)


def test_a_region_that_says_what_it_should_is_not_written(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: object) -> int:
        raise OSError(1, "nobody should write")

    monkeypatch.setattr(os, "pwrite", refuse)
    node.put(A, region(recent_kernel=0, utilization_switch=0))
    assert node.round(A).problems == ()


def test_there_is_nothing_yet(tmp_path: Path) -> None:
    assert RegionCollector(tmp_path, interval=INTERVAL).run({A: None}, ["uid-a"], now=NOW) == Snapshot()


def test_without_its_base_a_round_is_a_fault(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        RegionCollector(tmp_path / "missing", interval=INTERVAL).run({}, [], now=NOW)


@pytest.mark.parametrize(
    "data",
    [b"", b"x" * 11, region(magic=1), region()[:5000], region(major=2)],
    ids=["empty", "short", "magic", "cut off", "version"],
)
def test_a_file_that_is_no_region_is_a_problem_and_touches_no_other(node: Node, data: bytes) -> None:
    bad = node.put(A, data)
    node.put(B, region())
    found = node.round(A, B)
    assert set(found.regions) == {B}
    assert len(found.problems) == 1
    assert "uid-a_main" in found.problems[0]
    assert holds(bad, data)


def test_bug_24_a_link_is_never_followed(node: Node, tmp_path: Path) -> None:
    outside = tmp_path / "precious"
    outside.write_bytes(region(priority=0))
    (node.folder("uid-a_main") / "x.cache").symlink_to(outside)
    assert node.round(A) == Snapshot()
    assert holds(outside, region(priority=0))


def test_bug_24_a_file_of_two_names_is_not_touched(node: Node, tmp_path: Path) -> None:
    outside = tmp_path / "precious"
    outside.write_bytes(region())
    os.link(outside, node.folder("uid-a_main") / "x.cache")
    found = node.round(A)
    assert not found.regions
    assert "not a regular file" in found.problems[0]
    assert holds(outside, region())


def test_bug_24_a_file_that_is_cut_off_between_reading_and_writing_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "x.cache"
    path.write_bytes(region())
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        with open_region(descriptor, "x.cache") as file:
            found = file.read()
            assert isinstance(found, Region)
            os.truncate(path, V1.end - 1)
            assert not file.write(found, utilization_switch=0, recent_kernel=-1)
    finally:
        os.close(descriptor)
    assert path.stat().st_size == V1.end - 1
    assert holds(path, region()[:-2])


@pytest.mark.parametrize("gone", [FileNotFoundError(2, "gone"), PermissionError(13, "not allowed")])
def test_a_file_that_cannot_be_opened_any_more_touches_no_other(
    node: Node, monkeypatch: pytest.MonkeyPatch, gone: OSError
) -> None:
    node.put(A, region())
    node.put(B, region())
    usual = opened_dir

    def opened(name: str, tree: int) -> object:
        # The scan has been; the file is opened afterwards.
        if name.startswith("uid-a"):
            raise gone
        return usual(name, tree)

    monkeypatch.setattr(collector, "opened_dir", opened)
    found = node.round(A, B)
    assert set(found.regions) == {B}
    assert found.problems == (() if isinstance(gone, FileNotFoundError) else ("'uid-a_main': not allowed",))


def test_a_region_that_cannot_be_written_is_a_problem(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_args: object) -> int:
        raise OSError(28, "no space")

    node.put(A, region())
    monkeypatch.setattr(os, "pwrite", full)
    found = node.round(A)
    assert set(found.regions) == {A}
    assert found.problems == ("'uid-a_main': no space",)


@pytest.mark.parametrize(("age", "stays"), [(60, True), (600, False)])
def test_case_32_the_folder_of_an_unknown_pod_stays_a_while(node: Node, age: float, stays: bool) -> None:
    node.put(A, region(last_kernel_time=NOW - 3600), age=age)
    node.put(B, region(), age=age)
    node.folder("ids-0123456789abcdef", age=age)
    node.round(B)
    assert ("uid-a_main" in node.names()) is stays
    assert {"uid-b_main", "ids-0123456789abcdef"} <= set(node.names())
    assert not stays or not (node.base / "discarded").exists()
    assert stays or os.listdir(node.base / "discarded") == []


def test_a_folder_in_which_kernels_are_counted_stays_though_its_pod_is_gone(node: Node) -> None:
    node.put(A, region(last_kernel_time=NOW - 20), age=600)
    node.round(B)
    assert node.names() == ["uid-a_main"]


def test_a_folder_whose_files_cannot_be_read_goes_all_the_same(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: object) -> object:
        raise PermissionError(13, "not allowed")

    node.put(A, region(last_kernel_time=NOW), age=600)
    monkeypatch.setattr(collector, "open_region", refuse)
    node.round()
    assert node.names() == []


def test_what_cannot_be_removed_is_a_problem_and_what_takes_long_goes_on_later(node: Node) -> None:
    folder = node.folder("uid-a_main")
    for number in range(2_100):
        (folder / str(number)).touch()
    os.utime(folder, (0, 0))
    assert node.round().problems == ()
    assert len(os.listdir(node.base / "discarded")) == 1
    node.round()
    assert os.listdir(node.base / "discarded") == []
    node.folder("uid-b_main", age=600)
    (node.base / "discarded").rmdir()
    (node.base / "discarded").symlink_to(node.base)
    assert "a link" in node.round().problems[0]
    assert node.names() == ["uid-b_main"]


FREE, LIMITED, WAITING = Orders(1, 0), Orders(1, 1), Orders(-1, 1)
IDLE = NOW - 60


def container(priority: int, *cards: str, last: int = NOW, recent: int = 2, layout: str = "v1") -> Region:
    more: dict[str, Any] = {} if layout == "v0" else {"last_kernel_time": last}
    return good(region(layout, uuids=cards or (GPU_A,), priority=priority, recent_kernel=recent, **more))


def steered(*regions: Region) -> list[Orders]:
    return list(steer(dict(enumerate(regions)), now=NOW).values())


@pytest.mark.parametrize("layout", ["v0", "v1", "v1 with two locks"])
def test_case_33_a_lower_priority_waits_while_a_higher_one_is_active(layout: str) -> None:
    assert steered(container(0, layout=layout), container(1, layout=layout)) == [FREE, WAITING]


@pytest.mark.parametrize("layout", ["v0", "v1", "v1 with two locks"])
def test_case_34_two_of_equal_priority_are_both_limited(layout: str) -> None:
    assert steered(container(1, layout=layout), container(1, layout=layout)) == [LIMITED, LIMITED]


@pytest.mark.parametrize(
    ("regions", "expected"),
    [
        ([container(1)], [FREE]),
        ([container(0, GPU_A), container(1, GPU_B)], [FREE, FREE]),
        ([container(0, GPU_A), container(1, GPU_B, GPU_A)], [FREE, WAITING]),
        ([container(0, last=IDLE), container(1)], [FREE, FREE]),
        ([container(0, last=IDLE), container(1, recent=-1)], [FREE, Orders(0, 0)]),
        ([container(0), container(1, recent=-1)], [FREE, WAITING]),
        ([container(1, GPU_A, GPU_A)], [FREE]),
        ([container(-3), container(-3)], [FREE, FREE]),
        ([container(2**31 - 1), container(0)], [WAITING, FREE]),
        ([container(0, last=NOW + 86_400), container(1)], [FREE, FREE]),
        ([container(0, ""), container(1, "")], [FREE, FREE]),
        ([container(1, last=IDLE, recent=0), container(1), container(1)], [Orders(0, 1), LIMITED, LIMITED]),
    ],
    ids=[
        "alone",
        "other cards",
        "one card in common",
        "the higher one is idle",
        "the higher one became idle",
        "still waiting",
        "a card named twice counts once",
        "negative priorities count for nobody",
        "huge priority",
        "a kernel in the future is none",
        "no card",
        "an idle one beside two active ones",
    ],
)
def test_orders_follow_from_who_is_active_where(regions: list[Region], expected: list[Orders]) -> None:
    assert steered(*regions) == expected


@pytest.mark.parametrize(
    ("granted", "expected"),
    [
        ({}, WAITING),
        ({0: None, 1: None}, WAITING),
        ({0: {GPU_A}, 1: {GPU_A}}, WAITING),
        ({0: {GPU_B}, 1: {GPU_A}}, FREE),
        ({0: set(), 1: {GPU_A}}, FREE),
    ],
)
def test_a_container_counts_only_on_cards_that_it_was_given(granted: dict[int, Any], expected: Orders) -> None:
    found = steer({0: container(0), 1: container(1)}, now=NOW, granted=granted)
    assert found[1] == expected


@pytest.mark.parametrize(("recent", "expected"), [(2, FREE), (1, Orders(0, 0)), (0, Orders(0, 0)), (-1, Orders(0, 0))])
def test_recent_kernel_counts_down_as_old_cores_expect_it(recent: int, expected: Orders) -> None:
    assert steered(container(1, recent=recent)) == [expected]


@pytest.mark.parametrize("last", [0, None])
def test_without_a_last_kernel_recent_kernel_tells_who_is_active(last: int | None) -> None:
    layout, last = ("v0", 0) if last is None else ("v1", last)
    busy, quiet = (container(0, last=last, recent=recent, layout=layout) for recent in (2, 1))
    low = container(1, last=last, layout=layout)
    assert steered(busy, low)[1] == WAITING
    assert steered(quiet, low)[1] == FREE


class Core:
    """HAMi-core of one busy container: it notes a launch in `recent_kernel` only while its limit counts."""

    def __init__(self, priority: int) -> None:
        self.priority, self.orders, self.last = priority, Orders(2, 1), 0

    def launch(self, now: int) -> None:
        if self.orders.recent_kernel >= 0:
            self.last = now
            if self.orders.utilization_switch:
                self.orders = self.orders._replace(recent_kernel=2)

    def region(self) -> Region:
        return good(
            region(
                priority=self.priority,
                recent_kernel=self.orders.recent_kernel,
                utilization_switch=self.orders.utilization_switch,
                last_kernel_time=self.last,
            )
        )


@pytest.mark.parametrize(("second", "expected"), [(1, [1, 1]), (2, [0, 1])])
def test_bug_10_limits_and_waiting_last_as_long_as_both_are_busy(second: int, expected: list[int]) -> None:
    running = [Core(1)]
    for now in range(NOW, NOW + 120, 5):
        if now == NOW + 30:
            running.append(Core(second))
        for core in running:
            core.launch(now)
        orders = steer({core: core.region() for core in running}, now=now)
        for core in running:
            core.orders = orders[core]
    assert [core.orders.utilization_switch for core in running] == expected
    assert (running[1].orders.recent_kernel == -1) is (second == 2)
