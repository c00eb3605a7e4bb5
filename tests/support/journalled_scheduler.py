"""The stepwise scheduler with a journal."""

from __future__ import annotations

from dataclasses import replace

from tessera.scheduler.journal import Journal
from tessera.scheduler.observer import ObserverGroup, SchedulerObserver
from tessera.scheduler.settings import JournalSettings, Settings
from tessera.vendors.registry import build_vendors
from tests.support.builders import NodeBuilder
from tests.support.stepwise_scheduler import World

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
        for name, node in self.api.nodes.items():
            self.nodes.put(name, node)
        for key, pod in self.api.pods.items():
            self.pods.put(key, pod)
