"""The order in which the API tells its objects does not matter: only the last version of each counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tessera.core.ledger.ledger import Ledger, replay
from tessera.core.search.selection import Refused, Selected, Selector
from tests.support import strategies as some

PODS = tuple(f"pod-{i}" for i in range(5))

Event = tuple[str, Any]


def tell(ledger: Ledger, event: Event) -> None:
    kind, facts = event
    tellers: dict[str, Callable[[Any], object]] = {
        "node": ledger.observe_node,
        "pod": ledger.observe_pod,
        "quota": ledger.observe_quota,
        "node gone": ledger.forget_node,
    }
    tellers[kind](facts)


@st.composite
def histories(draw: st.DrawFn, pool: tuple[str, ...]) -> list[list[Event]]:
    """For every object its versions, oldest first; a node may have been gone in between."""
    found: list[list[Event]] = []
    for name in draw(st.sets(st.sampled_from(some.NODES[:3]), min_size=1)):
        versions: list[Event] = [("node", facts) for facts in draw(st.lists(some.nodes(name, pool), max_size=2))]
        if draw(st.booleans()):
            versions.append(("node gone", name))
        found.append([*versions, ("node", draw(some.nodes(name, pool)))])
    for uid in draw(st.sets(st.sampled_from(PODS))):
        pods = draw(st.lists(some.foreign_pods(pool, uid), min_size=1, max_size=2))
        found.append([("pod", facts) for facts in pods])
    quotas = draw(st.lists(some.quotas(pool), max_size=3, unique_by=lambda quota: (quota.namespace, quota.name)))
    found.extend([("quota", quota)] for quota in quotas)
    return found


@given(data=st.data(), pool=some.pools)
def test_the_order_of_events_does_not_matter(data: st.DataObject, pool: tuple[str, ...]) -> None:
    told = data.draw(histories(pool))
    final = [versions[-1] for versions in told]
    expected = replay(
        some.VENDORS,
        nodes=[facts for kind, facts in final if kind == "node"],
        pods=[facts for kind, facts in final if kind == "pod"],
        quotas=[facts for kind, facts in final if kind == "quota"],
    )
    turns = data.draw(st.permutations([i for i, versions in enumerate(told) for _ in versions]))
    ledger = Ledger(some.VENDORS)
    waiting = [iter(versions) for versions in told]
    for turn in turns:
        tell(ledger, next(waiting[turn]))

    assert ledger.state() == expected.state()
    pod = data.draw(some.pod_requests(pool, "new"))
    assert decided(ledger, pod) == decided(expected, pod)


def decided(ledger: Ledger, pod: Any) -> Any:
    answer: Selected | Refused = Selector(ledger).select(pod, some.NODES)
    return answer.placement if isinstance(answer, Selected) else dict(answer.misfits)
