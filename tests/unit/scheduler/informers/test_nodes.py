from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone, tzinfo

import msgspec
import pytest
from structlog.testing import capture_logs

from tessera.core.ledger.ledger import Ledger
from tessera.scheduler.clock import Clock
from tessera.scheduler.informers.nodes import NodeInformer, Patch
from tessera.wire.objects import Node
from tests.support.builders import GPU, NOW, REGISTER, NodeBuilder, gpu_pod, node, vendors

HANDSHAKE = "hami.io/node-handshake"
DCU_HANDSHAKE = "hami.io/node-handshake-dcu"
DCU_REGISTER = "hami.io/node-dcu-register"
DCU = "DCU-0,4,16384,100,DCU-Z100,0,true:"


def stamp(seconds: float, *, zone: tzinfo = UTC) -> str:
    moment = datetime.fromtimestamp(NOW + seconds, UTC).astimezone(zone)
    return moment.strftime("%Y-%m-%d %H:%M:%S")


def asked(seconds: float) -> str:
    return f"Requesting_{stamp(seconds)}"


@dataclass
class World:
    selector: Mapping[str, str] = field(default_factory=dict)
    zone: tzinfo = UTC

    def __post_init__(self) -> None:
        self.at = self.skew = 0.0
        self.ledger = Ledger(vendors())
        self.patches: list[tuple[str, Patch]] = []
        self.room = 0
        self.synced = 0
        self.seen: list[str] = []
        self.gone: list[str] = []
        self.shown: dict[str, list[str]] = {}
        """the cards of every node when it was told of them last"""
        self.informer = NodeInformer(
            self.ledger,
            vendors(),
            joins=(),
            selector=self.selector,
            clock=Clock(lambda: NOW + self.at + self.skew, lambda: self.at, self.zone),
            listener=self,
        )

    def on_node(self, node: Node) -> None:
        self.seen.append(node.name)

    def on_node_gone(self, name: str) -> None:
        self.gone.append(name)

    def on_cards(self, name: str) -> None:
        self.shown[name] = self.cards(name)

    def on_handshake(self, node: Node, annotations: Patch) -> None:
        self.patches.append((node.name, annotations))

    def on_room(self) -> None:
        self.room += 1

    def on_synced(self) -> None:
        self.synced += 1

    def put(self, built: NodeBuilder, **labels: str) -> World:
        found: Node = built.api()
        found = msgspec.structs.replace(found, metadata=msgspec.structs.replace(found.metadata, labels=labels))
        self.informer.put(found.name, found)
        return self

    def cards(self, name: str = "n1") -> list[str]:
        view = self.ledger.node(name)
        return [device.uuid for device in view.facts.devices] if view is not None else []

    def tick(self, at: float) -> None:
        self.at = at
        self.informer.tick()


def gpus(handshake: str | None = None, *, allocatable: int | str | None = 10) -> NodeBuilder:
    built = node("n1").gpus(2)
    if handshake is not None:
        built = built.annotate((HANDSHAKE, handshake))
    return built if allocatable is None else built.capacity(**{GPU: allocatable})


# -- the table of handshakes


@pytest.mark.parametrize(
    ("handshake", "allocatable", "stays", "stamped"),
    [
        # no handshake: a plugin that does not speak it says through kubelet whether it is there
        (None, 10, True, False),
        (None, None, True, False),
        (None, 0, False, False),
        (None, "0", False, False),
        (None, "some", True, False),
        (None, "500m", True, False),
        # a plugin reported: its registration is read and it is told so
        (f"Reported {stamp(-5)}", 10, True, True),
        (f"Reported {stamp(-5)}", 0, True, True),
        ("Reported", None, True, True),
        ("anything else", 10, True, True),
        (f"Deleted_{stamp(-5)}", 10, True, True),
        # asked, and no answer so far
        (asked(-59), 0, True, False),
        (asked(-59), None, True, False),
        (asked(-60), 0, False, False),
        (asked(-60), None, False, False),
        (asked(-60), 10, True, False),
        (asked(-86400), 1, True, False),
        (asked(-86400), 0, False, False),
        # times that cannot be read never take a node away
        ("Requesting", 0, True, False),
        ("Requesting_soon", 0, True, False),
        ("Requesting_2026.13.45 99:99:99", 0, True, False),
        (f"Requesting_{stamp(-3600).replace('-', '.')}", 0, False, False),
    ],
)
def test_a_node_stays_or_leaves_by_its_handshake_and_what_kubelet_offers(
    handshake: str | None, allocatable: int | str | None, stays: bool, stamped: bool
) -> None:
    world = World().put(gpus(handshake, allocatable=allocatable))
    assert world.cards() == (["n1-0", "n1-1"] if stays else [])
    assert world.patches == ([("n1", {HANDSHAKE: asked(0)})] if stamped else [])


def test_a_plugin_that_vanishes_takes_its_cards_and_brings_them_back() -> None:
    world = World().put(gpus(None, allocatable=10))
    world.put(gpus(None, allocatable=0))
    assert world.cards() == []
    world.put(gpus(None, allocatable=10))
    assert world.cards() == ["n1-0", "n1-1"]


def test_times_are_read_and_written_in_the_zone_of_the_cluster() -> None:
    zone = timezone(timedelta(hours=8))
    world = World(zone=zone).put(gpus(f"Requesting_{stamp(-30, zone=zone)}", allocatable=0))
    assert world.cards() == ["n1-0", "n1-1"], "30 s ago there, 8 h ahead here"
    world.put(gpus("Reported"))
    assert world.patches == [("n1", {HANDSHAKE: f"Requesting_{stamp(0, zone=zone)}"})]


def test_each_vendor_has_its_own_handshake() -> None:
    built = gpus(asked(-100), allocatable=0).annotate((DCU_REGISTER, DCU), (DCU_HANDSHAKE, "Reported"))
    world = World().put(built)
    assert world.cards() == ["DCU-0"]
    assert world.patches == [("n1", {DCU_HANDSHAKE: asked(0)})]


# -- no needless calls


@pytest.mark.parametrize(
    "built",
    [
        node("n1"),
        node("n1").annotate((HANDSHAKE, "Reported")),
        node("n1").annotate((HANDSHAKE, "Reported"), (DCU_HANDSHAKE, asked(-100))),
        gpus(asked(-100), allocatable=0).annotate((DCU_HANDSHAKE, "Reported")),
        gpus(asked(-1)),
        gpus(None),
    ],
)
def test_nodes_without_cards_and_nodes_that_wait_for_nothing_are_not_patched(built: NodeBuilder) -> None:
    world = World()
    for _ in range(3):
        world.put(built)
        world.tick(15.0)
    assert world.patches == []


@pytest.mark.no_cover
def test_five_thousand_plain_nodes_cost_nothing_and_are_not_kept() -> None:
    world = World()
    for i in range(5000):
        world.put(node(f"plain-{i}"))
    assert (world.patches, world.ledger.node_names(), world.room) == ([], (), 0)


# -- the tick


@pytest.mark.parametrize("skew", [0.0, -7200.0, 7200.0], ids=["right", "set back", "set ahead"])
def test_a_plugin_that_does_not_answer_within_a_minute_loses_its_cards_with_the_next_tick(skew: float) -> None:
    """However the wall clock is set meanwhile."""
    world = World().put(gpus(asked(0), allocatable=0))
    world.skew = skew
    world.tick(45.0)
    assert world.cards() == ["n1-0", "n1-1"]
    world.tick(60.0)
    assert world.cards() == []
    world.tick(75.0)
    assert (world.cards(), world.patches) == ([], [])


def test_a_plugin_that_answers_in_time_keeps_its_cards() -> None:
    world = World().put(gpus(asked(0), allocatable=0))
    world.at = 30.0
    world.put(gpus(f"Reported {stamp(30)}", allocatable=0))
    assert world.patches == [("n1", {HANDSHAKE: asked(30)})]
    world.put(gpus(asked(30), allocatable=0))
    world.tick(75.0)
    assert world.cards() == ["n1-0", "n1-1"]
    assert world.patches == [("n1", {HANDSHAKE: asked(30)})]


def test_a_plugin_is_answered_again_until_the_answer_is_shown() -> None:
    """The first one may have come before this replica decided, or was lost."""
    world = World().put(gpus(f"Reported {stamp(0)}"))
    world.tick(15.0)
    assert world.patches == [("n1", {HANDSHAKE: asked(0)}), ("n1", {HANDSHAKE: asked(15)})]
    world.put(gpus(asked(15)))
    world.tick(30.0)
    assert len(world.patches) == 2


def test_a_tick_never_brings_back_what_a_later_update_took_away() -> None:
    world = World().put(gpus(asked(0)))
    world.put(node("n1"))
    world.tick(15.0)
    assert world.cards() == []


def test_a_tick_after_a_node_was_deleted_does_not_bring_it_back() -> None:
    world = World().put(gpus(asked(0)))
    world.informer.drop("n1")
    world.tick(15.0)
    assert world.cards() == []


# -- coming and going


def test_a_deleted_node_leaves_and_its_pods_count_again_when_it_returns() -> None:
    world = World().put(gpus())
    world.ledger.observe_pod(gpu_pod("p").on("n1", "n1-0,NVIDIA,700,5:;").facts())
    world.informer.drop("n1")
    assert world.ledger.node("n1") is None
    world.put(gpus())
    view = world.ledger.node("n1")
    assert view is not None
    assert view.cards[0].used_memory == 700


def test_a_node_counts_only_while_its_labels_are_those_of_the_selector() -> None:
    world = World(selector={"gpu": "on", "zone": "a"})
    world.put(gpus())
    assert (world.cards(), world.seen) == ([], [])
    world.put(gpus(), gpu="on", zone="a")
    assert world.cards() == ["n1-0", "n1-1"]
    world.put(gpus(asked(0)), gpu="on", zone="a")
    world.put(gpus(asked(0)), gpu="on", zone="b")
    assert world.cards() == []
    world.tick(15.0)
    assert (world.cards(), world.seen, world.patches) == ([], ["n1", "n1"], [])
    assert world.gone == ["n1", "n1"]


def test_cards_that_shrink_away_while_granted_leave_the_pods_in_the_ledger() -> None:
    world = World().put(gpus())
    world.ledger.observe_pod(gpu_pod("p").on("n1", "n1-0,NVIDIA,700,5:n1-1,NVIDIA,300,5:;").facts())
    world.put(node("n1").gpu("n1-1", memory=200))
    view = world.ledger.node("n1")
    assert view is not None
    assert [(card.device.uuid, card.used_memory, card.device.memory) for card in view.cards] == [("n1-1", 300, 200)]
    world.put(node("n1"))
    world.put(gpus())
    view = world.ledger.node("n1")
    assert view is not None
    assert [card.used_memory for card in view.cards] == [700, 300], "everything counts again"


# -- what cannot be read


def test_a_registration_that_cannot_be_read_holds_its_node_and_no_other() -> None:
    fine = node("n2").gpus(1)
    with capture_logs() as logs:
        world = World().put(fine)
        for _ in range(3):
            world.put(node("n1").annotate((REGISTER, "[{")))
    view = world.ledger.node("n1")
    assert view is not None
    assert view.facts.problem.startswith("NVIDIA: ")
    assert world.cards("n2") == ["n2-0"]
    assert [(entry["event"], entry["node"]) for entry in logs] == [("registration cannot be read", "n1")]


def test_a_registration_that_breaks_takes_nothing_new_but_keeps_its_pods() -> None:
    world = World().put(gpus())
    world.ledger.observe_pod(gpu_pod("p").on("n1", "n1-0,NVIDIA,700,5:;").facts())
    with capture_logs() as logs:
        world.put(node("n1").annotate((REGISTER, "[{")))
    assert [entry["event"] for entry in logs] == ["node lost its cards", "registration cannot be read"]
    assert world.ledger.pod("uid-p") is not None
    world.put(gpus())
    view = world.ledger.node("n1")
    assert view is not None
    assert (view.facts.problem, view.cards[0].used_memory) == ("", 700)


def test_a_broken_registration_of_a_plugin_that_is_gone_holds_nothing() -> None:
    world = World().put(node("n1").annotate((REGISTER, "[{"), (HANDSHAKE, asked(-100))))
    assert world.ledger.node("n1") is None


# -- telling about room


def test_room_is_told_only_when_a_registration_changes() -> None:
    world = World()
    for _ in range(3):
        world.put(gpus())
    assert world.room == 1
    world.put(gpus().cordon("n1-0"))
    assert world.room == 2
    world.informer.drop("n1")
    assert world.room == 2
    world.put(gpus())
    assert world.room == 3


def test_a_heartbeat_of_a_node_that_a_pod_holds_is_no_news() -> None:
    world = World().put(gpus())
    world.ledger.observe_pod(gpu_pod("p").on("n1", "n1-0,NVIDIA,much,5:;").facts())
    for _ in range(3):
        world.put(gpus())
    assert world.room == 1


def test_an_informer_is_synced_when_told() -> None:
    world = World()
    assert not world.informer.has_synced
    world.informer.synced()
    world.informer.synced()
    assert (world.informer.has_synced, world.synced) == (True, 1), "a later list is no first list"


def test_the_listener_hears_of_cards_when_the_ledger_has_them() -> None:
    world = World().put(gpus())
    assert world.shown == {"n1": ["n1-0", "n1-1"]}
    world.informer.drop("n1")
    assert world.shown == {"n1": []}
