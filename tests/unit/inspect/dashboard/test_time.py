"""The page of a journal: its end, and the cluster and the decisions at any time before."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tessera.inspect.dashboard import journal as page_journal
from tessera.inspect.dashboard import steps
from tessera.inspect.dashboard.source import RecordedSource, read_records
from tessera.inspect.state import InspectionError
from tessera.wire import journal
from tests.support.builders import NOW, gpu_pod, node
from tests.support.journals import RecordedCluster
from tests.support.page import Page, decoded, pods_of


def recorded() -> RecordedCluster:
    """Second 1 and 2: nodes. 3: a is placed, 4: reserved. 5: b is refused. 6: a is gone, 7 and 8: b is placed."""
    here = RecordedCluster().add(node("n1").gpus(1, memory=24_000), node("n2").gpus(1, memory=10_000))
    here.decide(gpu_pod("a", mem=20_000))
    here.decide(gpu_pod("b", mem=20_000))
    here.ledger.release("uid-a")
    here.decide(gpu_pod("b", mem=20_000))
    here.decide(gpu_pod("c", mem=90_000))
    return here


@pytest.fixture
async def page() -> AsyncIterator[Page]:
    page = Page(RecordedSource(recorded().records, name="journal.jsonl"))
    yield page
    await page.server.close()


def pods(state: Any) -> list[str]:
    return sorted(pod[1] for pod in pods_of(state).values())


async def test_the_page_shows_the_end_of_the_journal(page: Page) -> None:
    state = await page.get("/api/state")
    assert (state["source"]["kind"], state["source"]["live"]) == ("journal", False)
    assert state["source"]["journal"] == {"from": NOW, "to": NOW + 9}
    assert pods(state) == ["b"]
    (waits,) = state["waiting"].values()
    assert (waits["name"], waits["asks"]) == ("c", "1 x 90000 MiB")


async def test_an_earlier_time_shows_the_cluster_as_it_was(page: Page) -> None:
    begin = await page.get(f"/api/state?time={NOW - 1000}")
    assert (pods(begin), begin["nodes"], begin["time"]) == ([], {}, NOW)
    then = await page.get(f"/api/state?time={NOW + 5}")
    assert (pods(then), then["time"], then["source"]["live"]) == (["a"], NOW + 5, False)
    assert [(one["name"], one["since"]) for one in then["waiting"].values()] == [("b", NOW + 5)]
    assert then["totals"]["granted"]["memory"] == 20_000
    after = await page.get(f"/api/state?time={NOW + 8}")
    assert (pods(after), after["waiting"]) == (["b"], {})
    back = await page.get(f"/api/state?time={NOW + 4}")
    assert (pods(back), back["waiting"]) == (["a"], {})


async def test_a_past_state_has_the_members_of_the_present_one(page: Page) -> None:
    now, then = await page.get("/api/state"), await page.get(f"/api/state?time={NOW + 5}")
    assert now.keys() == then.keys()
    assert now["totals"].keys() == then["totals"].keys()
    rows = [next(iter(state["waiting"].values())) for state in (now, then)]
    assert rows[0].keys() == rows[1].keys()


async def test_cards_and_pods_are_told_as_they_were(page: Page) -> None:
    card = await page.get(f"/api/card?node=n1&card=n1-0&time={NOW + 5}")
    assert "default/a 20000" in "".join(line["text"] for line in card["lines"])
    pod = await page.get(f"/api/pod?namespace=default&name=a&time={NOW + 5}")
    assert "reserved on n1" in pod["lines"][0]["text"]
    assert [record["kind"] for record in pod["history"]] == ["placed"]
    gone = await page.get("/api/pod?namespace=default&name=a")
    assert (gone["lines"], len(gone["history"])) == ([], 1)
    late = await page.get(f"/api/pod?namespace=default&name=b&time={NOW + 5}")
    assert [record["kind"] for record in late["history"]] == ["refused"]


async def test_the_records_are_listed_for_people(page: Page) -> None:
    found = await page.get("/api/journal")
    assert [record["kind"] for record in found["records"]] == ["placed", "refused", "placed", "refused"]
    first = found["records"][0]
    assert (first["pod"], first["node"], first["time"]) == ("default/a", "n1", NOW + 3)
    assert first["text"].startswith("on n1: card 0")
    assert found["more"] is False


async def test_of_many_records_the_newest_are_listed(page: Page) -> None:
    found = await page.get(f"/api/journal?limit=1&to={NOW + 8}")
    assert ([record["pod"] for record in found["records"]], found["more"]) == (["default/b"], True)
    assert (await page.get("/api/journal?limit=0"))["more"] is True
    some = await page.get(f"/api/journal?from={NOW + 4}&to={NOW + 6}")
    assert [record["kind"] for record in some["records"]] == ["refused"]


@pytest.mark.parametrize("time", ["x", "nan", "1e", "<b>"])
async def test_a_time_that_is_none_is_refused(page: Page, time: str) -> None:
    response = await page.ask(f"/api/state?time={time}")
    assert (response.status, "not a time" in decoded(response)["error"]) == (400, True)


async def test_what_if_works_on_the_end_of_a_journal(page: Page) -> None:
    text = (
        b"kind: Pod\nspec: {containers: [{name: a, resources: {limits: {nvidia.com/gpu: 1, nvidia.com/gpumem: 5000}}}]}"
    )
    found = decoded(await page.ask("/api/whatif", method="POST", body=text))
    assert (found["pods"][0]["fits"], found["more"]) == (True, 2)


async def test_happenings_without_a_pod_are_listed_too() -> None:
    here = recorded()
    here.note(journal.TookOver)
    here.note(journal.Denied, namespace="x", name="y", message="no")
    page = Page(RecordedSource(here.records, name="j"))
    try:
        *_, took, denied = (await page.get("/api/journal"))["records"]
    finally:
        await page.server.close()
    assert (took["kind"], took["pod"], took["text"]) == ("took-over", "", "this process decides from now on")
    assert (denied["pod"], denied["text"]) == ("x/y", "at admission: no")


async def test_long_journals_are_searched_in_steps_and_only_the_pod_itself_is_described(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    records, described, pauses = recorded().records, list[journal.Record](), list[float]()
    describe = page_journal.record_document

    def counted(record: page_journal.Happening) -> Any:
        described.append(record)
        return describe(record)

    async def pause(spent: float) -> None:
        pauses.append(spent)

    monkeypatch.setattr(page_journal, "record_document", counted)
    monkeypatch.setattr(steps, "SLICE_S", -1.0)
    found = await page_journal.history_of(records, pause, "default", "b", last=NOW + 100)
    assert [one["kind"] for one in found] == ["refused", "placed"]
    assert len(described) == 2
    assert len(pauses) == len(records) + 2


async def test_a_journal_is_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "journal.jsonl"
    file.write_bytes(recorded().text())
    assert await read_records(str(file)) == (recorded().records, [])
    file.write_bytes(b"".join(map(journal.encode_record, recorded().records[5:])))
    with pytest.raises(InspectionError):
        await read_records(str(file))


@pytest.mark.parametrize("at", range(12))
async def test_the_page_shows_what_fits_together_of_a_damaged_journal(tmp_path: Path, at: int) -> None:
    file = tmp_path / "journal.jsonl"
    records = recorded().records
    lines = [journal.encode_record(record) for record in records]
    file.write_bytes(b"".join((*lines[:at], b"garbage\n", *lines[at:], *lines)))
    found, notes = await read_records(str(file))
    end = next(place for place, record in enumerate(records) if isinstance(record, journal.SnapshotEnd))
    # A state of which a line is missing is no state; the records after a gap do not fit what is before.
    kept = records if at == 0 else records[:at] if at > end else []
    assert found == [*kept, *records]
    assert len(notes) == 1
    RecordedSource(found, name="a journal")
