"""Plans as files, and what is asked of the scheduler. The whole way of a move: tests/integration/test_defrag.py."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, cast

import msgspec
import pytest

from tessera.inspect.defragmentation import DefragmentationReport, plan_cards
from tessera.inspect.installation import MOVES, at_url
from tessera.inspect.offline_cluster import OfflineCluster
from tessera.inspect.render.documents import encode_document, make_document
from tessera.inspect.state import InspectionError
from tessera.kube.client import KubeClient
from tessera.kube.errors import ApiError, KubeError, Unreachable
from tessera.maintenance.defrag import TRIES, MoveProgress, make_moves, moves_request, read_plan
from tessera.wire.errors import WireError
from tessera.wire.moves import MovesRequest, MoveStage, MoveUpdate, decode_moves_request
from tests.support.builders import PodBuilder, gpu_pod, node
from tests.support.cluster_states import state_of
from tests.support.event_loops import in_fake_time

NODES = [node("n1").gpus(1, memory=80000), node("n2").gpus(1, memory=80000)]


def held(name: str, on: str, memory: int) -> PodBuilder:
    return gpu_pod(name, mem=memory).on(on, f"{on}-0,NVIDIA,{memory},0:;").of("Job", name)


SMALL, LARGE = held("small", "n1", 10_000), held("large", "n2", 20_000)


def cluster(*pods: PodBuilder) -> OfflineCluster:
    return OfflineCluster(state_of(NODES, pods))


def plan() -> DefragmentationReport:
    found = plan_cards(cluster(SMALL, LARGE), max_moves=9, with_bare=False)
    assert [move.name for move in found.moves] == ["small"]
    return found


@pytest.mark.parametrize("form", ["json", "yaml"])
async def test_a_plan_is_read_as_it_was_printed(form: str) -> None:
    found = plan()
    text = encode_document(make_document("DefragmentationPlan", cluster().state, found), form)
    assert read_plan(text, file="plan") == found


@pytest.mark.parametrize("text", ["", "[]", "kind: Pod", "{kind: DefragmentationPlan, goal: 3}", "a: ["])
def test_what_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(InspectionError):
        read_plan(text, file="plan")


class Scheduler:
    """Answers each request with the next of these, and hears what is asked."""

    def __init__(self, *answers: KubeError | list[MoveUpdate]) -> None:
        self.answers = list(answers)
        self.asked: list[MovesRequest] = []
        self.said: list[str] = []

    async def stream_lines(self, path: str, *, body: bytes, **_more: Any) -> AsyncGenerator[bytes, None]:
        assert path == "/moves"
        self.asked.append(decode_moves_request(body))
        answer = self.answers.pop(0)
        if isinstance(answer, KubeError):
            raise answer
        yield b""
        for update in answer:
            yield msgspec.json.encode(update)

    async def apply(self) -> MoveProgress:
        moves = plan().moves
        request = moves_request(moves, interval_s=0.0, step_timeout_s=60.0, dry_run=False)
        find = at_url("http://127.0.0.1:1", MOVES)
        [found] = await make_moves(cast("KubeClient", self), find, moves, request, self.said.append)
        return found


HELD = MoveUpdate("uid-small", MoveStage.HELD)
MOVED = MoveUpdate("uid-small", MoveStage.MOVED)
LAST = MoveUpdate(is_last=True)
LOST = Unreachable("connection reset", maybe_done=True)


async def test_the_scheduler_is_asked_for_the_moves_of_the_plan() -> None:
    scheduler = Scheduler([HELD, MOVED, LAST])
    assert (await scheduler.apply()).stage is MoveStage.MOVED
    [[move]] = [asked.moves for asked in scheduler.asked]
    assert (move.uid, move.source.node, move.target.node) == ("uid-small", "n1", "n2")
    assert [card.memory for card in move.target.held] == [10_000]
    assert scheduler.said == ["default/small: held", "default/small: moved"]


@pytest.mark.parametrize("lost", [LOST, [HELD]], ids=["a fault", "an end without a last line"])
@in_fake_time
async def test_a_connection_that_is_lost_is_made_again(lost: KubeError | list[MoveUpdate]) -> None:
    scheduler = Scheduler(lost, [HELD, MOVED, LAST])
    assert (await scheduler.apply()).stage is MoveStage.MOVED
    assert scheduler.said.count("default/small: held") == 1


@in_fake_time
async def test_a_scheduler_that_is_away_for_long_is_told_with_what_to_do() -> None:
    with pytest.raises(InspectionError, match=r"connection reset\nApply the same plan again"):
        await Scheduler(*[LOST] * TRIES).apply()


async def test_a_refusal_is_told_at_once_with_what_to_do() -> None:
    refusal = ApiError(status=403, message="you may not do this")
    with pytest.raises(InspectionError, match="does not make the moves: you may not do this\n--url is"):
        await Scheduler(refusal).apply()


@in_fake_time
async def test_a_refusal_after_a_loss_may_be_another_replica_that_begins_to_decide() -> None:
    scheduler = Scheduler([HELD], ApiError(status=503, message="no tenure"), [MOVED, LAST])
    assert (await scheduler.apply()).stage is MoveStage.MOVED


GOOD = msgspec.to_builtins(moves_request(plan().moves, interval_s=0.0, step_timeout_s=60.0, dry_run=False))


@pytest.mark.parametrize(
    "changes",
    [
        {"moves": []},
        {"moves": GOOD["moves"] * 2},
        {"stepTimeoutS": 0.0},
        {"intervalS": 1e9},
        {"moves": [GOOD["moves"][0] | {"target": {"node": "n2", "cards": ["n2-0"]}}]},
        {"moves": [GOOD["moves"][0] | {"target": {"node": "n2", "cards": [], "held": [
            {"uuid": "u", "vendor": "v", "slots": -1, "memory": 1}]}}]},
        {"moves": 3},
    ],
)  # fmt: skip
def test_what_is_no_request_for_moves_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(WireError):
        decode_moves_request(msgspec.json.encode(GOOD | changes))
    assert decode_moves_request(msgspec.json.encode(GOOD)).moves
