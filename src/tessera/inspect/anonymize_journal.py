"""Replaces names in the records of a journal, as JSON has them, with those that `anonymize` puts into a snapshot.

New names sort like the old ones and card ids change only where they contain a node's name, so an anonymous journal
replays to the same decisions. Messages are free text and are left out.
"""

from __future__ import annotations

from typing import Any

from tessera.inspect.anonymize import Names, replace_texts
from tessera.inspect.state import Json

LEFT_OUT = "(left out)"
"""instead of a text that must not be empty, because it says that something is wrong"""

NAMES = {"namespace": "namespaces", "uid": "uids", "victims": "uids", "node": "nodes", "identity": "processes"}
"""Members that hold a name or a list of names, and what they name."""
NAMED = {
    "node": "nodes",
    "host": "nodes",
    "quota": "quotas",
    "denied": "pods",
    "gang": "pods",
    "pod": "pods",
    "state": "pods",
}
"""What `name` names, by the member or the kind of record in which it stands."""
TEXTS = frozenset({"uuid", "cordoned", "traits", "custom", "settings", "useUuids", "avoidUuids", "selectors"})
"""Members with texts of any form, which may contain names of nodes."""
MESSAGES = frozenset({"error", "message", "problem", "text"})
BY_VENDOR = frozenset({"constraints", "grants"})
UNNAMED = frozenset({"forecast", "limits", "reasons"})
"""Members that hold no names, under keys that may be any text."""


class JournalAnonymizer:
    def __init__(self, names: Names) -> None:
        self._names = names
        self._text = names.text

    def anonymize(self, record: Json) -> Json:
        changed = self._members(record, within=record["kind"])
        if record.get("ofGang"):
            changed["reasons"] = {LEFT_OUT: sum(record["reasons"].values())}
        return changed

    def _members(self, value: Json, within: str) -> Json:
        return {member: self._member(member, inner, within) for member, inner in value.items()}

    def _change(self, value: Any, within: str) -> Any:
        if isinstance(value, list):
            return [self._change(each, within) for each in value]
        return self._members(value, within) if isinstance(value, dict) else value

    def _member(self, member: str, value: Any, within: str) -> Any:
        named = NAMED.get(within) if member == "name" else NAMES.get(member)
        if named is not None:
            table = self._names.tables[named]
            return [table[name] for name in value] if isinstance(value, list) else table[value]
        if member in TEXTS or (member == "extra" and within in ("constraints", "accepts")):
            return replace_texts(value, self._text)
        if member in MESSAGES:
            return LEFT_OUT if value and within != "evicted" else ""
        if member in UNNAMED or member == "extra":
            return value
        if member in BY_VENDOR and isinstance(value, dict):
            return {vendor: self._change(each, member) for vendor, each in value.items()}
        match member:
            case "links":
                return {self._text(uuid): score for uuid, score in value.items()}
            case "strayMig" | "instances":
                return [[self._text(uuid), slot] for uuid, slot in value]
            case "common" | "own":
                return [[name, kind, replace_texts(each, self._text)] for name, kind, each in value]
            case "containers":
                return [self._container(place, each) for place, each in enumerate(value)]
            case "deviceSections":
                # Whole values only: a node called gpu must not change the name of a resource.
                nodes = self._names.tables["nodes"]
                return replace_texts(value, lambda text: nodes.get(text, text))
        return self._change(value, member)

    def _container(self, place: int, container: Json) -> Json:
        """A request of a claim has the claim's name, which is often the pod's and more."""
        changed = self._members(container, within="containers")
        return changed | {"name": f"claim-{place}"} if container.get("role") == "claim" else changed
