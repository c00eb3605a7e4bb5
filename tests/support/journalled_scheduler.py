"""The stepwise scheduler with a journal."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tessera.scheduler.journal import Journal
from tessera.scheduler.observer import ObserverGroup, SchedulerObserver
from tessera.scheduler.settings import JournalSettings, Settings
from tessera.vendors.registry import build_vendors
from tessera.wire.journal import Record, SnapshotEnd
from tests.support.builders import NodeBuilder, node
from tests.support.journals import records_of
from tests.support.stepwise_scheduler import World, serving_downward_api

MEMORY = 1 << 20


class JournalledWorld(World):
    """Every process has a journal of its own, of `memory` bytes. Its settings are the usual ones with `changed`."""

    def __init__(
        self, *nodes: NodeBuilder, memory: int = MEMORY, log: SchedulerObserver | None = None, **changed: object
    ) -> None:
        self._changed = {**changed, "journal": JournalSettings(memory_bytes=memory)}
        self._log = log or SchedulerObserver()
        self._processes = 0
        super().__init__(*nodes)

    def start(self) -> None:
        self._processes += 1
        self.settings = replace(self.settings, **self._changed)  # type: ignore[arg-type]
        self.journal = Journal(self.settings, now=self.now, identity=f"process-{self._processes}")
        super().start()
        self.journal.attach(self.ledger)

    def observer(self) -> SchedulerObserver:
        return ObserverGroup(self.journal, self._log, self.reports)

    def reload(self, settings: Settings) -> None:
        """Another device configuration, as the service takes it; everything is read again."""
        vendors = self.engine.vendors
        vendors.clear()
        vendors.update(build_vendors(settings.device_sections, settings.switches))
        self.journal.restart(settings)
        self.engine.forget_vendors()
        for name, found in self.api.nodes.items():
            self.nodes.put(name, found)
        for key, pod in self.api.pods.items():
            self.pods.put(key, pod)


def machine(name: str, cards: int = 1, **card: Any) -> NodeBuilder:
    return serving_downward_api(node(name).gpus(cards, **card))


def kinds(records: list[Record]) -> list[str]:
    return [type(record).__name__ for record in records]


def happened(world: JournalledWorld) -> list[Record]:
    """What follows the state at the beginning."""
    records = records_of(world.journal)
    end = next(place for place, record in enumerate(records) if isinstance(record, SnapshotEnd))
    return records[end + 1 :]


def only(world: JournalledWorld, kind: type[Any]) -> list[Any]:
    return [record for record in happened(world) if isinstance(record, kind)]
