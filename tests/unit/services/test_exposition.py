"""Metrics are written so that Prometheus' own parser reads them back."""

from __future__ import annotations

import math

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tessera.scheduler.metrics.service_metrics import Times
from tessera.services.exposition import Counter, MetricFamily, Registry, counter, gauge, info


def samples(registry: Registry) -> list[tuple[str, dict[str, str], float]]:
    found: list[Sample] = []
    for family in text_string_to_metric_families(registry.render().decode()):
        found += family.samples
    return [(sample.name, sample.labels, sample.value) for sample in found]


def test_a_total_is_written_with_its_help_and_type() -> None:
    registry = Registry()
    Counter(registry, "things_total", "How many.").add(2)
    assert registry.render() == b"# HELP things_total How many.\n# TYPE things_total counter\nthings_total 2.0\n"


def test_a_total_by_label_shows_every_value_from_the_start() -> None:
    registry = Registry()
    Counter(registry, "things_total", "How many.", label="what", values=("a", "b")).add(value="b")
    assert samples(registry) == [("things_total", {"what": "a"}, 0.0), ("things_total", {"what": "b"}, 1.0)]


def test_labels_may_have_any_text() -> None:
    registry, text = Registry(), 'a "quoted"\\ line\nand another, {with} braces'
    registry.register(lambda: [gauge("one", "Some.", {text: 1e9, "n": math.inf}, label="of"), counter("no", "", {})])
    registry.register(lambda: [info("build_info", "What runs.", {"version": text, "python": "3"})])
    assert samples(registry) == [
        ("one", {"of": text}, 1e9),
        ("one", {"of": "n"}, math.inf),
        ("build_info", {"version": text, "python": "3"}, 1.0),
    ]


def test_half_a_surrogate_pair_does_not_break_the_text() -> None:
    family = MetricFamily("gauge", "one", "Some.", ["of"])
    family.add(1, ["\ud800"])
    assert family.text().endswith(b'one{of="?"} 1.0\n')


def test_a_histogram_counts_up_to_each_bound() -> None:
    registry, times = Registry(), Times("took_seconds", "Time.", bounds=(0.5, 1.0))
    registry.register(times.collect)
    for seconds in (0.5, 0.7, 3.0):
        times.add(seconds)
    assert samples(registry) == [
        ("took_seconds_bucket", {"le": "0.5"}, 1.0),
        ("took_seconds_bucket", {"le": "1.0"}, 2.0),
        ("took_seconds_bucket", {"le": "+Inf"}, 3.0),
        ("took_seconds_count", {}, 3.0),
        ("took_seconds_sum", {}, 4.2),
    ]
