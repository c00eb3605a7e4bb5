"""Replaces names of nodes, namespaces, pods, quotas and claims, and uids, in a `ClusterState`, consistently everywhere.

New names sort like the old ones, because ties are decided by name: an anonymous snapshot gives the same decisions. They
contain a keyed hash, so that snapshots made with the same key can be compared but names cannot be guessed. Models, card
ids, label keys, amounts and container names stay.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import msgspec
import yaml

from tessera.files.documents import DocumentError, yaml_events
from tessera.inspect.anonymize_selectors import SelectorReplacer, published_texts
from tessera.inspect.state import ClaimObjects, ClusterState, Json
from tessera.wire import keys
from tessera.wire.pod_groups import COSCHEDULING_GROUP, GANG, GROUP_KEYS, KUEUE_GROUP, VOLCANO_GROUP

LENGTH = 6
"""hex digits of the hash in a new name"""

NAMES = {
    "namespace": "namespaces",
    "uid": "uids",
    "nodeName": "nodes",
    "nominatedNodeName": "nodes",
    "podGroupName": "pods",
    "resourceClaimName": "claims",
    "resourceClaimTemplateName": "templates",
    "deviceClassName": "classes",
}
"""Members that hold a name, wherever they stand, and what `FoundNames` calls such names."""

REFERENCES = {"ownerReferences": "pods", "reservedFor": "pods"}
"""Lists whose entries are about something else, which `name` names. Only the owners of claims are held: pods."""

OWN_WORDS = frozenset({"resourceClaims", "resourceClaimStatuses", "claims"})
"""Lists whose entries have names that a pod gives its claims. No other object holds them: they become hashes."""

GROUP_NAMES = frozenset({GANG, KUEUE_GROUP, COSCHEDULING_GROUP, VOLCANO_GROUP})
"""Labels and annotations that hold the name of a gang. Gangs are renamed as pods are."""

LABELS = frozenset({"labels", "annotations"})
TEXTS = frozenset({"nodeSelector", "affinity", "allocation"})
"""Members with texts of any form, which may contain names of nodes. So may `LABELS`."""

_RUN = re.compile(r"[A-Za-z0-9]+")


@dataclass(frozen=True, slots=True)
class FoundNames:
    """The names that have to be replaced."""

    nodes: set[str] = field(default_factory=set)
    namespaces: set[str] = field(default_factory=set)
    pods: set[str] = field(default_factory=set)
    quotas: set[str] = field(default_factory=set)
    uids: set[str] = field(default_factory=set)
    processes: set[str] = field(default_factory=set)
    claims: set[str] = field(default_factory=set)
    templates: set[str] = field(default_factory=set)
    classes: set[str] = field(default_factory=set)

    def add_state(self, state: ClusterState) -> None:
        self.nodes.update(state.others, (each["spec"]["pool"]["name"] for each in state.dra.slices))
        for kind, documents in _named_objects(state).items():
            for each in documents:
                for names, name in _names_in(each, kind, within=""):
                    getattr(self, names).add(name)

    def renamed(self, key: bytes) -> NewNames:
        return NewNames(
            nodes=_renamed("node", self.nodes, key),
            namespaces=_renamed("ns", self.namespaces, key),
            pods=_renamed("pod", self.pods, key),
            quotas=_renamed("quota", self.quotas, key),
            uids=_renamed("uid", self.uids, key),
            processes=_renamed("process", self.processes, key),
            claims=_renamed("claim", self.claims, key),
            templates=_renamed("template", self.templates, key),
            classes=_renamed("class", self.classes, key),
            hash_text=partial(_digest, key, "text"),
        )


@dataclass(frozen=True, slots=True)
class NewNames:
    """New names by old ones."""

    nodes: Mapping[str, str]
    namespaces: Mapping[str, str]
    pods: Mapping[str, str]
    quotas: Mapping[str, str]
    uids: Mapping[str, str]
    processes: Mapping[str, str]
    claims: Mapping[str, str]
    templates: Mapping[str, str]
    classes: Mapping[str, str]
    hash_text: Callable[[str], str]
    """for strings in selectors, and the words of pods for their claims"""


def anonymize(state: ClusterState, key: bytes) -> ClusterState:
    found = FoundNames()
    found.add_state(state)
    return anonymize_state(state, found.renamed(key))


def anonymize_state(state: ClusterState, names: NewNames) -> ClusterState:
    """`names` has all names of the state, and perhaps those of a journal."""
    replacer = TextReplacer(names)
    anonymizer = _ObjectAnonymizer(names, replacer, published_texts(state.dra.slices))
    renamed = {
        kind: tuple(anonymizer.change(each, kind, within="") for each in documents)
        for kind, documents in _named_objects(state).items()
    }
    # Pools are named after nodes, and cards may be.
    slices = tuple(replace_texts(each, replacer.text) for each in state.dra.slices)
    setup = msgspec.structs.replace(
        state.setup,
        device_config=_without_comments(state.setup.device_config),
        device_config_from=_kind_only(state.setup.device_config_from),
        flags_from="",
    )
    return replace(
        state,
        source="",
        nodes=renamed["nodes"],
        pods=renamed["pods"],
        quotas=renamed["quotas"],
        dra=ClaimObjects(slices, renamed["classes"], renamed["claims"], renamed["templates"]),
        others={names.nodes[node]: ask for node, ask in state.others.items()},
        setup=setup,
        unseen=tuple(text.partition(" (")[0] for text in state.unseen),
    )


def _without_comments(text: str | None) -> str | None:
    """YAML with the same values: comments may name anything. Text that cannot be read is left out."""
    try:
        return None if text is None else yaml.emit(yaml_events(text))
    except DocumentError:
        return None


class TextReplacer:
    """Replaces names in texts where they are whole words."""

    def __init__(self, names: NewNames) -> None:
        self.text = _replacer({**names.nodes, **names.uids})
        self._owner = _replacer({**names.namespaces, **names.pods})

    def lock(self, text: str) -> str:
        """The owner of a lock. Elsewhere the words that namespaces and pods are called could mean anything."""
        return self._owner(self.text(text))


def replace_texts(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, dict):
        return {key: replace_texts(member, change) for key, member in value.items()}
    if isinstance(value, list):
        return [replace_texts(member, change) for member in value]
    return change(value) if isinstance(value, str) else value


def _named_objects(state: ClusterState) -> dict[str, tuple[Json, ...]]:
    """The objects that have names of their own, by what `FoundNames` calls those."""
    return {
        "nodes": state.nodes,
        "pods": tuple(_without_workload(pod) for pod in state.pods),
        "quotas": state.quotas,
        "classes": state.dra.classes,
        "claims": state.dra.claims,
        "templates": state.dra.templates,
    }


def _without_workload(pod: Json) -> Json:
    """A pod without what names the workload that it is of, except its gang, which decides."""
    metadata = {
        name: value for name, value in pod["metadata"].items() if name not in ("generateName", "ownerReferences")
    }
    if "labels" in metadata:
        metadata["labels"] = {name: text for name, text in metadata["labels"].items() if name in GROUP_KEYS}
    return {**pod, "metadata": metadata}


def _names_in(value: Any, kind: str, *, within: str) -> Iterator[tuple[str, str]]:
    """The names in an object of this kind, or in its member `within`, each after what `FoundNames` calls it."""
    if isinstance(value, list):
        for each in value:
            yield from _names_in(each, kind, within=within)
    elif isinstance(value, dict):
        for member, inner in value.items():
            if names := _names_of(member, kind, within):
                yield names, inner
            elif member in LABELS:
                yield from (("pods", text) for name, text in inner.items() if name in GROUP_NAMES)
            elif member not in TEXTS:
                yield from _names_in(inner, kind, within=member)


def _names_of(member: str, kind: str, within: str) -> str | None:
    """What `FoundNames` calls the name in this member of `within`, in an object of this kind. None: it is no name."""
    if member == "name":
        return kind if within == "metadata" else REFERENCES.get(within)
    return NAMES.get(member)


class _ObjectAnonymizer:
    """Replaces the names in API objects. `published`: every name and value that devices have."""

    def __init__(self, names: NewNames, replacer: TextReplacer, published: set[str]) -> None:
        self._names = names
        self._replacer = replacer
        self._selectors = SelectorReplacer(published, digest=names.hash_text, node_text=replacer.text)

    def change(self, value: Any, kind: str, *, within: str) -> Any:
        """An object of this kind, or its member `within`."""
        if isinstance(value, list):
            return [self.change(each, kind, within=within) for each in value]
        if not isinstance(value, dict):
            return value
        return {member: self._member(member, inner, kind, within) for member, inner in value.items()}

    def _member(self, member: str, value: Any, kind: str, within: str) -> Any:
        if names := _names_of(member, kind, within):
            return getattr(self._names, names)[value]
        if member == "name" and within in OWN_WORDS:
            return self._names.hash_text(value)
        if member in LABELS:
            return {name: self._label(name, text) for name, text in value.items()}
        if member in TEXTS:
            return replace_texts(value, self._replacer.text)
        if member == "expression":
            return self._selectors.text(value)
        if member == "message":
            return ""  # of a condition: free text, which may contain any name
        return self.change(value, kind, within=member)

    def _label(self, name: str, text: str) -> str:
        if name in GROUP_NAMES:
            return self._names.pods[text]
        is_lock = name == keys.NODE_LOCK or name.endswith(".lock")
        return self._replacer.lock(text) if is_lock else self._replacer.text(text)


def _renamed(word: str, old: set[str], key: bytes) -> dict[str, str]:
    """New names that sort like the old ones; no name stays none."""
    old = old - {""}
    width = len(str(len(old)))
    return {"": ""} | {
        name: f"{word}-{position:0{width}}-{_digest(key, word, name)}" for position, name in enumerate(sorted(old), 1)
    }


def _digest(key: bytes, word: str, name: str) -> str:
    return hmac.new(key, f"{word}/{name}".encode(), "sha256").hexdigest()[:LENGTH]


def _replacer(table: Mapping[str, str]) -> Callable[[str], str]:
    """Names are looked up by their first run of letters and digits: there are too many for one pattern."""
    by_start: dict[str, list[str]] = {}
    for name in sorted(table, key=len, reverse=True):
        start = _RUN.match(name)
        # A name of digits alone could be any number in an annotation.
        if start is not None and not name.isdigit():
            by_start.setdefault(start[0], []).append(name)

    def replaced(text: str) -> str:
        pieces, done = [], 0
        for run in _RUN.finditer(text):
            at = run.start()
            found = next((name for name in by_start.get(run[0], ()) if at >= done and _is_word(name, text, at)), None)
            if found is not None:
                pieces += [text[done:at], table[found]]
                done = at + len(found)
        return "".join((*pieces, text[done:]))

    return replaced


def _is_word(name: str, text: str, at: int) -> bool:
    end = at + len(name)
    return text.startswith(name, at) and (end == len(text) or _RUN.match(text, end) is None)


def _kind_only(text: str) -> str:
    """Drops namespaces, names and paths."""
    return "a ConfigMap" if text.startswith("ConfigMap") else text if text.startswith("the ") else "a file"
