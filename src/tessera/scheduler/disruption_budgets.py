"""Which disruption budgets hold for which pods, matched once per change, in slices.

A selector is compiled once. A pod that a search looks at is compared with the selectors of its namespace that have
changed since the last time and that an index of labels cannot rule out. `settle` does this, and pauses; until then the
pod is answered with a budget that allows no eviction, so that a change never makes it a victim too early. Tenants
choose the number and the size of all of this: nothing here depends on it between two pauses.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from itertools import takewhile
from typing import NamedTuple

from tessera.wire.objects import LabelSelector, PodDisruptionBudget

WORK_AT_ONCE = 8_000
"""comparisons of one label between two pauses: two or three milliseconds"""
WORK_OF_A_SELECTOR = 8
"""to compile even a small one"""
MAX_KEPT = 8
"""budgets of one pod that are looked for: with two of them the apiserver refuses every eviction already"""
VALUES_OF_AN_ANCHOR = 8
"""that a label may have for a selector to be found by its values, and not by the label alone"""

NOT_MATCHED = "(not matched yet)"
"""no name that the API accepts"""

Anchor = tuple[str, str | None] | None
"""a label that each pod of a selector has, with or without its value; None if there is no such label"""
Steps = Generator[None, None, None]


class _Terms(NamedTuple):
    """A selector by label. One comparison costs as much as the fewer of its labels and those of the pod."""

    values: Mapping[str, frozenset[str]]
    """that a label must have one of"""
    present: frozenset[str]
    absent: frozenset[str]
    forbidden: Mapping[str, set[str]]
    """values that a label must not have"""

    def match(self, labels: Mapping[str, str]) -> bool:
        if len(self.values) > len(labels) or not self.present <= labels.keys():
            return False
        if not all(labels.get(key) in values for key, values in self.values.items()):
            return False
        if not labels.keys().isdisjoint(self.absent):
            return False
        if len(self.forbidden) > len(labels):
            return not any(value in self.forbidden.get(key, ()) for key, value in labels.items())
        return not any(labels.get(key) in values for key, values in self.forbidden.items())

    @property
    def size(self) -> int:
        return 1 + len(self.values) + len(self.present) + len(self.absent) + len(self.forbidden)

    def anchors(self) -> list[Anchor]:
        """Where a pod with matching labels finds the selector: in exactly one of these places."""
        key = min(self.values, key=lambda each: len(self.values[each]), default=None)
        if key is not None and len(self.values[key]) <= VALUES_OF_AN_ANCHOR:
            return [(key, value) for value in self.values[key]]
        key = key or next(iter(self.present), None)
        return [(key, None) if key is not None else None]


def _compile(selector: LabelSelector) -> _Terms:
    values = {key: frozenset((value,)) for key, value in (selector.match_labels or {}).items()}
    present, absent = set(), set()
    forbidden: dict[str, set[str]] = {}
    for term in selector.match_expressions or ():
        named = term.values or frozenset()
        match term.operator:
            case "In":
                values[term.key] = values[term.key] & named if term.key in values else named
            case "NotIn":
                forbidden.setdefault(term.key, set()).update(named)
            case "Exists":
                present.add(term.key)
            case "DoesNotExist":
                absent.add(term.key)
            case _:
                pass  # It cannot be told what it excludes, and a budget must not be missed.
    return _Terms(values, frozenset(present), frozenset(absent), forbidden)


class _Selector:
    """The selector of one budget, with the labels that it can be found by."""

    __slots__ = ("anchors", "changed", "name", "source", "terms")

    def __init__(self, name: str, source: LabelSelector, changed: int) -> None:
        self.name = name
        self.source = source
        self.changed = changed
        """the revision of its namespace that brought it"""
        self.terms: _Terms | None = None
        """None until it is compiled"""
        self.anchors: list[Anchor] = []


class _Labelled:
    """A pod."""

    __slots__ = ("budgets", "is_cut", "labels", "matched")

    def __init__(self, labels: Mapping[str, str]) -> None:
        self.labels = labels
        self.matched = 0
        """the revision of its namespace that it was compared with"""
        self.budgets: tuple[str, ...] = ()
        """names, sorted"""
        self.is_cut = False
        """there may be more of them"""


class _Namespace:
    """The budgets and pods of one namespace."""

    def __init__(self) -> None:
        self.revision = 0
        """of the selectors"""
        self.budgets: dict[str, PodDisruptionBudget] = {}
        self.pods: dict[str, _Labelled] = {}
        self._selectors: dict[str, _Selector] = {}
        """those that can match; the newest last"""
        self._newest_first: list[_Selector] | None = None
        self._uncompiled: dict[str, _Selector] = {}
        self._index: dict[Anchor, dict[str, _Selector]] = {}
        """the others"""

    def put(self, name: str, budget: PodDisruptionBudget) -> None:
        known, self.budgets[name] = self.budgets.get(name), budget
        selector = budget.spec.selector
        if known is not None and known.spec.selector == selector:
            return  # Most changes are of the status.
        self._forget(name)
        if selector is not None:
            self._selectors[name] = self._uncompiled[name] = _Selector(name, selector, self.revision)

    def drop(self, name: str) -> None:
        if self.budgets.pop(name, None) is not None:
            self._forget(name)

    def put_pod(self, uid: str, labels: Mapping[str, str]) -> bool:
        """Whether something is new."""
        known = self.pods.get(uid)
        if known is not None and known.labels == labels:
            return False
        self.pods[uid] = _Labelled(labels)
        return True

    def settle(self, uid: str, work: int, most: int) -> Generator[None, None, int]:
        """Compare a pod with what is new, as it is now. It pauses whenever there was as much work as may be at once;
        `work` is what there was before, and the result what there was since the last pause."""
        pod, revision = self.pods.get(uid), self.revision
        if pod is None or pod.matched == revision:
            return work
        for selector in list(self._uncompiled.values()):
            work += self._compile(selector)
            if work >= most:
                yield
                work = 0
        since = 0 if pod.is_cut else pod.matched
        kept = [name for name in pod.budgets if self._is_older(name, since)]
        work, is_cut = work + len(pod.labels), False
        for selector in self._newer(since, pod.labels):
            is_cut = len(kept) >= MAX_KEPT
            if is_cut:
                break
            if selector.terms is None:
                continue  # It was gone before it was compiled, or is newer.
            work += min(selector.terms.size, len(pod.labels) + 1)
            if work >= most:
                yield
                work = 0
            if selector.terms.match(pod.labels):
                kept.append(selector.name)
        if pod.matched < revision:  # Another search may have come further meanwhile.
            pod.budgets, pod.is_cut, pod.matched = tuple(sorted(kept)), is_cut, revision
        return work

    def _newer(self, revision: int, labels: Mapping[str, str]) -> Iterable[_Selector]:
        """Selectors that have changed since, and may match these labels."""
        candidates = self._candidates(labels)
        if self.revision - revision > len(candidates):
            return [selector for selector in candidates if selector.changed > revision]
        if self._newest_first is None:
            self._newest_first = list(reversed(self._selectors.values()))
        return takewhile(lambda one: one.changed > revision, self._newest_first)

    def _is_older(self, name: str, revision: int) -> bool:
        known = self._selectors.get(name)
        return known is not None and known.changed <= revision

    def _candidates(self, labels: Mapping[str, str]) -> list[_Selector]:
        """Compiled selectors that may match these labels."""
        anchors: list[Anchor] = [None]
        for key, value in labels.items():
            anchors += ((key, value), (key, None))
        return [selector for anchor in anchors for selector in self._index.get(anchor, {}).values()]

    def _compile(self, selector: _Selector) -> int:
        """The work that it was."""
        if self._uncompiled.get(selector.name) is not selector:
            return 1
        del self._uncompiled[selector.name]
        selector.terms = terms = _compile(selector.source)
        selector.anchors = terms.anchors()
        for anchor in selector.anchors:
            self._index.setdefault(anchor, {})[selector.name] = selector
        values = sum(map(len, terms.values.values())) + sum(map(len, terms.forbidden.values()))
        return WORK_OF_A_SELECTOR + 4 * terms.size + values // 4

    def _forget(self, name: str) -> None:
        self.revision += 1
        self._newest_first = None
        known = self._selectors.pop(name, None)
        self._uncompiled.pop(name, None)
        for anchor in known.anchors if known is not None else ():
            del self._index[anchor][name]
            if not self._index[anchor]:
                del self._index[anchor]


class DisruptionBudgets:
    """Which budgets protect which pods, in all namespaces."""

    def __init__(self, *, work_at_once: int = WORK_AT_ONCE) -> None:
        """`work_at_once`: comparisons of one label between two pauses."""
        self._work_at_once = work_at_once
        self._namespaces: dict[str, _Namespace] = {}

    def put(self, key: str, budget: PodDisruptionBudget) -> None:
        namespace, _, name = key.partition("/")
        self._of(namespace).put(name, budget)

    def drop(self, key: str) -> None:
        namespace, _, name = key.partition("/")
        self._of(namespace).drop(name)
        self._tidy(namespace)

    def put_pod(self, namespace: str, uid: str, labels: Mapping[str, str]) -> bool:
        """Whether something is new."""
        return self._of(namespace).put_pod(uid, labels)

    def drop_pod(self, namespace: str, uid: str) -> None:
        self._of(namespace).pods.pop(uid, None)
        self._tidy(namespace)

    def settle(self, pods: Iterable[tuple[str, str]]) -> Steps:
        """Compare these pods, by namespace and uid, with what is new. What changes meanwhile is for the next time."""
        work = 0
        for namespace, uid in pods:
            found = self._namespaces.get(namespace)
            if found is not None:
                work = yield from found.settle(uid, work, self._work_at_once)

    def of_pod(self, namespace: str, uid: str) -> tuple[str, ...]:
        """The budgets that hold for a pod, as `namespace/name`, `MAX_KEPT` at most.

        While that is not known, a name that no budget has: `disruptions_allowed` is 0 for it.
        """
        found = self._namespaces.get(namespace)
        pod = found.pods.get(uid) if found is not None else None
        if found is None or pod is None:
            return ()
        if pod.matched != found.revision:
            return (f"{namespace}/{NOT_MATCHED}",)
        return tuple(f"{namespace}/{name}" for name in pod.budgets)

    def disruptions_allowed(self, key: str) -> int:
        namespace, _, name = key.partition("/")
        found = self._namespaces.get(namespace)
        budget = found.budgets.get(name) if found is not None else None
        return 0 if budget is None else budget.status.disruptions_allowed

    def _of(self, namespace: str) -> _Namespace:
        return self._namespaces.setdefault(namespace, _Namespace())

    def _tidy(self, namespace: str) -> None:
        found = self._namespaces.get(namespace)
        if found is not None and not found.pods and not found.budgets:
            del self._namespaces[namespace]
