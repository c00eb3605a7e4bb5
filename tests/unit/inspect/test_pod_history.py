from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

from tessera.inspect.pod_history import PodHistory, read_history
from tessera.inspect.render.journal import history_lines
from tessera.wire.journal import Record, Refused
from tests.support.builders import gpu_pod, node
from tests.support.journals import HOSTILE, RecordedCluster, recorded_story, trainer


async def stream(records: Iterable[Record]) -> AsyncIterator[Record]:
    for record in records:
        yield record


async def history(records: Iterable[Record], name: str) -> PodHistory:
    return await read_history(stream(records), "team-a", name)


def steps(found: PodHistory) -> list[list[str]]:
    return [[step.what for step in story.steps] for story in found.stories]


async def test_equal_refusals_are_one_step_and_others_are_more() -> None:
    cluster = RecordedCluster().add(node("n1").gpus(1))
    for _ in range(3):
        cluster.decide(trainer(1, memory=90_000))
    cluster.add(node("n2").gpus(2))
    cluster.decide(trainer(1, memory=90_000))
    found = await history(cluster.records, "train-1")
    assert steps(found) == [["asked", "refused", "refused"]]
    first, second = found.stories[0].steps[1:]
    assert (first.candidates, second.candidates) == (1, 2)
    assert first.until > first.time
    assert not found.is_good


async def test_pods_of_one_name_have_a_story_each() -> None:
    cluster = RecordedCluster().add(node("n1").gpus(1))
    for uid in ("one", "two"):
        cluster.decide(gpu_pod(mem=100).called("p", namespace="team-a", uid=uid))
    found = await history(cluster.records, "p")
    assert [story.uid for story in found.stories] == ["one", "two"]
    assert steps(found) == [["asked", "placed"]] * 2
    assert found.is_good


async def test_a_pod_that_was_denied_has_a_story_without_a_uid() -> None:
    found = await history(recorded_story().records, HOSTILE)
    assert steps(found) == [["denied"]]
    assert not found.is_good
    assert "it never existed" in "\n".join(line.text for line in history_lines(found))


async def test_another_process_is_told_to_pods_that_are_there() -> None:
    before = recorded_story()
    after = RecordedCluster(identity="two", begin=before.now).add(node("alpha-host").gpus(2))
    after.decide(trainer(2))
    records = [*before.records, *after.records]
    assert steps(await history(records, "train-2"))[0][-2:] == ["scheduler-started", "placed"]
    assert steps(await history(records, "train-0"))[0][-1] == "released"


async def test_a_pod_that_was_there_before_the_journal_begins_with_what_it_holds() -> None:
    cluster = recorded_story()
    cluster.records.clear()
    cluster.restart()
    found = await history(cluster.records, "train-2")
    assert steps(found) == [["held"]]
    assert "it holds on alpha-host: card 1" in "\n".join(line.text for line in history_lines(found))


async def test_a_gap_in_the_journal_costs_numbers_and_nothing_else() -> None:
    records = [record for record in recorded_story().records if record.sequence != 6]
    found = await history(records, "train-2")
    assert steps(found) == [["asked", "refused", "woken", "placed", "not-bound"]]
    assert found.stories[0].steps[1].nearest == ""
    assert any(isinstance(record, Refused) for record in records)
    assert "no numbers until the next state" in found.notes[0]
