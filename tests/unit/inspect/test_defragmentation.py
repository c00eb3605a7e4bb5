"""What `defrag plan` and `explain` say about moves."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from tessera.cli import main
from tessera.inspect.defragmentation import plan_cards
from tessera.inspect.offline_cluster import OfflineCluster
from tessera.inspect.render.defragmentation import STAYS, plan_lines, plan_picture
from tessera.inspect.snapshots import encode_snapshot
from tessera.inspect.state import BudgetState, ClusterState
from tests.support.builders import PodBuilder, gpu_pod, node
from tests.support.cluster_states import state_of
from tests.support.explained import explained, told

SVG = "{http://www.w3.org/2000/svg}"
NODES = [node("n1").gpus(1, memory=80000), node("n2").gpus(1, memory=80000)]
POD = """
metadata: {name: p}
kind: Pod
apiVersion: v1
spec: {containers: [{name: c, resources: {limits: {nvidia.com/gpu: 1, nvidia.com/gpumem: 70000}}}]}
"""


def held(name: str, on: str, memory: int = 20000) -> PodBuilder:
    return gpu_pod(name, mem=memory).on(on, f"{on}-0,NVIDIA,{memory},0:;")


def state(*pods: PodBuilder) -> ClusterState:
    return state_of(NODES, pods)


def notebooks() -> tuple[PodBuilder, PodBuilder]:
    return held("notebook-3", "n1").of("StatefulSet", "notebook"), held("server", "n2", 40000).of(
        "ReplicaSet", "server"
    )


async def test_a_waiting_pod_is_told_which_move_would_help() -> None:
    assert "fits after moving notebook-3 to n2" in told(explained(NODES, *notebooks(), gpu_pod("p", mem=70000)))


async def test_a_waiting_pod_is_told_nothing_if_no_move_helps() -> None:
    assert "Defragmentation" not in told(explained(NODES, *notebooks(), gpu_pod("p", mem=90000)))


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (held("notebook-3", "n1"), "1 with no controller that would create it again (--bare-pods moves it)"),
        (
            held("notebook-3", "n1").of("DaemonSet", "exporter"),
            "1 with a DaemonSet, which puts it back on its node",
        ),
        (
            notebooks()[0].annotate(("tessera.io/preemptible", "false")),
            "2 with annotation tessera.io/preemptible is false",
        ),
    ],
)
async def test_a_plan_says_why_pods_stay(changed: PodBuilder, reason: str) -> None:
    kept = notebooks()[1].annotate(("tessera.io/preemptible", "false"))
    found = plan_cards(OfflineCluster(state(changed, kept)), max_moves=9, with_bare=False)
    text = "\n".join(line.text for line in plan_lines(found))
    assert "no move frees another one" in text
    assert reason in found.stays


async def test_a_budget_that_allows_no_eviction_keeps_pods() -> None:
    found = state(*notebooks())
    pods = frozenset({"uid-notebook-3", "uid-server"})
    for allowed, moves in ((0, 0), (1, 1)):
        cluster = OfflineCluster(replace(found, budgets={"default/keep": BudgetState(allowed, pods)}))
        assert len(plan_cards(cluster, max_moves=9, with_bare=False).moves) == moves


async def test_bare_pods_move_if_that_is_asked() -> None:
    cluster = OfflineCluster(state(held("a", "n1"), held("b", "n2", 40000)))
    assert plan_cards(cluster, max_moves=9, with_bare=False).moves == ()
    [move] = plan_cards(cluster, max_moves=9, with_bare=True).moves
    assert (move.name, move.source.text, move.target.text, move.controller) == ("a", "n1/0", "n2/0", "")


@pytest.fixture
def snapshot(tmp_path: Path) -> str:
    file = tmp_path / "s.json"
    file.write_bytes(encode_snapshot(state(*notebooks())))
    return str(file)


def defrag(*arguments: str, stdin: str | None = None) -> Result:
    environ = {"KUBECONFIG": "/nonexistent/kubeconfig", "HOME": "/nonexistent"}
    return CliRunner(env=environ).invoke(main, ["defrag", "plan", *arguments], input=stdin)


def test_a_plan_is_printed_as_a_table(snapshot: str) -> None:
    result = defrag("--snapshot", snapshot)
    assert result.exit_code == 0, result.output
    assert "whole cards: 1 move, 0 free now, 1 afterwards" in result.output
    assert "default/notebook-3  StatefulSet/notebook" in result.output


def test_a_plan_is_drawn_with_the_cards_before_and_after(snapshot: str, tmp_path: Path) -> None:
    file = tmp_path / "moves.svg"
    result = defrag("--snapshot", snapshot, "--plot", str(file))
    assert result.exit_code == 0, result.output
    shown = ElementTree.fromstring(file.read_text())
    texts = [each.text for each in shown.iter(f"{SVG}text")]
    assert "whole cards: 1 move, 1 gained" in texts
    assert [text for text in texts if text and "without" in text] == [
        "before: 0 cards without any pod",
        "after: 1 card without any pod",
    ]
    assert (texts.count("n1"), texts.count("n2")) == (2, 2)
    slices = [each for each in shown.iter(f"{SVG}rect") if each.get("stroke") == "white"]
    moved = [(each.get("y"), each.get("width")) for each in slices if each.get("fill") != STAYS]
    assert len(slices) == 4
    assert [y for y, _ in moved] == ["64", "90"], "from the first row to the second"
    assert {width for _, width in moved} == {"14"}, "a quarter of the card"


async def test_a_plan_without_moves_is_drawn_too() -> None:
    cluster = OfflineCluster(state())
    ElementTree.fromstring(plan_picture(cluster, plan_cards(cluster, max_moves=9, with_bare=False)))


def test_a_plan_for_a_pod_is_a_document(snapshot: str) -> None:
    result = defrag("--snapshot", snapshot, "--for", "-", "-o", "json", stdin=POD)
    found = json.loads(result.stdout)
    assert (result.exit_code, found["kind"], found["gained"]) == (0, "DefragmentationPlan", 1)
    [move] = found["moves"]
    assert (move["name"], move["target"]["node"], move["step"]) == ("notebook-3", "n2", 1)


@pytest.mark.parametrize(
    ("arguments", "stdin", "code", "text"),
    [
        (("--for", "-", "--count", "2"), POD, 1, "0 of 2 fit now, 1 afterwards"),
        (("--for", "-"), POD.replace("70000", "1000"), 0, "all fit without any move"),
        (("--for", "-"), POD.replace("70000", "90000"), 1, "no move makes room for another one"),
        (("--count", "2"), None, 2, "give both"),
        (("--for", "/nonexistent"), None, 2, "cannot read"),
        (("--for", "-"), POD + "---" + POD, 2, "give one at a time"),
        (("--plot", "/nonexistent/moves.svg"), None, 2, "cannot write /nonexistent/moves.svg"),
    ],
)
def test_exit_codes_say_whether_the_goal_is_reached(
    snapshot: str, arguments: tuple[str, ...], stdin: str | None, code: int, text: str
) -> None:
    result = defrag("--snapshot", snapshot, *arguments, stdin=stdin)
    assert (result.exit_code, text in result.output) == (code, True), result.output
