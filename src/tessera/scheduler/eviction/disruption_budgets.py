"""Which disruption budgets hold for which pods, matched when a search asks, in slices.

A selector is compiled once. A pod that a search looks at, and whose namespace has other selectors than the last time,
is compared with those that an index of labels cannot rule out. `settle` does this, and pauses; until then the pod is
answered with a budget that allows no eviction, so that a change never makes it a victim too early. Tenants choose the
number and the size of all of this: nothing here depends on it between two pauses.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
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


class _Labelled:
    """A pod."""

    __slots__ = ("budgets", "labels", "matched")

    def __init__(self, labels: Mapping[str, str]) -> None:
        self.labels = labels
        self.matched = 0
        """the revision of its namespace that it was compared with"""
        self.budgets: tuple[str, ...] = ()
        """names, sorted"""


class _Namespace:
    """The budgets and pods of one namespace."""

    def __init__(self) -> None:
        self.revision = 0
        """of the selectors"""
        self.budgets: dict[str, PodDisruptionBudget] = {}
        self.pods: dict[str, _Labelled] = {}
        self._uncompiled: dict[str, LabelSelector] = {}
        """by name of the budget"""
        self._anchors: dict[str, list[Anchor]] = {}
        self._index: dict[Anchor, dict[str, _Terms]] = {}

    def put(self, name: str, budget: PodDisruptionBudget) -> None:
        known, self.budgets[name] = self.budgets.get(name), budget
        selector = budget.spec.selector
        if known is not None and known.spec.selector == selector:
            return  # Most changes are of the status.
        self._forget(name)
        if selector is not None:
            self._uncompiled[name] = selector

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
        """Compare a pod with the selectors as they are now, if any has changed since the last time. It pauses whenever
        there was as much work as may be at once; `work` is what there was before, and the result what there was since
        the last pause."""
        pod, revision = self.pods.get(uid), self.revision
        if pod is None or pod.matched == revision:
            return work
        for name, selector in list(self._uncompiled.items()):
            work += self._compile(name, selector)
            if work >= most:
                yield
                work = 0
        kept: list[str] = []
        work += len(pod.labels)
        for name, terms in self._candidates(pod.labels):
            if len(kept) == MAX_KEPT:
                break
            work += min(terms.size, len(pod.labels) + 1)
            if work >= most:
                yield
                work = 0
            if terms.match(pod.labels):
                kept.append(name)
        if pod.matched < revision:  # Another search may have come further meanwhile.
            pod.budgets, pod.matched = tuple(sorted(kept)), revision
        return work

    def _candidates(self, labels: Mapping[str, str]) -> list[tuple[str, _Terms]]:
        """Compiled selectors that may match these labels, with the names of their budgets."""
        anchors: list[Anchor] = [None]
        for key, value in labels.items():
            anchors += ((key, value), (key, None))
        return [found for anchor in anchors for found in self._index.get(anchor, {}).items()]

    def _compile(self, name: str, selector: LabelSelector) -> int:
        """The work that it was."""
        if self._uncompiled.get(name) is not selector:
            return 1  # It was gone before it was compiled.
        del self._uncompiled[name]
        terms = _compile(selector)
        self._anchors[name] = terms.anchors()
        for anchor in self._anchors[name]:
            self._index.setdefault(anchor, {})[name] = terms
        values = sum(map(len, terms.values.values())) + sum(map(len, terms.forbidden.values()))
        return WORK_OF_A_SELECTOR + 4 * terms.size + values // 4

    def _forget(self, name: str) -> None:
        self.revision += 1
        self._uncompiled.pop(name, None)
        for anchor in self._anchors.pop(name, ()):
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
