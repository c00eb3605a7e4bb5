"""What follows a call is done in its turn and disturbs nobody."""

from __future__ import annotations

from tessera.host.call_thread import CallThread


async def test_a_follow_up_is_done_before_the_next_call_and_its_fault_is_nobodys() -> None:
    thread = CallThread("test")
    done: list[str] = []

    def fails() -> None:
        done.append("failed")
        raise OSError("no room")

    thread.follow_up(lambda: done.append("too early"))
    await thread.call(lambda: done.append("call"), deadline=10.0)
    thread.follow_up(fails)
    thread.follow_up(lambda: done.append("second"))
    await thread.call(lambda: done.append("last"), deadline=10.0)
    assert done == ["call", "failed", "second", "last"]
    await thread.close(patience=1.0)
