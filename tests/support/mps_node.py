"""A node whose agent shares its cards by MPS, with real processes behind it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tessera.host.cards import ComputeMode, MigInstance
from tessera.node.fleet import CardState, Fleet
from tessera.node.handover.assignments import Assignment, ObjectKey
from tessera.node.modes.base import ContainerResponse, SharingMode
from tessera.node.modes.device_lists import DeviceLists
from tessera.node.modes.mps.control import MpsProgram
from tessera.node.modes.mps.mode import Mps
from tessera.node.settings import AgentSettings, Paths
from tessera.wire.node_config import NodeSettings
from tessera.wire.pod_devices import DeviceEntry
from tests.support.fake_mps import PATIENT_S, A, B, FakeModes, FakeMps, card

DEFAULT, PROHIBITED, EXCLUSIVE = ComputeMode.DEFAULT, ComputeMode.PROHIBITED, ComputeMode.EXCLUSIVE_PROCESS
CARD_A, CARD_B = CardState(card(A)), CardState(card(B, index=1))
BOTH = Fleet((CARD_A, CARD_B))
ONLY_A = Fleet((CARD_A,))


class Visible(DeviceLists):
    """Lists of cards as plain as they can be."""

    def __init__(self) -> None: ...

    def response(self, ids: Sequence[str], fleet: Fleet, instances: Sequence[MigInstance] = ()) -> ContainerResponse:
        return ContainerResponse(env={"NVIDIA_VISIBLE_DEVICES": ",".join(ids)})


class MpsNode:
    def __init__(self, folder: Path) -> None:
        self.fake = FakeMps(folder, folder / "mps")
        self.hardware = FakeModes(A, B)
        self.settings = AgentSettings(
            node_name="node", node=NodeSettings(mode="mps"), paths=Paths(mps=self.fake.root), environ={"PATH": "/bin"}
        )
        self._agents: list[Mps] = []

    def agent(self, *, program: MpsProgram | None = None, settings: AgentSettings | None = None) -> Mps:
        made = Mps(
            settings or self.settings,
            device_lists=Visible(),
            modes=self.hardware,
            program=program or self.fake.program,
            hand_over_s=PATIENT_S,
        )
        self._agents.append(made)
        return made

    async def close(self) -> None:
        for agent in self._agents:
            await agent.stop()
        self.fake.close()


def claim(*slices: tuple[str, int, int], pod: str = "pod", uncontrolled: bool = False) -> Assignment:
    entries = tuple(DeviceEntry(uuid, "NVIDIA", memory, cores) for uuid, memory, cores in slices)
    return Assignment(ObjectKey("ns", pod, f"uid-{pod}"), 0, "main", entries, uncontrolled=uncontrolled)


async def given(agent: SharingMode, wanted: Assignment) -> ContainerResponse:
    return await agent.hand_over(wanted, [f"{each.uuid}-0" for each in wanted.slices])
