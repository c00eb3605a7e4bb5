"""The CDI spec files of this agent, which its sharing mode keeps up to date.

    nothing --refresh--> written --(cards or instances change, or another program changed the file)--> written again
                            \\--(nothing left to offer)--> removed, if it is still what the agent wrote

Files are replaced as a whole and stay when the agent ends, because restarting containers are looked up in them. Other
plugins use the same file names, so a record of digests says which files are the agent's: one is removed only if its
content matches. A file that another program changed stays.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path

import msgspec
import structlog

from tessera.host.atomic_file import replace_file
from tessera.host.call_thread import CallThread, CallTimeout
from tessera.host.cards import CardFacts, MigInstance
from tessera.node.fleet import Fleet
from tessera.node.modes.cdi_spec import Document, device_names, feature_document, find_driver_files, gpu_document
from tessera.node.modes.device_lists import CDI_GPU, CDI_VENDOR, DeviceSpecs, enabled_features
from tessera.node.settings import AgentSettings

log = structlog.get_logger(__name__)

FILE = "cdi.json"
REMEMBERED = 2
"""digests per file: also the previous one, in case the agent ends between recording and writing"""

DEADLINE_S = 10.0
"""for one refresh; a few milliseconds on a working disk"""
_Seen = tuple[tuple[CardFacts, ...], tuple[MigInstance, ...]]


class CdiRecord:
    """The digests of the spec files that the agent wrote. All methods block; `add` and `retire` raise OSError."""

    def __init__(self, state: Path) -> None:
        self._path = state / FILE

    def add(self, spec: Path, text: bytes) -> None:
        """Records what the agent is about to write."""
        known = self._load()
        digests = known.get(str(spec), [])
        digest = sha256(text).hexdigest()
        if digests[-1:] != [digest]:
            self._save({**known, str(spec): [*digests, digest][-REMEMBERED:]})

    def retire(self) -> None:
        """Removes every file that is still as the agent wrote it, and the record."""
        known = self._load()
        for name, digests in known.items():
            spec = Path(name)
            try:
                text = spec.read_bytes()
            except FileNotFoundError:
                continue
            if sha256(text).hexdigest() in digests:
                spec.unlink(missing_ok=True)
                log.info("an unused CDI spec was removed", file=name)
            else:
                log.warning("a CDI spec stays: another program changed it", file=name)
        self._path.unlink(missing_ok=True)

    def _load(self) -> dict[str, list[str]]:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=dict[str, list[str]])
        except FileNotFoundError:
            return {}
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            log.warning("the record of CDI specs is unreadable", file=str(self._path), error=str(error))
            return {}

    def _save(self, known: dict[str, list[str]]) -> None:
        replace_file(self._path, msgspec.json.encode(known))


class CdiFiles:
    """The specs of one agent. A thread refreshes them one call at a time, so the latest state is written last."""

    def __init__(self, settings: AgentSettings, *, specs: DeviceSpecs | None = None) -> None:
        self._settings = settings
        self._specs = specs or DeviceSpecs(settings.paths)
        self._record = CdiRecord(settings.paths.state)
        self._thread = CallThread("cdi")
        self._seen: _Seen | None = None
        self._texts: dict[str, bytes] = {}
        """what the files should contain, by class"""
        self._offered: dict[str, frozenset[str]] = {}
        self.problem = ""
        """why the specs are not up to date; empty if they are"""

    def offers(self, device_class: str, name: str) -> bool:
        """Whether a container runtime finds this device now."""
        return name in self._offered.get(device_class, frozenset())

    async def refresh(self, fleet: Fleet, instances: Sequence[MigInstance]) -> None:
        """Updates the files. A fault is logged and kept as `problem`; the next refresh tries again."""
        problem = ""
        try:
            work = partial(self._write_all, fleet, tuple(instances))
            self._offered = await self._thread.call(work, deadline=DEADLINE_S)
        except (OSError, CallTimeout) as error:
            problem = f"CDI specs cannot be written: {error}"
        if problem:
            self._offered = {}
        if problem and problem != self.problem:
            log.error("cdi specs are not up to date", problem=problem)
        self.problem = problem

    async def stop(self) -> None:
        """Ends the thread; the files stay."""
        await self._thread.close(patience=DEADLINE_S)

    def _write_all(self, fleet: Fleet, instances: tuple[MigInstance, ...]) -> dict[str, frozenset[str]]:
        documents = self._documents(fleet, instances)
        for device_class, document in documents.items():
            if document is None:
                self._remove(device_class)
            else:
                self._write(device_class, (json.dumps(document, indent=2) + "\n").encode())
        # Only now: after a failure everything is written again.
        self._seen = (tuple(card.facts for card in fleet), instances)
        return {each: device_names(document) for each, document in documents.items() if document is not None}

    def _documents(self, fleet: Fleet, instances: tuple[MigInstance, ...]) -> dict[str, Document | None]:
        documents: dict[str, Document | None] = {
            feature: feature_document(feature, specs=self._specs) for feature in enabled_features(self._settings)
        }
        if self._seen == (tuple(card.facts for card in fleet), instances) and CDI_GPU in self._texts:
            # The driver's libraries cannot change while cards are in use, so they are not searched again.
            documents[CDI_GPU] = json.loads(self._texts[CDI_GPU])
        else:
            driver = find_driver_files(self._settings.paths)
            documents[CDI_GPU] = gpu_document(fleet, instances, specs=self._specs, driver=driver)
        return documents

    def _write(self, device_class: str, text: bytes) -> None:
        path = self._path(device_class)
        if _content(path) != text:
            self._record_digest(path, text)
            # Its draft has a suffix that no runtime reads.
            replace_file(path, text)
        self._texts[device_class] = text

    def _record_digest(self, path: Path, text: bytes) -> None:
        try:
            self._record.add(path, text)
        except OSError as error:
            # Then the file is never removed, which is harmless.
            log.warning("the record of CDI specs cannot be written", error=str(error))

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
