"""Replaces names of nodes, namespaces, pods, quotas and claims, and uids, in a `ClusterState` and the records of its
journal, consistently everywhere.

New names sort like the old ones, because ties are decided by name: an anonymous snapshot gives the same decisions, and
its journal replays to them. They contain a keyed hash, so that snapshots made with the same key can be compared but
names cannot be guessed. Models, card ids (but for a node's name in them), label keys, amounts and container names stay;
messages are free text and go.

Selectors of claims are texts that people write. Of their strings, those stay that match something that devices publish,
and amounts and versions: the others match no device, and a hash in their place matches none either. Comments go.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import msgspec
import yaml

from tessera.files.documents import DocumentError, yaml_events
from tessera.inspect.state import ClaimObjects, ClusterState, Json
from tessera.wire import keys
from tessera.wire.pod_groups import COSCHEDULING_GROUP, GANG, GROUP_KEYS, KUEUE_GROUP, VOLCANO_GROUP

ChangeText = Callable[[str], str]

_STRING_OR_COMMENT = re.compile(
    r"""(?P<comment>//[^\n]*)
    |(?P<raw>[rR]?)(?P<quote>'''|\"\"\"|'|")(?P<text>(?:\\.|(?!(?P=quote)).)*)(?P=quote)""",
    re.VERBOSE | re.DOTALL,
)
_AMOUNT = re.compile(r"[0-9]+(?:\.[0-9]+)*(?:[kMGTPE]i?|m)?")

LENGTH = 6
"""hex digits of the hash in a new name"""

NAMES = {
    "namespace": "namespaces",
    "uid": "uids",
    "victims": "uids",
    "node": "nodes",
    "nodeName": "nodes",
    "nominatedNodeName": "nodes",
    "podGroupName": "pods",
    "resourceClaimName": "claims",
    "resourceClaimTemplateName": "templates",
    "deviceClassName": "classes",
    "identity": "processes",
}
"""Members that hold a name or a list of names, wherever they stand, and what they name, a key of `WORDS`."""

NAMED = {
    **dict.fromkeys(("node", "host"), "nodes"),
    "quota": "quotas",
    **dict.fromkeys(("pod", "denied", "gang", "state", "ownerReferences", "reservedFor"), "pods"),
}
"""What `name` names, by the member or the kind of record in which it stands. The only owners that are held are those of
claims: pods."""

OWN_WORDS = frozenset({"resourceClaims", "resourceClaimStatuses", "claims"})
"""Lists whose entries have names that a pod gives its claims. No other object holds them: they become hashes."""

GROUP_NAMES = frozenset({GANG, KUEUE_GROUP, COSCHEDULING_GROUP, VOLCANO_GROUP})
"""Labels and annotations that hold the name of a gang. Gangs are renamed as pods are."""

LABELS = frozenset({"labels", "annotations"})
TEXTS = frozenset({"nodeSelector", "affinity", "allocation"}) | frozenset(
    {"uuid", "cordoned", "traits", "custom", "settings", "useUuids", "avoidUuids"}
)
"""Members with texts of any form, of objects and of records, which may contain names of nodes. So may `LABELS`."""

MESSAGES = frozenset({"error", "message", "problem", "text"})
"""Free text, which may contain any name."""
LEFT_OUT = "(left out)"
"""instead of a message of a record, which must not be empty where it says that something is wrong"""

BY_VENDOR = frozenset({"constraints", "grants"})
UNNAMED = frozenset({"forecast", "limits", "reasons"})
"""Members that hold no names, under keys that may be any text."""

WORDS = {
    "nodes": "node",
    "namespaces": "ns",
    "pods": "pod",
    "quotas": "quota",
    "uids": "uid",
    "processes": "process",
    "claims": "claim",
    "templates": "template",
    "classes": "class",
}
"""What has names, and the word that its new names begin with."""

_RUN = re.compile(r"[A-Za-z0-9]+")


class SelectorReplacer:
    """Replaces strings in CEL expressions. `published`: every name and value that devices have. `node_text` replaces
    names of nodes and uids in strings that stay."""

    def __init__(self, published: Iterable[str], *, digest: ChangeText, node_text: ChangeText) -> None:
        self._published = frozenset(published)
        self._digest = digest
        self._node_text = node_text

    def text(self, expression: str) -> str:
        return _STRING_OR_COMMENT.sub(self._replaced, expression)

    def _replaced(self, found: re.Match[str]) -> str:
        if found["comment"] is not None:
            return ""
        text = found["text"]
        if not text or _AMOUNT.fullmatch(text) or any(text in each or _matches(text, each) for each in self._published):
            return f"{found['raw']}{found['quote']}{self._node_text(text)}{found['quote']}"
        return f"'{self._digest(text)}'"


def _matches(pattern: str, text: str) -> bool:
    """Whether the text is found by a regular expression, if the pattern is one."""
    try:
        return re.search(pattern, text) is not None
    except (re.error, RecursionError, OverflowError):
        return False


def published_texts(slices: Iterable[Json]) -> set[str]:
    """Every name and string that devices publish."""
    found: set[str] = set()
    for each in slices:
        spec = each.get("spec") or {}
        found.add(spec.get("driver", ""))
        for device in spec.get("devices") or ():
            found.add(device.get("name", ""))
            for name, value in (device.get("attributes") or {}).items():
                found.update(name.split("/"), (text for text in value.values() if isinstance(text, str)))
            for name in device.get("capacity") or ():
                found.update(name.split("/"))
    return found - {""}


class _FoundNames(dict[str, str]):
    """Keeps every name that is looked up, and leaves it as it is."""

    def __missing__(self, name: str) -> str:
        self[name] = name
        return name


def _unchanged(text: str) -> str:
    return text


@dataclass(frozen=True, slots=True)
class Names:
    """New names by old ones. They have to be known before the first is replaced, so everything is gone through twice:
    first with `Names()`, which finds all names and changes none, then with what `renamed` makes of it."""

    tables: Mapping[str, Mapping[str, str]] = field(default_factory=lambda: {what: _FoundNames() for what in WORDS})
    """by the keys of `WORDS`"""
    text: ChangeText = _unchanged
    """replaces names of nodes and uids where they are whole words"""
    lock: ChangeText = _unchanged
    """the same for the owner of a lock. Elsewhere the words that namespaces and pods are called could mean anything"""
    hash_text: ChangeText = _unchanged
    """for strings in selectors, and the words of pods for their claims"""

    def renamed(self, key: bytes) -> Names:
        tables = {what: _renamed(WORDS[what], set(found), key) for what, found in self.tables.items()}
        text = _replacer({**tables["nodes"], **tables["uids"]})
        owner = _replacer({**tables["namespaces"], **tables["pods"]})
        return Names(tables, text, lambda lock: owner(text(lock)), partial(_digest, key, "text"))


def anonymize(state: ClusterState, key: bytes) -> ClusterState:
    found = Names()
    anonymize_state(state, found)
    return anonymize_state(state, found.renamed(key))


def anonymize_state(state: ClusterState, names: Names) -> ClusterState:
    """`names` has all names of the state, and perhaps those of a journal."""
    anonymizer = Anonymizer(names, published_texts(state.dra.slices))
    nodes = names.tables["nodes"]
    for each in state.dra.slices:
        _ = nodes[each["spec"]["pool"]["name"]]  # Pools are named after nodes, and cards may be.
    setup = msgspec.structs.replace(
        state.setup,
        device_config=_without_comments(state.setup.device_config),
        device_config_from=_kind_only(state.setup.device_config_from),
        flags_from="",
    )
    return replace(
        state,
        source="",
        nodes=anonymizer.objects("nodes", state.nodes),
        pods=anonymizer.objects("pods", map(_without_workload, state.pods)),
        quotas=anonymizer.objects("quotas", state.quotas),
        dra=ClaimObjects(
            tuple(replace_texts(each, names.text) for each in state.dra.slices),
            anonymizer.objects("classes", state.dra.classes),
            anonymizer.objects("claims", state.dra.claims),
            anonymizer.objects("templates", state.dra.templates),
        ),
        others={nodes[node]: ask for node, ask in state.others.items()},
        setup=setup,
        unseen=tuple(text.partition(" (")[0] for text in state.unseen),
    )


def _without_comments(text: str | None) -> str | None:
    """YAML with the same values: comments may name anything. Text that cannot be read is left out."""
    try:
        return None if text is None else yaml.emit(yaml_events(text))
    except DocumentError:
        return None


def replace_texts(value: Any, change: ChangeText) -> Any:
    if isinstance(value, dict):
        return {key: replace_texts(member, change) for key, member in value.items()}
    if isinstance(value, list):
        return [replace_texts(member, change) for member in value]
    return change(value) if isinstance(value, str) else value


def _without_workload(pod: Json) -> Json:
    """A pod without what names the workload that it is of, except its gang, which decides."""
    metadata = {
        name: value for name, value in pod["metadata"].items() if name not in ("generateName", "ownerReferences")
    }
    if "labels" in metadata:
        metadata["labels"] = {name: text for name, text in metadata["labels"].items() if name in GROUP_KEYS}
    return {**pod, "metadata": metadata}


class Anonymizer:
    """Replaces the names in API objects and in records of a journal, as JSON has them. `published`: every name and
    value that devices have."""

    def __init__(self, names: Names, published: Iterable[str] = ()) -> None:
        self._names = names
        self._text = names.text
        self._selectors = SelectorReplacer(published, digest=names.hash_text, node_text=names.text)

    def objects(self, kind: str, documents: Iterable[Json]) -> tuple[Json, ...]:
        """Objects whose own names are of this kind."""
        return tuple(self._members(each, kind, within="") for each in documents)

    def record(self, record: Json) -> Json:
        changed = self._members(record, "", within=record["kind"])
        if record.get("ofGang"):
            changed["reasons"] = {LEFT_OUT: sum(record["reasons"].values())}
        return changed

    def _members(self, value: Json, kind: str, within: str) -> Json:
        return {member: self._member(member, inner, kind, within) for member, inner in value.items()}

    def _change(self, value: Any, kind: str, within: str) -> Any:
        """The member `within` of an object of this kind, or of a record."""
        if isinstance(value, list):
            return [self._change(each, kind, within) for each in value]
        return self._members(value, kind, within) if isinstance(value, dict) else value

    def _member(self, member: str, value: Any, kind: str, within: str) -> Any:
        named = NAMES.get(member)
        if member == "name":
            if within in OWN_WORDS:
                return self._names.hash_text(value)
            named = kind if within == "metadata" else NAMED.get(within)
        if named is not None:
            table = self._names.tables[named]
            return [table[name] for name in value] if isinstance(value, list) else table[value]
        if member in LABELS:
            return {name: self._label(name, text) for name, text in value.items()}
        if member in TEXTS or (member == "extra" and within in ("constraints", "accepts")):
            return replace_texts(value, self._text)
        if member in MESSAGES:
            return LEFT_OUT if value and within not in ("evicted", "conditions") else ""
        if member in UNNAMED or member == "extra":
            return value
        if member in BY_VENDOR and isinstance(value, dict):
            return {vendor: self._change(each, kind, member) for vendor, each in value.items()}
        match member:
            case "expression":
                return self._selectors.text(value)
            case "selectors" if all(isinstance(each, str) for each in value):
                return replace_texts(value, self._text)
            case "links":
                return {self._text(uuid): score for uuid, score in value.items()}
            case "strayMig" | "instances":
                return [[self._text(uuid), slot] for uuid, slot in value]
            case "common" | "own":
                return [[name, kind_, replace_texts(each, self._text)] for name, kind_, each in value]
            case "containers":
                return [self._container(place, each, kind) for place, each in enumerate(value)]
            case "deviceSections":
                # Whole values only: a node called gpu must not change the name of a resource.
                nodes = self._names.tables["nodes"]
                return replace_texts(value, lambda text: nodes.get(text, text))
        return self._change(value, kind, member)

    def _container(self, place: int, container: Json, kind: str) -> Json:
        """A request of a claim has the claim's name, which is often the pod's and more."""
        changed = self._members(container, kind, within="containers")
        return changed | {"name": f"claim-{place}"} if container.get("role") == "claim" else changed

    def _label(self, name: str, text: str) -> str:
        if name in GROUP_NAMES:
            return self._names.tables["pods"][text]
        is_lock = name == keys.NODE_LOCK or name.endswith(".lock")
        return self._names.lock(text) if is_lock else self._text(text)


def _renamed(word: str, old: set[str], key: bytes) -> dict[str, str]:
    """New names that sort like the old ones; no name stays none."""
    old = old - {""}
    width = len(str(len(old)))
    return {"": ""} | {
        name: f"{word}-{position:0{width}}-{_digest(key, word, name)}" for position, name in enumerate(sorted(old), 1)
    }


def _digest(key: bytes, word: str, name: str) -> str:
    return hmac.new(key, f"{word}/{name}".encode(), "sha256").hexdigest()[:LENGTH]


def _replacer(table: Mapping[str, str]) -> ChangeText:
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
