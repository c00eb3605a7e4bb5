"""What happens in the cluster is on the screen without a reload."""

from __future__ import annotations

from tests.ui.conftest import Readers
from tests.ui.described_cluster import H100
from tests.ui.scripted_page import ScriptedPage


async def test_a_pod_that_is_bound_appears(readers: Readers, served: ScriptedPage) -> None:
    viewer = await readers.open(served)
    before = await viewer.colours()
    notebooks = next(entry.colour for entry in await viewer.legend() if entry.name == "notebooks")
    await served.send(served.cluster.place("notebooks", "barbara-0", "h100-1", 6, memory=60000, cores=50))
    await viewer.until_text(".legend", "117 GiB")
    assert (await viewer.colours())[notebooks] > before[notebooks]
    await viewer.until_text("#live", "1 pod placed, 2 pods wait")


async def test_a_pod_that_ends_disappears(readers: Readers, served: ScriptedPage) -> None:
    viewer = await readers.open(served, "pod=risk/scoring-1")
    await served.send(served.cluster.remove("risk", "scoring-1"))
    await viewer.until_text("#details .note", "This pod holds no card now.")


async def test_details_follow_their_card(readers: Readers, served: ScriptedPage) -> None:
    viewer = await readers.open(served, "node=l4-1&card=GPU-l4-1-1")
    await viewer.until_text("#details h3", "No slices: the card is free")
    await served.send(served.cluster.place("chat", "answer-5d-5", "l4-1", 1, memory=5000, cores=20))
    await viewer.until_text("#details .slices", "chat/answer-5d-5")


async def test_a_card_that_fails_is_marked(readers: Readers, served: ScriptedPage) -> None:
    viewer = await readers.open(served, "table=1&filter=node:l4-1")
    served.cluster.set_state("l4-1", 1, "unhealthy: XID 79")
    await served.send(served.cluster.changed("l4-1"))
    await viewer.until_text("td.bad", "unhealthy: XID 79")


async def test_nodes_come_and_go(readers: Readers, served: ScriptedPage) -> None:
    viewer = await readers.open(served)
    cluster = served.cluster
    cluster.add_node("h100-3", H100, 8)
    await served.send(cluster.changed("h100-3"))
    await viewer.until_text(".found", "38 cards")
    del cluster.nodes["h100-3"], cluster.nodes["ascend-1"]
    await served.send(cluster.changed("h100-3", "ascend-1"))
    await viewer.until_text(".found", "26 cards")


async def test_the_reason_for_waiting_changes(readers: Readers, served: ScriptedPage) -> None:
    viewer = await readers.open(served, "view=waiting")
    why = "needs 4 cards that fit on one node; the most are 3 on h100-2"
    await served.send(served.cluster.wait("vision", "train-3", since=served.cluster.time - 1300.0, why=why))
    await viewer.until_text(".waiting-pod dd", why)
    assert await viewer.page.locator(".waiting-pod").count() == 2


async def test_a_pod_that_is_placed_waits_no_longer(readers: Readers, served: ScriptedPage) -> None:
    viewer = await readers.open(served, "view=waiting")
    for name in list(served.cluster.waiting):
        del served.cluster.waiting[name]
        await served.send({"waiting": {name: None}})
    await viewer.until_text(".empty", "Nothing waits")
    assert not await viewer.page.locator("#tabs .badge").is_visible()


async def test_the_focus_stays_on_a_waiting_pod_that_changes(readers: Readers, served: ScriptedPage) -> None:
    viewer = await readers.open(served, "view=waiting")
    await viewer.page.get_by_role("link", name="notebooks/alan-0").focus()
    await served.send(served.cluster.wait("notebooks", "alan-0", since=served.cluster.time, why="is new"))
    await viewer.until_text(".waiting-pod dd", "is new")
    assert await viewer.page.evaluate("document.activeElement.textContent") == "notebooks/alan-0"


async def test_totals_change(readers: Readers, served: ScriptedPage) -> None:
    viewer = await readers.open(served, "view=totals")
    served.cluster.remove("vision", "train-1")
    await served.send({"totals": served.cluster.totals()})
    await viewer.until_text(".totals-table", "4 of")
    await viewer.until("document.querySelector('.figure .value').textContent === '40 %'")


async def test_decisions_appear_while_the_reader_looks_at_them(readers: Readers, served: ScriptedPage) -> None:
    viewer = await readers.open(served, "view=time")
    await viewer.until("document.querySelectorAll('.record').length === 26")
    assert await viewer.text(".when") == "Now"
    cluster = served.cluster
    cluster.record(cluster.time + 1.0, "placed", "notebooks/barbara-0", "h100-1", "on card 6")
    await served.send(cluster.place("notebooks", "barbara-0", "h100-1", 6, memory=60000, cores=50))
    await viewer.until_text(".record.current", "notebooks/barbara-0")
    assert await viewer.page.locator(".record").count() == 27


async def test_the_past_does_not_change(readers: Readers, served: ScriptedPage) -> None:
    viewer = await readers.open(served, f"time={served.cluster.time - 60.0}")
    await viewer.until_text(".banner.past", "You see the cluster as it was")
    await served.send(served.cluster.place("notebooks", "barbara-0", "h100-1", 6, memory=60000, cores=50))
    await served.send({"waiting": dict.fromkeys(served.cluster.waiting)})
    await viewer.page.get_by_role("button", name="Back to now").click()
    await viewer.until_text(".legend", "117 GiB")
