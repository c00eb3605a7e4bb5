"""Replaces names of nodes, namespaces, pods, quotas and claims, and uids, in a `ClusterState`, consistently everywhere.

New names sort like the old ones, because ties are decided by name: an anonymous snapshot gives the same decisions. They
contain a keyed hash, so that snapshots made with the same key can be compared but names cannot be guessed. Models, card
ids, label keys, amounts and container names stay.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial

import msgspec
import yaml

from tessera.inspect.anonymize_claims import (
    ClaimAnonymizer,
    SelectorReplacer,
    claim_names_of,
    class_names_of,
    published_texts,
    replace_texts,
    users_of,
    with_claim_names,
)
from tessera.inspect.state import ClaimObjects, ClusterState, Json
from tessera.wire import keys

LENGTH = 6
"""hex digits of the hash in a new name"""

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
        dra = state.dra
        users = [user for claim in dra.claims for user in users_of(claim)]
        pools = (each["spec"]["pool"]["name"] for each in dra.slices)
        self.nodes.update(_of(state.nodes, "name"), _assigned(state), state.others, pools)
        self.namespaces.update(_of((*state.pods, *state.quotas, *dra.claims, *dra.templates), "namespace"))
        self.pods.update(_of(state.pods, "name"), (user.get("name", "") for user in users))
        self.quotas.update(_of(state.quotas, "name"))
        self.uids.update(_of((*state.pods, *dra.claims), "uid"), (user.get("uid", "") for user in users))
        self.claims.update(_of(dra.claims, "name"), claim_names_of(state.pods, "resourceClaimName"))
        self.templates.update(_of(dra.templates, "name"), claim_names_of(state.pods, "resourceClaimTemplateName"))
        self.classes.update(class_names_of(dra))

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
    """for strings in selectors"""


def anonymize(state: ClusterState, key: bytes) -> ClusterState:
    found = FoundNames()
    found.add_state(state)
    return anonymize_state(state, found.renamed(key))


def anonymize_state(state: ClusterState, names: NewNames) -> ClusterState:
    """`names` has all names of the state, and perhaps those of a journal."""
    replacer = TextReplacer(names)
    setup = msgspec.structs.replace(
        state.setup,
        device_config=_without_comments(state.setup.device_config),
        device_config_from=_kind_only(state.setup.device_config_from),
        flags_from="",
    )
    return replace(
        state,
        source="",
        nodes=tuple(_node(node, names, replacer) for node in state.nodes),
        pods=tuple(_pod(pod, names, replacer) for pod in state.pods),
        quotas=tuple(_metadata(quota, names.namespaces, names.quotas, names.uids) for quota in state.quotas),
        dra=_claims(state, names, replacer),
        others={names.nodes[node]: ask for node, ask in state.others.items()},
        setup=setup,
        unseen=tuple(text.partition(" (")[0] for text in state.unseen),
    )


def _without_comments(text: str | None) -> str | None:
    """YAML with the same values: comments may name anything. Text that cannot be read is left out."""
    try:
        return None if text is None else yaml.emit(yaml.parse(text, Loader=yaml.SafeLoader))
    except yaml.YAMLError:
        return None


class TextReplacer:
    """Replaces names in texts where they are whole words."""

    def __init__(self, names: NewNames) -> None:
        # Only annotations of locks hold namespaces and pods; elsewhere those words could mean anything.
        self.text = _replacer({**names.nodes, **names.uids})
        self._lock = _replacer({**names.namespaces, **names.pods})

    def annotations(self, metadata: Json) -> Json:
        replaced = {name: self.text(text) for name, text in (metadata.get("annotations") or {}).items()}
        locks = {name for name in replaced if name == keys.NODE_LOCK or name.endswith(".lock")}
        return replaced | {name: self._lock(replaced[name]) for name in locks}


def _node(node: Json, names: NewNames, replacer: TextReplacer) -> Json:
    metadata = dict(node["metadata"])
    metadata["name"] = names.nodes[metadata["name"]]
    metadata["annotations"] = replacer.annotations(metadata)
    metadata["labels"] = {key: replacer.text(value) for key, value in (metadata.get("labels") or {}).items()}
    return {**node, "metadata": metadata, "status": _without_messages(node.get("status") or {})}


def _pod(pod: Json, names: NewNames, replacer: TextReplacer) -> Json:
    changed = _metadata(pod, names.namespaces, names.pods, names.uids)
    metadata, spec = changed["metadata"], dict(pod.get("spec") or {})
    for named in ("generateName", "ownerReferences", "labels"):
        metadata.pop(named, None)
    metadata["annotations"] = replacer.annotations(metadata)
    if spec.get("nodeName"):
        spec["nodeName"] = names.nodes[spec["nodeName"]]
    for wish in ("nodeSelector", "affinity"):
        if wish in spec:
            spec[wish] = replace_texts(spec[wish], replacer.text)
    status = _without_messages(pod.get("status") or {})
    spec, status = (
        with_claim_names(part, names.claims, names.templates, digest=names.hash_text) for part in (spec, status)
    )
    return {**changed, "spec": spec, "status": status}


def _claims(state: ClusterState, names: NewNames, replacer: TextReplacer) -> ClaimObjects:
    tables = {each.name: getattr(names, each.name) for each in fields(names)}
    selectors = SelectorReplacer(published_texts(state.dra.slices), digest=names.hash_text, node_text=replacer.text)
    return ClaimAnonymizer(tables, node_text=replacer.text, selectors=selectors).objects(state.dra)


def _without_messages(status: Json) -> Json:
    """Without messages: they are free text and may contain any name."""
    if "conditions" not in status:
        return status
    return {**status, "conditions": [{**each, "message": ""} for each in status["conditions"]]}


def _metadata(thing: Json, namespaces: Mapping[str, str], own: Mapping[str, str], uids: Mapping[str, str]) -> Json:
    metadata = dict(thing["metadata"])
    for member, table in (("namespace", namespaces), ("name", own), ("uid", uids)):
        if member in metadata:
            metadata[member] = table[metadata[member]]
    return {**thing, "metadata": metadata}


def _assigned(state: ClusterState) -> Iterable[str]:
    return (pod["spec"]["nodeName"] for pod in state.pods if pod.get("spec", {}).get("nodeName"))


def _of(things: Iterable[Json], field: str) -> set[str]:
    return {thing["metadata"][field] for thing in things if field in thing["metadata"]}


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
