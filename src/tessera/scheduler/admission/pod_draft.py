"""Converts a pod document to the draft that vendors edit, and their edits back to a document.

The new document shares all unedited parts with the old one, which makes comparing them cheap. The old document is never
modified. Quantities that are equal but spelled differently (`16000`, `16k`) stay as written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tessera.vendors.drafts import ContainerDraft, PodDraft
from tessera.wire.objects import Container, Pod, QuantityText
from tessera.wire.quantity import read

Document = dict[str, Any]
Entries = Sequence[Document]
"""of an environment, as the pod has them"""


class Environment(dict[str, str]):
    """The variables of a container; remembers which were written."""

    def __init__(self, container: Container) -> None:
        super().__init__({entry.name: entry.value for entry in container.env or ()})
        self.written: dict[str, str] = {}

    def __setitem__(self, name: str, value: str) -> None:
        super().__setitem__(name, value)
        self.written[name] = value


def draft_of(pod: Pod) -> PodDraft:
    return PodDraft(
        annotations=dict(pod.annotations),
        runtime_class=pod.spec.runtime_class_name,
        containers=[_container_draft(container) for container in (*pod.init_containers, *pod.app_containers)],
    )


def _container_draft(container: Container) -> ContainerDraft:
    resources = container.resources
    return ContainerDraft(
        limits=dict(resources.limits or {}),
        requests=dict(resources.requests or {}),
        name=container.name,
        env=Environment(container),
    )


def written_variables(draft: ContainerDraft) -> Mapping[str, str]:
    """The variables that vendors set in a container."""
    assert isinstance(draft.env, Environment)  # as `draft_of` made it
    return draft.env.written


def containers_of(document: Document) -> list[Document]:
    """The containers of a document that was read as a pod, init containers first."""
    spec = document["spec"]
    return [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]


def with_draft(document: Document, draft: PodDraft) -> Document:
    """The document with what vendors changed."""
    changed = with_containers(
        document, [_edited(raw, edits) for raw, edits in zip(containers_of(document), draft.containers, strict=True)]
    )
    if draft.runtime_class is not None:
        changed = with_spec(changed, runtimeClassName=draft.runtime_class)
    metadata = changed.get("metadata") or {}
    old = metadata.get("annotations") or {}
    return (
        changed if draft.annotations == old else {**changed, "metadata": metadata | {"annotations": draft.annotations}}
    )


def with_spec(document: Document, **fields: str) -> Document:
    """The document with these fields of its spec."""
    spec = document["spec"]
    if all(spec.get(name) == value for name, value in fields.items()):
        return document
    return {**document, "spec": {**spec, **fields}}


def with_containers(document: Document, containers: Sequence[Document]) -> Document:
    """The document with these containers, init containers first."""
    spec = document["spec"]
    fields: dict[str, Any] = {}
    start = 0
    for field in ("initContainers", "containers"):
        old = spec.get(field) or []
        new = list(containers[start : start + len(old)])
        start += len(old)
        if any(one is not other for one, other in zip(old, new, strict=True)):
            fields[field] = new
    return {**document, "spec": {**spec, **fields}} if fields else document


def with_env(container: Document, entries: Entries) -> Document:
    """The container with these variables; the same container where nothing differs."""
    old = container.get("env") or []
    if len(old) == len(entries) and all(one is other or one == other for one, other in zip(old, entries, strict=True)):
        return container
    return {**container, "env": list(entries)}


def _edited(container: Document, draft: ContainerDraft) -> Document:
    resources = container.get("resources") or {}
    limits = _amounts(resources.get("limits"), draft.limits)
    requests = _amounts(resources.get("requests"), draft.requests)
    fields = {name: new for name, new in (("limits", limits), ("requests", requests)) if new is not None}
    if fields:
        container = {**container, "resources": resources | fields}
    written = written_variables(draft)
    return with_env(container, _set(container.get("env") or [], written)) if written else container


def _amounts(old: Mapping[str, QuantityText] | None, new: Mapping[str, QuantityText]) -> Document | None:
    """All amounts where some of them differ from before."""
    before = old or {}
    changed = {name: value for name, value in new.items() if name not in before or not _equal(before[name], value)}
    return {**before, **changed} if changed else None


def _equal(one: QuantityText, other: QuantityText) -> bool:
    return one == other or read(one) == read(other)


def _set(entries: Entries, written: Mapping[str, str]) -> list[Document]:
    """The entries with these values. An entry that already takes effect, because it is the last of its name, is
    kept."""
    last = {entry.get("name"): entry for entry in entries}
    wanted = {name: value for name, value in written.items() if not _says(last.get(name), value)}
    result: list[Document] = []
    placed: set[str] = set()
    for entry in entries:
        name = entry.get("name", "")
        if name not in wanted:
            result.append(entry)
        elif name not in placed:
            placed.add(name)
            result.append({"name": name, "value": wanted[name]})
    return result + [{"name": name, "value": value} for name, value in wanted.items() if name not in placed]


def _says(entry: Document | None, value: str) -> bool:
    """An entry without a value has the empty one: the apiserver leaves it out."""
    return entry is not None and "valueFrom" not in entry and entry.get("value", "") == value
