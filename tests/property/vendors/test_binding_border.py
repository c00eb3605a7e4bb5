"""A placement survives the border: what the binding writes is read back as exactly what was reserved."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from tessera.core.fit.fit import fit_pod
from tessera.core.ledger.audit import audit
from tessera.core.ledger.ledger import Ledger, facts_of
from tessera.core.model.devices import NodeFacts
from tessera.core.model.grants import Placement
from tessera.core.model.requests import PodRequest
from tessera.vendors.binding_annotations import binding_annotations
from tessera.vendors.pod_reader import PodReader
from tessera.wire.objects import Pod, decode_object
from tests.support import strategies as some
from tests.support.strategies import examples

NOW = 1_700_000_000.5

Case = tuple[NodeFacts, list[tuple[Pod, PodRequest]]]

FIRST_FOUND = settings(max_examples=1000, phases=[Phase.generate], report_multiple_bugs=False)

each_vendor = pytest.mark.parametrize("vendor", sorted(some.VENDORS))


def cases(vendor: str) -> st.SearchStrategy[Case]:
    pods = [some.readable_pods((vendor,), f"pod-{i}") for i in range(3)]
    return st.tuples(some.nodes(some.NODES[0], (vendor,)), st.tuples(*pods).map(list))


def placed(ledger: Ledger, request: PodRequest) -> Placement | None:
    node = ledger.node(some.NODES[0])
    answer = fit_pod(node, request, ledger.rules, {}) if node and request.asks_for_devices else None
    return answer if isinstance(answer, Placement) else None


def bound(pod: Pod, request: PodRequest, placement: Placement) -> Pod:
    """The pod as the API shows it after the binding, through JSON."""
    written = binding_annotations(request, placement, vendors=some.VENDORS, now=NOW)
    shown = msgspec.structs.replace(
        pod,
        metadata=msgspec.structs.replace(pod.metadata, annotations=pod.annotations | written),
        spec=msgspec.structs.replace(pod.spec, node_name=placement.node),
    )
    return decode_object(msgspec.json.encode(shown), Pod)


@each_vendor
@examples(1 / 5)
@given(data=st.data())
def test_a_bound_pod_is_read_as_it_was_reserved(vendor: str, data: st.DataObject) -> None:
    node, pods = data.draw(cases(vendor))
    ledger = Ledger(some.VENDORS)
    ledger.observe_node(node)
    for pod, request in pods:
        placement = placed(ledger, request)
        if placement is None:
            continue
        ledger.reserve(request, placement, deadline=1)
        reserved = ledger.state()["nodes"]

        facts = PodReader(some.VENDORS).facts(bound(pod, request, placement))

        assert facts is not None
        assert (facts.problem, facts.stray_mig) == ("", ())
        assert facts.spans == facts_of(request, placement).spans
        assert facts.settings == facts_of(request, placement).settings
        ledger.observe_pod(facts)
        assert ledger.state()["nodes"] == reserved
        assert audit(ledger) == []


@each_vendor
def test_the_cases_above_place_pods_of_every_vendor(vendor: str) -> None:
    """So that no vendor passes because nothing was ever placed."""

    def one_fits(case: Case) -> bool:
        node, pods = case
        ledger = Ledger(some.VENDORS)
        ledger.observe_node(node)
        return any(placed(ledger, request) for _, request in pods)

    find(cases(vendor), one_fits, settings=FIRST_FOUND)
