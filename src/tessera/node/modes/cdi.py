"""CDI specs: what a container runtime adds to a container for each card, MIG instance or feature; and their files.

    nothing --refresh--> written --(cards or instances change, or another program changed the file)--> written again
                            \\--(nothing left to offer)--> removed, if it is still what the agent wrote

Devices are named by uuid, as in Allocate's responses. A device without device nodes is left out: a CDI device that
changes nothing would start a container without its card. The driver's libraries and programs are those of exactly the
running version, found below the driver root as the agent sees it. Links are ignored, because a link may lead into the
agent's own image.

Files are replaced as a whole and stay when the agent ends, because restarting containers are looked up in them. Other
plugins use the same file names, so a record of digests says which files are the agent's: one is removed only if its
content matches. A file that another program changed stays.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any

import msgspec
import structlog

from tessera.host.atomic_file import read_json, replace_file
from tessera.host.call_thread import CallThread, CallTimeout
from tessera.host.cards import CardFacts, MigInstance
from tessera.host.nvml.session import LIBRARY_DIRS
from tessera.node.fleet import Fleet
from tessera.node.modes.base import NO_DEVICES, DeviceNode, HostMount
from tessera.node.modes.device_lists import CDI_ALL, CDI_GPU, CDI_VENDOR, DeviceSpecs, enabled_features
from tessera.node.settings import AgentSettings, Paths
from tessera.vendors.nvidia.downward_api import VISIBLE

log = structlog.get_logger(__name__)

PROGRAM_FOLDER = "usr/bin"
PROGRAMS = (
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-smi",
)
_VERSION = r"([0-9]{3,}(?:\.[0-9]+)+)"
"""e.g. 580.65.06; shorter numbers are interface versions, which other libraries have too"""
_CUDA = re.compile(rf"libcuda\.so\.{_VERSION}", re.ASCII)
_MANAGEMENT = re.compile(rf"libnvidia-ml\.so\.{_VERSION}", re.ASCII)

CDI_VERSION = "0.5.0"
"""the lowest version with `hostPath` for device nodes; older runtimes refuse higher versions"""
MOUNT_OPTIONS = ("nosuid", "nodev", "bind")
"""besides `ro` or `rw`"""
FEATURE_NODES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "gdrcopy": ("/dev/gdrdrv",),
        "gds": ("/dev/nvidia-fs*",),
        "mofed": ("/dev/infiniband/uverbs*", "/dev/infiniband/rdma_cm"),
    }
)
"""patterns of device nodes by class"""
FEATURE_MOUNTS: Mapping[str, tuple[str, ...]] = MappingProxyType({"gds": ("/run/udev", "/etc/cufile.json")})
Document = dict[str, Any]

FILE = "cdi.json"
REMEMBERED = 2
"""digests per file: also the previous one, in case the agent ends between recording and writing"""

DEADLINE_S = 10.0
"""for one refresh; a few milliseconds on a working disk"""
_Seen = tuple[tuple[CardFacts, ...], tuple[MigInstance, ...]]


@dataclass(frozen=True, slots=True)
class DriverFiles:
    """Container paths are the paths below the driver root."""

    mounts: tuple[HostMount, ...] = ()
    library_folders: tuple[str, ...] = ()
    """directories that the container's loader must search"""
    hook: str = ""
    """host path of the program that updates the loader's cache; empty if there is none"""


def find_driver_files(paths: Paths) -> DriverFiles:
    """May block."""
    folders = _library_folders(paths.driver_root_here)
    version = _version(folders)
    libraries = [
        f"{folder}/{name}"
        for folder, names in folders.items()
        for name in names
        if version and name.startswith("lib") and name.endswith(f".so.{version}")
    ]
    programs = [f"{PROGRAM_FOLDER}/{name}" for name in PROGRAMS if version and _is_plain(paths, PROGRAM_FOLDER, name)]
    return DriverFiles(
        mounts=tuple(HostMount(f"/{each}", str(paths.driver_root / each)) for each in (*libraries, *programs)),
        library_folders=tuple(dict.fromkeys("/" + os.path.dirname(each) for each in libraries)),
        hook=str(paths.cdi_hook) if _has_hook(paths) else "",
    )


def _library_folders(root: Path) -> dict[str, list[str]]:
    """Returns names of regular files by directory; a directory reached twice by a link is listed once."""
    inside = os.path.realpath(root)
    found: dict[str, list[str]] = {}
    seen: set[str] = set()
    for folder in LIBRARY_DIRS:
        real = os.path.realpath(root / folder)
        if real in seen or os.path.commonpath((real, inside)) != inside:
            continue
        seen.add(real)
        try:
            with os.scandir(real) as entries:
                found[folder] = sorted(each.name for each in entries if each.is_file(follow_symlinks=False))
        except OSError:
            continue
    return found


def _version(folders: dict[str, list[str]]) -> str:
    """Returns the driver version in the library names; empty if there are none or several versions."""
    for pattern in (_CUDA, _MANAGEMENT):
        versions = {m[1] for names in folders.values() for name in names if (m := pattern.fullmatch(name))}
        if len(versions) == 1:
            return versions.pop()
    return ""


def _is_plain(paths: Paths, folder: str, name: str) -> bool:
    path = paths.driver_root_here / folder / name
    return path.is_file() and not path.is_symlink()


def _has_hook(paths: Paths) -> bool:
    """Looks below the driver root, and at the same path as on the host."""
    below = paths.driver_root_here / str(paths.cdi_hook).lstrip("/")
    return below.is_file() or paths.cdi_hook.is_file()


def gpu_document(
    fleet: Fleet, instances: Iterable[MigInstance], *, specs: DeviceSpecs, driver: DriverFiles
) -> Document | None:
    """Describes all cards and instances of a node; None if none has a device node."""
    nodes: dict[str, tuple[DeviceNode, ...]] = {card.facts.uuid: specs.of_card(card.facts) for card in fleet}
    for instance in instances:
        card = fleet.card(instance.uuid)
        if card is not None and instance.mig_uuid is not None:
            nodes[instance.mig_uuid] = specs.of_instance(instance, card.facts)
    nodes = {name: own for name, own in nodes.items() if own}
    if not nodes:
        return None
    everything = {node.container_path: node for own in nodes.values() for node in own}
    nodes[CDI_ALL] = tuple(everything.values())
    common: Document = {
        # VISIBLE, because otherwise NVIDIA's runtime would add cards for the image's variable.
        **edits(specs.control(), driver.mounts, {VISIBLE: NO_DEVICES}),
        **_hooks(driver),
    }
    return _document(CDI_GPU, nodes) | {"containerEdits": common}


def feature_document(feature: str, *, specs: DeviceSpecs) -> Document | None:
    """Describes what a feature besides cards needs; None if the node does not have it."""
    nodes = tuple(node for pattern in FEATURE_NODES[feature] for node in specs.matching(pattern))
    if not nodes:
        return None
    mounts = tuple(HostMount(path, path) for path in FEATURE_MOUNTS.get(feature, ()) if specs.is_here(path))
    document = _document(feature, {CDI_ALL: nodes})
    document["devices"][0]["containerEdits"].update(edits((), mounts))
    return document


def device_names(document: Document) -> frozenset[str]:
    return frozenset(device["name"] for device in document["devices"])


def _document(device_class: str, nodes: Mapping[str, Sequence[DeviceNode]]) -> Document:
    return {
        "cdiVersion": CDI_VERSION,
        "kind": f"{CDI_VENDOR}/{device_class}",
        "devices": [{"name": name, "containerEdits": edits(own, ())} for name, own in nodes.items()],
    }


def edits(nodes: Sequence[DeviceNode], mounts: Sequence[HostMount], env: Mapping[str, str] | None = None) -> Document:
    """What is done to a container."""
    found: Document = {}
    if env:
        found["env"] = [f"{name}={value}" for name, value in env.items()]
    if nodes:
        found["deviceNodes"] = [
            {"path": node.container_path, "hostPath": node.host_path, "permissions": node.permissions} for node in nodes
        ]
    if mounts:
        found["mounts"] = [
            {"hostPath": mount.host_path, "containerPath": mount.container_path, "options": _options(mount)}
            for mount in mounts
        ]
    return found


def _options(mount: HostMount) -> list[str]:
    return ["ro" if mount.read_only else "rw", *MOUNT_OPTIONS]


def _hooks(driver: DriverFiles) -> Document:
    if not driver.hook or not driver.library_folders:
        return {}
    program = PurePosixPath(driver.hook).name
    # The hooks are a program of their own or a subcommand of nvidia-ctk.
    called = [program, "hook"] if program == "nvidia-ctk" else [program]
    folders = [word for folder in driver.library_folders for word in ("--folder", folder)]
    return {
        "hooks": [
            {"hookName": "createContainer", "path": driver.hook, "args": [*called, "update-ldcache", *folders]},
        ]
    }


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
            return read_json(self._path, dict[str, list[str]]) or {}
        except ValueError as error:
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
