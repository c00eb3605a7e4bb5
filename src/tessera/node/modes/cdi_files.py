"""The CDI spec files of this agent: written whole or not at all, and again whenever they would be different.

    nothing --refresh--> written --(cards or instances change, or somebody changed the file)--> written anew
                            \\--(nothing left to offer, or `retire`)--> removed, if it is still what we wrote

They stay when the agent ends: a container that restarts meanwhile is looked up in them.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import structlog

from tessera.node.fleet import Fleet
from tessera.node.health.call_thread import CallThread, NoAnswer
from tessera.node.inventory.cards import CardFacts, MigInstance
from tessera.node.modes.cdi import Document, device_names, feature_document, gpu_document
from tessera.node.modes.cdi_record import CdiRecord
from tessera.node.modes.device_lists import CDI_GPU, CDI_VENDOR, enabled_features
from tessera.node.modes.device_specs import DeviceSpecs
from tessera.node.modes.driver_files import find_driver_files
from tessera.node.settings import AgentSettings

log = structlog.get_logger(__name__)

DEADLINE_S = 10.0
"""for one round of looking and writing; a few milliseconds on a working disk"""
FILE_MODE = 0o644

_Seen = tuple[tuple[CardFacts, ...], tuple[MigInstance, ...]]


class CdiFiles:
    """The specs of one agent. Rounds go one after the other in their own thread: the latest state is written last."""

    def __init__(self, settings: AgentSettings, *, specs: DeviceSpecs | None = None) -> None:
        self._settings = settings
        self._specs = specs or DeviceSpecs(settings.paths)
        self._record = CdiRecord(settings.paths.state)
        self._thread = CallThread("cdi")
        self._seen: _Seen | None = None
        self._texts: dict[str, bytes] = {}
        """what should be in the files, by class"""
        self._offered: dict[str, frozenset[str]] = {}
        self._problem = ""

    @property
    def problem(self) -> str:
        return self._problem

    def offers(self, device_class: str, name: str) -> bool:
        """Whether a container runtime finds it now."""
        return name in self._offered.get(device_class, frozenset())

    async def refresh(self, fleet: Fleet, instances: Sequence[MigInstance]) -> None:
        """Make the files true. A fault is logged and kept as `problem`; the next round tries again."""
        problem = ""
        try:
            work = partial(self._write_all, fleet, tuple(instances))
            self._offered = await self._thread.call(work, deadline=DEADLINE_S)
        except (OSError, NoAnswer) as error:
            problem = f"CDI specs cannot be written: {error}"
        if problem:
            self._offered = {}
        if problem and problem != self._problem:
            log.error("cdi specs are not up to date", problem=problem)
        self._problem = problem

    async def stop(self) -> None:
        """The files stay."""
        await self._thread.close(patience=DEADLINE_S)

    async def retire(self) -> None:
        """The node is to offer nothing by CDI any more. Files that somebody else changed stay."""
        self._offered = {}
        try:
            await self._thread.call(self._remove_all, deadline=DEADLINE_S)
        except (OSError, NoAnswer) as error:
            log.error("cdi specs stay", problem=f"{error}")

    def _write_all(self, fleet: Fleet, instances: tuple[MigInstance, ...]) -> dict[str, frozenset[str]]:
        documents = self._documents(fleet, instances)
        for device_class, document in documents.items():
            if document is None:
                self._remove(device_class)
            else:
                self._write(device_class, (json.dumps(document, indent=2) + "\n").encode())
        # Only now: a round that failed half-way is done again in full.
        self._seen = (tuple(card.facts for card in fleet), instances)
        return {each: device_names(document) for each, document in documents.items() if document is not None}

    def _documents(self, fleet: Fleet, instances: tuple[MigInstance, ...]) -> dict[str, Document | None]:
        documents: dict[str, Document | None] = {
            feature: feature_document(feature, specs=self._specs) for feature in enabled_features(self._settings)
        }
        if self._seen == (tuple(card.facts for card in fleet), instances) and CDI_GPU in self._texts:
            # The driver's libraries cannot change while cards are in use: no need to look for them again.
            documents[CDI_GPU] = json.loads(self._texts[CDI_GPU])
        else:
            driver = find_driver_files(self._settings.paths)
            documents[CDI_GPU] = gpu_document(fleet, instances, specs=self._specs, driver=driver)
        return documents

    def _write(self, device_class: str, text: bytes) -> None:
        path = self._path(device_class)
        if _content(path) != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._write_down(path, text)
            _replace(path, text)
        self._texts[device_class] = text

    def _write_down(self, path: Path, text: bytes) -> None:
        try:
            self._record.add(path, text)
        except OSError as error:
            # It only means that nobody takes the file away later.
            log.warning("the record of CDI specs cannot be written", error=str(error))

    def _remove_all(self) -> None:
        for device_class in tuple(self._texts):
            self._remove(device_class)

    def _remove(self, device_class: str) -> None:
        text = self._texts.pop(device_class, None)
        path = self._path(device_class)
        if text is not None and _content(path) == text:
            path.unlink(missing_ok=True)

    def _path(self, device_class: str) -> Path:
        return self._settings.paths.cdi / f"{CDI_VENDOR}-{device_class}.json"


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _replace(path: Path, text: bytes) -> None:
    # Runtimes read files that end in .json or .yaml: the unfinished one must not.
    handle, unfinished = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".new", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(text)
            os.fchmod(file.fileno(), FILE_MODE)
        os.replace(unfinished, path)
    except BaseException:
        Path(unfinished).unlink(missing_ok=True)
        raise
