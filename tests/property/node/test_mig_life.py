"""Any life of a node with MIG: pods come and go, people make instances by hand, cards fail and the agent dies.

What is not the agent's is never destroyed, a live pod has its instance at its place, and nothing is left in the end.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tessera.core.model.devices import MigPlacement
from tessera.host.cards import MigInstance
from tessera.node.handover.assignments import Assignment
from tessera.node.modes.base import AllocationRefused
from tessera.node.modes.mig.mode import Mig, NotWritten
from tessera.wire.pod_devices import MigAllocation
from tests.support.cards import BOTH, H200, A, B, Crash, Node, claim, ids, reserve, serial
from tests.support.event_loops import FakeTimeLoop

T = TypeVar("T")
Place = tuple[str, int, int]

PLACES = [("1g.18gb", 0, 1), ("1g.18gb", 1, 1), ("1g.18gb+me", 0, 1), ("2g.35gb", 0, 2), ("3g.71gb", 0, 4)]
"""profile, start and size; all of them in one half of a card, so that they meet"""
CARDS = st.sampled_from((A, A, B))
METHODS = ("instances", "create", "destroy", "half", "mig_enabled", "is_busy")
TROUBLE = st.one_of(
    st.just(""), st.just(""), st.sampled_from((*METHODS, "write", "full disk", "die at create", "die at destroy"))
)


class MigLife(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner(loop_factory=FakeTimeLoop)
        self.folder = Path(tempfile.mkdtemp())
        self.node = Node(self.folder)
        self.foreign: set[int] = set()
        self.waiting: dict[str, Assignment] = {}
        self.running: dict[str, Assignment] = {}
        self.born = 0
        self.mig: Mig

    @initialize()
    def begin(self) -> None:
        self.restart()

    @rule()
    def restart(self) -> None:
        self.do(self._start())

    @rule(card=CARDS, place=st.sampled_from(PLACES), beside=st.none() | CARDS, trouble=TROUBLE)
    def arrive(self, card: str, place: Place, beside: str | None, trouble: str) -> None:
        """The scheduler knows the reservations of live pods, and nothing else."""
        wanted = [reserve(*place, uuid=card)]
        if beside is not None:
            wanted.append(reserve("3g.71gb", 4, 4, uuid=beside, device=1))
        held = [each for of in self.live() for each in of.mig]
        if not any(_meet(one, other) for one in wanted for other in held):
            self.born += 1
            of = claim(*wanted, pod=f"p{self.born}")
            self.waiting[of.pod.name] = of
            self.hand_over(of.pod.name, trouble)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data(), trouble=TROUBLE)
    def ask_again(self, data: st.DataObject, trouble: str) -> None:
        """kubelet may ask the next agent for what the last one did not answer."""
        self.hand_over(data.draw(st.sampled_from(sorted(self.waiting))), trouble)

    def hand_over(self, name: str, trouble: str) -> None:
        of = self.waiting[name]
        try:
            answer = self.do(self.mig.hand_over(of, ids(of)), trouble)
        except AllocationRefused:
            del self.waiting[name]
        except Crash:
            self.restart()
        else:
            self.running[name] = self.node.completed(self.waiting.pop(name))
            uuids = [each.mig_uuid for each in self.running[name].mig]
            assert set(answer.env["NVIDIA_VISIBLE_DEVICES"].split(",")) == set(uuids)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        del self.waiting[data.draw(st.sampled_from(sorted(self.waiting)))]

    @precondition(lambda self: self.running)
    @rule(data=st.data(), lingers=st.booleans())
    def end(self, data: st.DataObject, lingers: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.running)))
        uuids = [each.mig_uuid or "" for each in self.running.pop(name).mig]
        if lingers:
            self.node.hardware.used.add(int(uuids[0].removeprefix("MIG-")))

    @rule(seconds=st.sampled_from((0, 1, 100)), lingering=st.booleans(), trouble=TROUBLE)
    def reconcile(self, seconds: int, lingering: bool, trouble: str) -> None:
        self.node.now += seconds
        if not lingering:
            self.node.hardware.used.clear()
        try:
            self.do(self.mig.reconcile(self.live(), BOTH), trouble)
        except Crash:
            self.restart()

    @precondition(lambda self: not self.foreign)
    @rule(card=CARDS, place=st.sampled_from(PLACES))
    def somebody_makes(self, card: str, place: Place) -> None:
        self.make_by_hand(card, place)

    def make_by_hand(self, card: str, place: Place) -> None:
        """Anywhere that is free, except where an instance that the agent was making when it died may still come up."""
        profile, start, size = place
        at = MigPlacement(start, size)
        if not any(at.overlaps(each) for each in (*self._places(card), *self._intended(card))):
            self.foreign.add(serial(self.node.hardware.foreign(card, profile, start)))

    @precondition(lambda self: any(self.unneeded(card) for card in (A, B)))
    @rule(instead=st.booleans())
    def remove_by_hand(self, instead: bool) -> None:
        """Everything that no pod needs, the agent's leftovers included, perhaps to put the same there anew."""
        for card in (A, B):
            unneeded = self.unneeded(card)
            for old in unneeded:
                self.node.hardware.cards[card].instances.remove(old)
                self.foreign.discard(serial(old))
            for old in unneeded if instead else ():
                profile = next(offer.name for offer in H200 if offer.profile_id == old.profile_id)
                self.make_by_hand(card, (profile, old.placement.start, old.placement.size))

    def unneeded(self, card: str) -> list[MigInstance]:
        needed = {each.mig_uuid for of in self.running.values() for each in of.mig}
        return [each for each in self.node.hardware.cards[card].instances if each.mig_uuid not in needed]

    @invariant()
    def nothing_foreign_was_destroyed(self) -> None:
        assert self.foreign.isdisjoint(self.node.hardware.gone)

    @invariant()
    def live_pods_have_their_instances_where_they_were_reserved(self) -> None:
        for of in self.running.values():
            for mine in of.mig:
                there = self.node.hardware.cards[mine.uuid].instances
                found = [(each.placement, each.profile_id) for each in there if each.mig_uuid == mine.mig_uuid]
                profile = next(offer.profile_id for offer in H200 if offer.name == mine.slot.profile)
                assert found == [(mine.slot.placement, profile)]

    def teardown(self) -> None:
        if hasattr(self, "mig"):
            self.node.hardware.used.clear()
            self.node.now += 1000
            self.do(self.mig.reconcile([], BOTH))
            left = {serial(each) for card in self.node.hardware.cards.values() for each in card.instances}
            assert left == self.foreign
            assert self.foreign.isdisjoint(self.node.hardware.gone)
        self.runner.close()
        shutil.rmtree(self.folder)

    def live(self) -> list[Assignment]:
        return [self.node.completed(each) for each in (*self.waiting.values(), *self.running.values())]

    def do(self, work: Coroutine[Any, Any, T], trouble: str = "") -> T:
        """With something going wrong once meanwhile, if it comes to that."""
        hardware, draft = self.node.hardware, self.folder / "mig.draft"
        if trouble == "write":
            self.node.refusals.append(NotWritten("the pod is gone"))
        elif trouble == "full disk":
            draft.mkdir()
        elif trouble.startswith("die at "):
            hardware.crash = trouble.removeprefix("die at ")
        elif trouble:
            hardware.faults[trouble] = 1
        try:
            return self.runner.run(work)
        finally:
            self.node.refusals.clear()
            hardware.faults.clear()
            hardware.crash = ""
            if draft.is_dir():
                draft.rmdir()

    async def _start(self) -> None:
        self.mig = await self.node.started()

    def _places(self, card: str) -> list[MigPlacement]:
        return [each.placement for each in self.node.hardware.cards[card].instances]

    def _intended(self, card: str) -> list[MigPlacement]:
        file = self.folder / "mig.json"
        records = json.loads(file.read_text())["instances"] if file.exists() else []
        return [
            MigPlacement(**each["slot"]["placement"])
            for each in (record["allocation"] for record in records)
            if each["uuid"] == card and each["mig_uuid"] is None
        ]


def _meet(one: MigAllocation, other: MigAllocation) -> bool:
    return one.uuid == other.uuid and one.slot.placement.overlaps(other.slot.placement)


MigLife.TestCase.settings = settings(stateful_step_count=25)
TestMigLife = MigLife.TestCase
